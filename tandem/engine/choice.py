"""How one request's tokens are chosen, and what is looked at while they are: its options become one object when it
starts.

Every chosen token is final, however its row was guessed, so whatever here remembers a text catches up on `written`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tandem.conductor.monitor import LoopWatch
from tandem.contract.messages import Generate, TokenScore
from tandem.engine.grammar.mask import Compiled
from tandem.engine.grammar.mask import Mask as GrammarMask
from tandem.engine.sample import Change, Choose, Row, Written, make_choice, make_comparison
from tandem.engine.scores import score
from tandem.engine.thinking import Thinking

Mask = Change  # what may not come is -inf in the row it answers with
Forced = Callable[[Written], Sequence[int]]  # the tokens that must come next: guesses, as good as sure
Score = Callable[[Row, int], TokenScore]


@dataclass(frozen=True, slots=True)
class Choice:
    """Of one request."""

    choose: Choose
    forced: Forced
    score: Score | None  # of the tokens it writes; None where nobody wants them
    watch: LoopWatch
    thinking: Thinking | None  # None where the model's thinking is not told from its answer

    def num_thinking(self, written: Written) -> int:
        """Written tokens that are no answer."""
        return self.thinking.num_tokens(written) if self.thinking is not None else 0


def choice_for(ask: Generate, vocab: int, seed: int, grammar: Compiled | None = None) -> Choice:
    """`seed` is the noise's key: the request's own, or a fresh one. `grammar` is what the request's own became."""
    bounds = _bounds_of(ask, grammar)
    return Choice(
        make_choice(ask.sampling, ask.tokens, vocab, seed, bounds.masks),
        lambda written: next(filter(None, (tokens(written) for tokens in bounds.forced)), ()),
        _scoring(ask.top_logprobs),
        LoopWatch(),
        bounds.thinking,
    )


def comparison_for(ask: Generate, vocab: int, seed: int, grammar: Compiled | None = None) -> Change:
    """See `sample.make_comparison`."""
    return make_comparison(ask.sampling, ask.tokens, vocab, seed, _bounds_of(ask, grammar).masks)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What a request must not leave."""

    thinking: Thinking | None
    masks: Sequence[Mask]
    forced: Sequence[Forced]


def _bounds_of(ask: Generate, grammar: Compiled | None) -> _Bounds:
    assert (grammar is None) == (ask.grammar is None), "a grammar is read before its request gets here"
    thinking = Thinking(ask.reasoning) if ask.reasoning is not None else None
    masks: list[Mask] = []
    forced: list[Forced] = []
    if thinking is not None:
        masks.append(thinking.limit)
        forced.append(thinking.forced)
    if grammar is not None:
        mask = _binding(grammar, ask, thinking)
        masks.append(mask)
        forced.append(mask.forced)
    return _Bounds(thinking, masks, forced)


def _binding(grammar: Compiled, ask: Generate, thinking: Thinking | None) -> GrammarMask:
    """Thinking is no part of an answer: the grammar binds what comes behind it."""
    if ask.reasoning is None or thinking is None:
        return grammar.mask(ask.stop_tokens, start=lambda written: 0)
    opening = () if ask.reasoning.begun else ask.reasoning.open
    return grammar.mask(ask.stop_tokens, thinking.answer_start, opening)


def _scoring(top: int | None) -> Score | None:
    if top is None:
        return None
    return lambda row, chosen: score(row, chosen, top)
