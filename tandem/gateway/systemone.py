"""`/v1/systemone`: a decider's typed questions, in the words of Laya's server, with its limits.

Nothing here touches the big model: a decider answers, or the client hears at once why none does.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tandem.contract.messages import Answer, AskDecider, Decided, Question, QuestionKind, RoleRefusal, Undecided
from tandem.gateway.errors import ApiError
from tandem.gateway.role_client import RoleClient

MAX_BODY: Final = 2 << 20
BODY_WITHIN: Final = 10.0  # seconds
MAX_ADMITTED: Final = 16
ANSWER_WITHIN: Final = 10.0  # seconds
MAX_QUESTIONS: Final = 64
MAX_STATE: Final = 50_000  # characters
MAX_OPTIONS: Final = 100  # of one choice
MAX_LEVELS: Final = 32
MAX_ALL_OPTIONS: Final = 512

Budget = Annotated[int, Meta(ge=32, le=8192)]
Criteria = Annotated[
    Any,
    Meta(
        description="Of a choice: labels, or an object of labels with what each means. Of a score: a list of levels. "
        "Of a noul: an object with `true` and `false`, or nothing."
    ),
]


class SystemOneQuestion(Struct, frozen=True, kw_only=True):
    type: Literal["choice", "score", "noul"]
    instructions: str | list[Any] | dict[str, Any]
    criteria: Criteria = None
    labels: dict[str, str] | None = None  # what the model reads for `true` and `false` of a noul
    option_order: list[str] | None = None  # in which a choice's labels are read


class SystemOneRequest(Struct, frozen=True, kw_only=True):
    state: str | list[Any] | dict[str, Any]
    questions: Annotated[dict[str, SystemOneQuestion], Meta(min_length=1)]
    model: str | None = None  # there is one; the answer names it
    max_len: Budget | None = None  # tokens of one question with the state
    head_max_len: Budget | None = None  # of them, for the question
    min_confidence: Annotated[float, Meta(ge=0, le=1)] | None = None  # answers below it carry `low_confidence`


class Action(Struct, frozen=True):
    act_probability: float


class SystemOneAnswer(Struct, frozen=True, kw_only=True):
    """`confidence` of a choice and a score says how far from even the probabilities are; `answer_confidence` is that of
    the answer itself, on every type, and what a threshold is for."""

    type: str
    choice: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    legend: dict[str, str] | UnsetType = UNSET
    noul: float | UnsetType = UNSET
    probabilities: dict[str, float] | UnsetType = UNSET
    confidence: float
    answer_confidence: float
    x_jev_confidence: float | UnsetType = UNSET
    action: Action | UnsetType = UNSET
    low_confidence: bool | UnsetType = UNSET


class SystemOneUsage(Struct, frozen=True, kw_only=True):
    input_tokens: int
    output_tokens: int = 0
    state_tokens: int
    state_tokens_dropped: int
    truncated: bool
    truncated_questions: list[str]


class SystemOneResult(Struct, frozen=True, kw_only=True):
    model: str
    answers: dict[str, SystemOneAnswer]
    usage: SystemOneUsage


class SystemOne:
    """Belongs to one asyncio loop."""

    def __init__(self, roles: RoleClient) -> None:
        self._roles = roles
        self._admitted = 0
        self._numbers = count(1)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """While a request is here, from before its body arrives. Raises `ApiError` 503."""
        if self._admitted >= MAX_ADMITTED:
            raise ApiError(503, "busy", f"{MAX_ADMITTED} requests are here already", retry_after=1, source="decider")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def answer(self, wanted: SystemOneRequest) -> tuple[SystemOneResult, float]:
        """The answers, and how many seconds the decider took. Raises `ApiError`."""
        questions = questions_of(wanted)
        within = (ANSWER_WITHIN, wanted.max_len, wanted.head_max_len)
        began = time.perf_counter()
        said = await self._roles.decide(
            AskDecider(f"systemone-{next(self._numbers)}", wanted.state, questions, *within)
        )
        if isinstance(said, Undecided):
            raise refusal_of(said)
        return result_of(wanted, questions, said), time.perf_counter() - began


def questions_of(wanted: SystemOneRequest) -> tuple[Question, ...]:
    """Raises `ApiError`: 413 for more than there may be, 422 for a question that cannot be asked."""
    size = len(wanted.state) if isinstance(wanted.state, str) else len(json.dumps(wanted.state, ensure_ascii=False))
    _refuse_more("state", size, MAX_STATE, "characters")
    _refuse_more("questions", len(wanted.questions), MAX_QUESTIONS, "questions")
    questions = tuple(_question(id, each) for id, each in wanted.questions.items())
    options = sum(len(each.criteria) for each in questions if each.kind is not QuestionKind.NOUL)
    _refuse_more("questions", options, MAX_ALL_OPTIONS, "options in all")
    return questions


def _question(id: str, asked: SystemOneQuestion) -> Question:
    place, kind = f"questions.{id}", QuestionKind(asked.type)
    if asked.labels is not None and kind is not QuestionKind.NOUL:
        raise _wrong(f"{place}.labels", "only a `noul` has labels")
    if asked.option_order is not None and kind is not QuestionKind.CHOICE:
        raise _wrong(f"{place}.option_order", "only a `choice` has an order of options")
    if not (instructions := _text(asked.instructions).strip()):
        raise _wrong(f"{place}.instructions", "a question has words")
    match kind:
        case QuestionKind.CHOICE:
            criteria = _choice(asked, f"{place}.criteria")
        case QuestionKind.SCORE:
            criteria = _levels(asked.criteria, f"{place}.criteria")
        case QuestionKind.NOUL:
            criteria = _truth(asked.criteria, f"{place}.criteria")
    return Question(id, kind, instructions, criteria, _names(asked.labels, f"{place}.labels"))


def _choice(asked: SystemOneQuestion, place: str) -> tuple[tuple[str, str], ...]:
    criteria = asked.criteria
    if isinstance(criteria, list) and all(isinstance(label, str) for label in criteria):
        meanings: dict[str, Any] = dict.fromkeys(criteria)
        if len(meanings) < len(criteria):
            raise _wrong(place, "two labels are the same")
    elif isinstance(criteria, dict):
        meanings = criteria
    else:
        raise _wrong(place, "a `choice` has an object of labels with what each means, or a list of labels")
    _refuse_more(place, len(meanings), MAX_OPTIONS, "options")
    if not meanings or not all(label.strip() for label in meanings):
        raise _wrong(place, "a `choice` has at least one label, and each has words")
    order = list(meanings) if asked.option_order is None else asked.option_order
    if sorted(order) != sorted(meanings):
        raise _wrong(place.replace("criteria", "option_order"), "the order names every label once")
    return tuple((label, _text(meanings[label])) for label in order)


def _levels(criteria: Any, place: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(criteria, list) or not criteria or None in criteria:
        raise _wrong(place, "a `score` has a list of levels, each with what it means")
    _refuse_more(place, len(criteria), MAX_LEVELS, "levels")
    return tuple((str(level), _text(meaning)) for level, meaning in enumerate(criteria))


def _truth(criteria: Any, place: str) -> tuple[tuple[str, str], ...]:
    told = {} if criteria is None else criteria
    if not isinstance(told, dict) or not told.keys() <= {"true", "false"}:
        raise _wrong(place, "a `noul` has an object with `true` and `false`, or nothing")
    return tuple((label, _text(told.get(label))) for label in ("false", "true"))


def _names(labels: Mapping[str, str] | None, place: str) -> tuple[str, ...]:
    if labels is None:
        return ()
    names = tuple(labels.get(label, "").strip() for label in ("false", "true"))
    if set(labels) != {"false", "true"} or not all(names) or names[0] == names[1]:
        raise _wrong(place, "labels give `true` and `false` two different names")
    return names


def _text(value: Any) -> str:
    """Structured instructions and meanings are read as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrong(place: str, sentence: str) -> ApiError:
    return ApiError(422, "invalid_question", sentence, param=place)


def _refuse_more(place: str, number: int, most: int, what: str) -> None:
    if number > most:
        raise ApiError(413, "too_large", f"`{place}`: {number:,} {what}; at most {most:,} are taken", param=place)


def refusal_of(said: Undecided) -> ApiError:
    """Why there is no answer, as a status."""
    status, wait = _REFUSALS[said.reason]
    return ApiError(status, said.reason, said.sentence, retry_after=wait, source="decider")


_REFUSALS: Final[dict[RoleRefusal, tuple[int, float | None]]] = {
    RoleRefusal.BUSY: (503, 1.0),
    RoleRefusal.LATE: (503, 1.0),
    RoleRefusal.UNLOADED: (503, 60.0),
    RoleRefusal.AWAY: (503, 5.0),
    RoleRefusal.FAILED: (500, None),
    RoleRefusal.BAD_QUESTION: (422, None),
}


# --- answers ----------------------------------------------------------------------------------------------------


def result_of(wanted: SystemOneRequest, questions: Sequence[Question], said: Decided) -> SystemOneResult:
    pairs = zip(questions, said.answers, strict=True)
    least = wanted.min_confidence or 0.0
    return SystemOneResult(
        model=said.model,
        answers={
            question.id: _answer(question, wanted.questions[question.id], answer, least) for question, answer in pairs
        },
        usage=SystemOneUsage(
            input_tokens=said.input_tokens,
            state_tokens=said.state_tokens,
            state_tokens_dropped=said.state_tokens_dropped,
            truncated=said.state_tokens_dropped > 0,
            truncated_questions=list(said.truncated_questions),
        ),
    )


def _answer(question: Question, asked: SystemOneQuestion, answer: Answer, least: float) -> SystemOneAnswer:
    by_label = dict(answer.probabilities)
    labels = list(asked.criteria) if question.kind is QuestionKind.CHOICE else [label for label, _ in question.criteria]
    probabilities = {label: round(by_label[label], 4) for label in labels}  # in the client's order
    values = [by_label[label] for label in labels]
    fields: dict[str, Any] = {"answer_confidence": round(answer.confidence, 4)}
    if answer.act is not None:
        fields["action"] = Action(round(answer.act, 4))
    if answer.confidence < least:
        fields["low_confidence"] = True
    if question.kind is QuestionKind.NOUL:
        fields |= {"noul": probabilities["true"], "confidence": round(answer.confidence, 4)}
        return SystemOneAnswer(type="noul", **fields)
    fields |= {"probabilities": probabilities, "confidence": round(evenness_left(values), 4)}
    if question.kind is QuestionKind.CHOICE:
        fields |= {"choice": answer.label, "x_jev_confidence": round(lead(values), 4)}
        return SystemOneAnswer(type="choice", **fields)
    score = sum(level * probability for level, probability in enumerate(values))
    fields |= {
        "score": round(score, 4),
        "legend": dict(question.criteria),
        "x_jev_confidence": round(spread(values), 4),
    }
    return SystemOneAnswer(type="score", **fields)


def evenness_left(probabilities: Sequence[float]) -> float:
    """1 less the entropy as a part of the most it can be; of a single option 1."""
    if len(probabilities) < 2:
        return 1.0
    entropy = -sum(p * math.log(p) for p in probabilities if p > 0)
    return max(0.0, 1 - entropy / math.log(len(probabilities)))


def lead(probabilities: Sequence[float]) -> float:
    """How far the best of a choice is above an even share, as a part of the most it can be."""
    even = 1 / len(probabilities)
    return 1.0 if len(probabilities) == 1 else (max(probabilities) - even) / (1 - even)


def spread(probabilities: Sequence[float]) -> float:
    """How near to the likeliest level of a score the others lie, against even probabilities around the middle."""
    mode = max(range(len(probabilities)), key=probabilities.__getitem__)
    middle = (len(probabilities) - 1) / 2
    even = sum(abs(level - middle) for level in range(len(probabilities))) / len(probabilities)
    found = sum(p * abs(level - mode) for level, p in enumerate(probabilities))
    return max(0.0, 1 - found / even) if even else 1.0
