"""A parsed request, made into what the engine is asked to do: prompts, sampling, limits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from tandem.contract.messages import Generate, Grammar, Reasoning, Sampling
from tandem.contract.plan import Limits, SamplingDefaults
from tandem.gateway.errors import ApiError
from tandem.gateway.fields import ENDLESS, MAX_CHOICES
from tandem.gateway.grammars import grammar_of
from tandem.gateway.hints import Hints
from tandem.gateway.openai import Generation
from tandem.text.callgrammar import call_grammar
from tandem.text.parts import Reading
from tandem.text.template import Prompt
from tandem.text.vocabulary import Vocabulary

MOST_KEPT: Final = 1024  # tokens of an answer's room, of which a quarter is not for thinking
_SEEDS: Final = 1 << 63
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class Job:
    requests: tuple[Generate, ...]  # one a choice
    readings: tuple[Reading, ...]  # how each one's answer is read
    stops: tuple[str, ...]
    prompt_tokens: int  # each prompt counted once, however many choices it has
    asked: int | None = None  # tokens of an answer, where the client named a number

    @property
    def room(self) -> int:
        """Tokens that the longest of the answers may have, as far as the window goes."""
        return max(request.max_tokens for request in self.requests)

    @property
    def wants_scores(self) -> bool:
        return self.requests[0].top_logprobs is not None


def make_job(
    wanted: Generation,
    prompts: Sequence[Prompt],
    *,
    id: str,
    defaults: SamplingDefaults,
    limits: Limits,
    vocabulary: Vocabulary,
    window: int,
    slots: int,
    hints: Hints,
) -> Job:
    """Every prompt `n` times. Without an answer's limit the declared default holds; any is cut to the window's room.

    Raises `ApiError` 400 for a bias on a token that does not exist, for more choices than can ever be here at once and
    for a schema that is none.
    """
    copies = wanted.n or 1
    refuse_too_many(len(prompts), copies, limits.max_queue, slots)
    grammar = _held_to(wanted)
    sampling = make_sampling(wanted, defaults, len(vocabulary.tokens))
    asked = wanted.answer_limit
    requests = tuple(
        Generate(
            id=f"{id}.{index}",
            tokens=prompt.tokens,
            max_tokens=(room := min(asked or limits.default_max_tokens, window - len(prompt.tokens))),
            stop_tokens=vocabulary.stop_tokens,
            sampling=_nth(sampling, index),
            marks=prompt.marks,
            scope=hints.scope,
            grammar=grammar,
            reasoning=_limited(prompt.reasoning, wanted.thinking_limit, room),
            top_logprobs=wanted.num_top,
            end_loops=wanted.end_loops,
            client_tokens=prompt.client.tokens if prompt.client else None,
            client_head_end=prompt.client.marks.head_end if prompt.client else None,
            conversation=hints.conversation,
            task=hints.is_task,
            anew=wanted.cache_prompt is False,
            keep_for=wanted.keep_for,
        )
        for index, prompt in enumerate(prompt for prompt in prompts for _ in range(copies))
    )
    readings = tuple(prompt.reading for prompt in prompts for _ in range(copies))
    counted = sum(len(prompt.tokens) for prompt in prompts)
    return Job(requests, readings, wanted.stops, counted, None if asked == ENDLESS else asked)


def _held_to(wanted: Generation) -> Grammar | None:
    """What the answer must match: a call, where one must be made."""
    grammar, offer = grammar_of(wanted), wanted.offer
    if not offer.must_call:
        return grammar
    if grammar is not None:
        sentence = f"`tool_choice` and `{grammar.param}`: an answer is held to one of them"
        raise ApiError(400, "invalid_value", sentence, param="tool_choice")
    return call_grammar(offer.tools, offer.name, 1 if offer.at_most_one else None)


def _limited(reasoning: Reasoning | None, limit: int | None, room: int) -> Reasoning | None:
    """Thinking never takes all of an answer's room: clients that show the answer alone would wait for nothing."""
    if reasoning is None:
        return None
    most = room - min(room // 4, MOST_KEPT)
    return msgspec.structs.replace(reasoning, max_tokens=most if limit is None else min(limit, most))


def refuse_too_many(prompts: int, copies: int, max_queue: int, slots: int) -> None:
    """All choices of a request are queued together, so they must fit an idle engine. Raises `ApiError` 400."""
    choices, room = prompts * copies, max_queue + slots
    param = "n" if copies > 1 else "prompt"
    if choices > MAX_CHOICES:
        sentence = f"`{param}`: {choices} choices are asked for; a request may have {MAX_CHOICES}"
        raise ApiError(400, "invalid_value", sentence, param=param)
    if choices > room:
        sentence = (
            f"`{param}`: {choices} choices are asked for, and no more than {room} can be here at once: "
            f"slots.count is {slots} and limits.max_queue is {max_queue}"
        )
        raise ApiError(400, "invalid_value", sentence, param=param)


def make_sampling(wanted: Generation, defaults: SamplingDefaults, num_tokens: int) -> Sampling:
    """The request's words over the appliance's. `top_p` 0 keeps the likeliest token only, which is greedy."""
    top_p = _first(wanted.top_p, defaults.top_p)
    return Sampling(
        temperature=_first(wanted.temperature, defaults.temperature) if top_p > 0 else 0.0,
        top_p=top_p or 1.0,
        top_k=max(0, _first(wanted.top_k, defaults.top_k)),
        min_p=_first(wanted.min_p, defaults.min_p),
        repetition_penalty=_first(wanted.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=wanted.presence_penalty or 0.0,
        frequency_penalty=wanted.frequency_penalty or 0.0,
        logit_bias=tuple(_bias(key, value, num_tokens) for key, value in (wanted.logit_bias or {}).items()),
        seed=wanted.seed,
    )


def _first(wanted: _Number | None, default: _Number) -> _Number:
    return default if wanted is None else wanted


def _bias(key: str, value: float, num_tokens: int) -> tuple[int, float]:
    if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < num_tokens):
        sentence = f"`logit_bias`: its keys are token ids of this model, 0 to {num_tokens - 1}"
        raise ApiError(400, "invalid_value", sentence, param="logit_bias")
    return int(key), value


def _nth(sampling: Sampling, index: int) -> Sampling:
    """A seeded request's choices differ from one another, and each is the same every time."""
    if sampling.seed is None or index == 0:
        return sampling
    return msgspec.structs.replace(sampling, seed=(sampling.seed + index) % _SEEDS)
