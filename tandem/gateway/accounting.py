"""What is counted of a request, for the ledger and for `usage` and `timings` in answers. Never a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from tandem.conductor.conductor import Decision
from tandem.contract.messages import FinishReason, Missed
from tandem.gateway.answers import LoopRemark, Remarks, Timings, Usage
from tandem.gateway.asgi import ClientLeft
from tandem.gateway.auth import ANYONE, Caller
from tandem.gateway.call import Call, Choice
from tandem.gateway.dialect import make_usage
from tandem.gateway.errors import ApiError, our_fault
from tandem.gateway.job import Job
from tandem.ledger.schema import Row

LEFT: Final = 499  # the client closed the connection first; no status was received by anybody


def usage_of(call: Call, job: Job) -> Usage:
    written = sum(choice.answer.num_tokens for choice in call.choices)
    thinking = sum(choice.num_thinking for choice in call.choices)
    return make_usage(job.prompt_tokens, cached_tokens(call), written, thinking)


def cached_tokens(call: Call) -> int:
    """Of the prompt: the best that any of its choices found, as the prompt is counted once."""
    return max((choice.started.cached_tokens for choice in call.choices if choice.started), default=0)


def timings_of(choice: Choice) -> Timings | None:
    """None until the engine's last word on this choice."""
    finished = choice.finished
    if finished is None:
        return None
    read = finished.prompt_tokens - finished.cached_tokens
    written = choice.answer.num_tokens
    return Timings(
        cache_n=finished.cached_tokens,
        prompt_n=read,
        prompt_ms=round(finished.prefill_seconds * 1000, 3),
        prompt_per_second=_rate(read, finished.prefill_seconds),
        predicted_n=written,
        predicted_ms=round(finished.decode_seconds * 1000, 3),
        predicted_per_second=_rate(written, finished.decode_seconds),
        queue_ms=round(finished.queue_seconds * 1000, 3),
        draft_n=finished.drafted,
        draft_n_accepted=finished.accepted,
    )


def remarks_of(choice: Choice, asked: int | None = None) -> Remarks | None:
    """What was noticed about this choice; None when that is nothing, or not yet known. `asked` are the tokens that the
    request named."""
    loop, is_runaway = None, False
    if (finished := choice.finished) is not None:
        is_runaway, seen = finished.runaway, finished.loop
        if seen is not None:
            loop = LoopRemark(seen.period, seen.repeats, finished.reason is FinishReason.LOOP)
    room = choice.started.max_tokens if choice.started is not None else None
    cut_to = room if asked is not None and room is not None and room < asked else None
    remarks = Remarks(loop, is_runaway, cut_to)
    return remarks if remarks != Remarks() else None


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 2) if seconds > 0 else 0.0


def decided(decision: Decision | None) -> dict[str, Any]:
    """The conductor's columns of a row."""
    if decision is None:
        return {}
    return {
        "kind": decision.kind,
        "package": decision.package,
        "effort": decision.effort,
        "stage": str(decision.stage),
        "decider_answer": decision.decider.outcome,
        "decider_seconds": decision.decider.seconds,
        "model_answer": decision.model.outcome,
        "model_seconds": decision.model.seconds,
    }


@contextmanager
def told(account: Account) -> Iterator[None]:
    """What ends a request early is written into its account, and raised on."""
    try:
        yield
    except ApiError as error:
        account.error = error
        raise
    except ClientLeft:
        account.has_left = True
        raise
    except Exception:
        account.error = our_fault()
        raise


class Account:
    """Filled while a request is served; becomes one row at its end."""

    def __init__(self, id: str, route: str, at: float, began: float) -> None:
        self.id = id
        self.route = route
        self.at = at  # unix time
        self.began = began  # monotonic
        self.caller: Caller = ANYONE
        self.client = ""
        self.request_id = ""
        self.streamed = False
        self.error: ApiError | None = None
        self.has_left = False
        self.was_at_once = False  # answered without the big model
        self.decider = ""  # the small model that answered instead
        self.decider_tokens = 0  # that it read
        self.call: Call | None = None
        self.job: Job | None = None
        self.decision: Decision | None = None

    @property
    def outcome(self) -> str:
        """`stop`, `length`, `loop`, `cancelled`, or an error's code."""
        if self._was_left:
            return "cancelled"
        if (error := self._failure) is not None:
            return error.code
        if self.was_at_once:
            return str(FinishReason.STOP)
        reasons = [choice.reason for choice in self.call.choices if choice.reason] if self.call else []
        return str(reasons[0]) if reasons else "cancelled"

    @property
    def status(self) -> int:
        """A stream that broke counts as what broke it, though its status had long been sent."""
        if self._was_left:
            return LEFT
        return self._failure.status if self._failure is not None else 200

    @property
    def ttft(self) -> float | None:
        first = self.call.first_token_at if self.call is not None else None
        return first - self.began if first is not None else None

    def row(self, model: str, now: float) -> Row:
        """`now` is monotonic."""
        choices = self.call.choices if self.call is not None else ()
        started = next((choice.started for choice in choices if choice.started), None)
        finished = [choice.finished for choice in choices if choice.finished]
        return Row(
            id=self.id,
            at=self.at,
            route=self.route,
            model=self.decider or model,
            key_name=self.caller.name,
            client=self.client,
            status=self.status,
            finish=self.outcome,
            streamed=self.streamed,
            choices=len(choices),
            slot=started.slot if started else None,
            reason=started.reason if started else "",
            cache_source=started.cache_source if started else "",
            prompt_tokens=self.job.prompt_tokens if self.job else self.decider_tokens,
            cached_tokens=cached_tokens(self.call) if self.call else 0,
            completion_tokens=sum(choice.answer.num_tokens for choice in choices),
            queue_seconds=max((f.queue_seconds for f in finished), default=None),
            prefill_seconds=sum(f.prefill_seconds for f in finished) if finished else None,
            decode_seconds=max((f.decode_seconds for f in finished), default=None),
            ttft_seconds=self.ttft,
            total_seconds=now - self.began,
            rounds=sum(f.rounds for f in finished) if finished else None,
            drafted=sum(f.drafted for f in finished) if finished else None,
            accepted=sum(f.accepted for f in finished) if finished else None,
            **decided(self.decision),
            request_id=self.request_id,
            missed_at=self.missed.at if self.missed else None,
            missed_of=self.missed.of if self.missed else None,
            task=self.job is not None and self.job.requests[0].task,
        )

    @property
    def missed(self) -> Missed | None:
        """Why its conversation was cold; None where it was not, or none was expected."""
        choices = self.call.choices if self.call is not None else ()
        return next((choice.started.missed for choice in choices if choice.started and choice.started.missed), None)

    @property
    def _was_left(self) -> bool:
        return self.has_left or (self.call is not None and self.call.client_left)

    @property
    def _failure(self) -> ApiError | None:
        return self.error or (self.call.error if self.call is not None else None)
