"""From one row of logits to one token id.

A request's options become one callable when it starts (`make_choice`); the round never sees a flag. The callable
looks at its own row and its own written tokens and at nothing else, so what runs beside it cannot change its pick.
Rows are numpy arrays: the work on a row is short, and torch would wake its thread pool for it.

Sampling is Gumbel-max: the drawn token is the argmax of `logit + temperature * noise[id]`. The noise of a row
follows from (seed, position) alone through a counter-based generator (Philox 4x64), so it needs no state: the same
seed writes the same text however its rows were grouped, guessed or repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.contract.messages import Sampling

Row = NDArray[np.float32]  # [vocab]
Noise = NDArray[np.float32]  # [vocab]
Written = Sequence[int]  # the tokens written so far; grows, never changes
Choose = Callable[[Row, Written], int]
Change = Callable[[Row, Written], Row]
Lowest = Callable[[Row], float]  # of the values still in play: the lowest that stays

GREEDY_BELOW: Final = 1e-5  # a temperature that moves no token: noise of at most 23 times this
_64_BITS: Final = 2**64 - 1
_BLOCK: Final = 64  # values
_A_STEP: Final = 8  # words of 32 bits that one step of the generator makes
_FEW: Final = 16  # steps one by one that are faster than all of them together
_LAST_BEFORE_1: Final = np.float32(2.0**-24 - 1)  # below 0
_SURE_MASS: Final = (1e-2, 1e-4, 1e-7)  # relative weights at which a nucleus is looked for before a full sort


class NotANumber(ArithmeticError):
    """The model's logits are broken; whatever would be chosen from them has no meaning."""


def make_choice(
    sampling: Sampling, prompt: Sequence[int], vocab: int, seed: int, masks: Sequence[Change] = ()
) -> Choose:
    """The callable of one request. `seed` is the noise's key: the request's own, or a fresh one.

    Order of effects: bias, penalties, `masks` (a grammar, a limit on thinking), temperature, top-k, top-p, min-p.
    `prompt` counts for the repetition penalty only. A change that remembers catches up on `written`, whose tokens
    are final. Call `find_fault` first; the callable raises `NotANumber` for a row that holds NaN.
    """
    changes = [*_changes(sampling, prompt, vocab), *masks]
    pick = _greedy if sampling.temperature < GREEDY_BELOW else _drawing(sampling, seed)

    def choose(row: Row, written: Written) -> int:
        for change in changes:
            row = change(row, written)
        return pick(row, len(written))

    return choose


def make_comparison(
    sampling: Sampling, prompt: Sequence[int], vocab: int, seed: int, masks: Sequence[Change] = ()
) -> Change:
    """The row as it decides, to see how close a choice was: its best value is the choice of `make_choice`, unless
    top-k, top-p or min-p leave that token out."""
    changes = [*_changes(sampling, prompt, vocab), *masks]
    temperature = np.float32(sampling.temperature)

    def compare(row: Row, written: Written) -> Row:
        for change in changes:
            row = change(row, written)
        return row if temperature < GREEDY_BELOW else row + temperature * gumbel(seed, len(written), len(row))

    return compare


def find_fault(sampling: Sampling, vocab: int) -> str | None:
    """What is wrong with these options, naming the field; None when nothing is."""
    rules = (
        ("temperature", 0 <= sampling.temperature < math.inf, "a number of at least 0"),
        ("top_p", 0 < sampling.top_p <= 1, "above 0 and at most 1"),
        ("top_k", sampling.top_k >= 0, "at least 0 (0 keeps every token)"),
        ("min_p", 0 <= sampling.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", 0 < sampling.repetition_penalty < math.inf, "a number above 0"),
        ("presence_penalty", math.isfinite(sampling.presence_penalty), "a number"),
        ("frequency_penalty", math.isfinite(sampling.frequency_penalty), "a number"),
    )
    for name, good, allowed in rules:
        if not good:
            return f"{name} is {getattr(sampling, name)}; it must be {allowed}"
    for token, bias in sampling.logit_bias:
        if not 0 <= token < vocab:
            return f"logit_bias names token {token}; this model's tokens are 0 to {vocab - 1}"
        if not math.isfinite(bias):
            return f"logit_bias of token {token} is {bias}; it must be a number"
    return None


# --- picking ----------------------------------------------------------------------------------------------------


def _greedy(row: Row, position: int) -> int:
    """The best token; of equals the lowest id, as numpy's argmax promises. It also answers the first NaN."""
    token = int(row.argmax())
    if math.isnan(row[token]):
        raise NotANumber("the model's logits hold values that are not numbers")
    return token


def _drawing(sampling: Sampling, seed: int) -> Callable[[Row, int], int]:
    temperature = np.float32(sampling.temperature)
    filters = _filters(sampling)

    def draw(row: Row, position: int) -> int:
        if not filters:
            return _greedy(row + temperature * gumbel(seed, position, len(row)), position)
        _greedy(row, position)  # a NaN compares as nothing and would slip through the filters
        ids = _keep(row, filters)
        if len(ids) == 1:
            return int(ids[0])
        return int(ids[_greedy(row[ids] + temperature * gumbel_at(seed, position, ids, len(row)), position)])

    return draw


def keep(row: Row, sampling: Sampling) -> NDArray[np.intp]:
    """The ids that top-k, top-p and min-p leave to draw from, ascending; at least one."""
    return _keep(row, _filters(sampling))


def _keep(row: Row, filters: Sequence[Lowest]) -> NDArray[np.intp]:
    kept = row
    for lowest in filters:
        kept = kept[kept >= lowest(kept)]
    return np.flatnonzero(row >= kept.min())


def gumbel(seed: int, position: int, size: int) -> Noise:
    """Standard Gumbel noise, one value a token id, from (seed, position) alone."""
    return gumbel_of(_words(seed, position, size))


def gumbel_at(seed: int, position: int, ids: NDArray[np.intp], size: int) -> Noise:
    """What `gumbel` has at `ids`, ascending. Filters leave few of them, and noise for all others would take longer than
    all else about choosing a token."""
    if len(ids) > _FEW:
        return gumbel_of(_words(seed, position, size)[ids])
    generator, words, made = _generator(seed, position), np.empty(len(ids), dtype=np.uint32), 0
    for place, id in enumerate(ids.tolist()):
        block = id // _A_STEP
        if block >= made:
            generator.advance(block - made)
            drawn, made = generator.random_raw(_A_STEP // 2).view(np.uint32), block + 1
        words[place] = drawn[id % _A_STEP]
    return gumbel_of(words)


def _words(seed: int, position: int, size: int) -> NDArray[np.uint32]:
    return _generator(seed, position).random_raw((size + 1) // 2).view(np.uint32)[:size]


def _generator(seed: int, position: int) -> np.random.Philox:
    return np.random.Philox(key=seed & _64_BITS, counter=position << 192)


def gumbel_of(words: NDArray[np.uint32]) -> Noise:
    """Equally likely words -> Gumbel noise, highest for the lowest word.

    `-log(-log1p(-v))` of v = (word + 1/2) / 2**32 is exact for small v, which is the tail that wins: it ends at
    22.9. At the other end v stops short of rounding to 1: its noise of -inf could cost the one token that a mask
    leaves, and another one would be drawn.
    """
    noise = words.astype(np.float32)
    noise += np.float32(0.5)
    noise *= np.float32(-(2.0**-32))
    np.maximum(noise, _LAST_BEFORE_1, out=noise)
    with np.errstate(divide="ignore"):
        np.log1p(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


# --- filters: tokens that score the same stay or go together ----------------------------------------------------


def _filters(sampling: Sampling) -> list[Lowest]:
    filters: list[Lowest] = []
    if sampling.top_k:
        filters.append(_top_k(sampling.top_k))
    if sampling.top_p < 1:
        filters.append(_top_p(sampling.top_p, sampling.temperature))
    if sampling.min_p > 0:
        reach = sampling.temperature * math.log(sampling.min_p)
        filters.append(lambda kept: float(kept.max()) + reach)
    return filters


def _top_k(k: int) -> Lowest:
    return lambda kept: kth_best(kept, k)


def kth_best(kept: Row, k: int) -> float:
    """The k-th highest value, k at least 1; -inf where there are no more than k.

    Selecting over a whole row costs a third of a millisecond; each of the k best blocks of it holds a value at least
    as high as the k-th best block's, so only values from there on can be among the k best.
    """
    if k >= len(kept):
        return -math.inf
    blocks = kept[: len(kept) - len(kept) % _BLOCK].reshape(-1, _BLOCK).max(axis=1)
    if k <= len(blocks):
        kept = kept[kept >= np.partition(blocks, -k)[-k]]
    return float(np.partition(kept, -k)[-k])


def _top_p(mass: float, temperature: float) -> Lowest:
    """The smallest set of best tokens whose share reaches `mass`.

    Sorting a whole row costs milliseconds and the set is small as a rule: look for it among the tokens above a
    weight first, and sort all only when it is not there. The answer is the same.
    """

    def lowest(kept: Row) -> float:
        weights = np.exp((kept - kept.max()) / np.float32(temperature))
        wanted = mass * float(weights.sum(dtype=np.float64))
        for at_least in (*_SURE_MASS, 0.0):
            heavy = weights >= at_least
            if at_least == 0.0 or float(weights[heavy].sum(dtype=np.float64)) >= wanted:
                break
        values = kept[heavy]
        order = np.argsort(values)[::-1]
        covered = np.cumsum(weights[heavy][order], dtype=np.float64)
        last = min(int(np.searchsorted(covered, wanted)), len(order) - 1)
        return float(values[order[last]])

    return lowest


# --- changes of the row -----------------------------------------------------------------------------------------


def _changes(sampling: Sampling, prompt: Sequence[int], vocab: int) -> list[Change]:
    changes: list[Change] = []
    if sampling.logit_bias:
        changes.append(_bias(sampling.logit_bias))
    if sampling.repetition_penalty != 1:
        changes.append(_repetition(sampling.repetition_penalty, prompt, vocab))
    if sampling.presence_penalty or sampling.frequency_penalty:
        changes.append(_occurrence(sampling.presence_penalty, sampling.frequency_penalty, vocab))
    return changes


def _bias(pairs: Sequence[tuple[int, float]]) -> Change:
    ids = np.array([token for token, _ in pairs], dtype=np.int64)
    amounts = np.array([bias for _, bias in pairs], dtype=np.float32)

    def change(row: Row, written: Written) -> Row:
        row = row.copy()
        np.add.at(row, ids, amounts)  # a token named twice is moved twice
        return row

    return change


class _Counts:
    """How often each token was written: a running sum over `written`, which only grows."""

    def __init__(self, vocab: int) -> None:
        self.of = np.zeros(vocab, dtype=np.float32)
        self._seen = np.zeros(vocab, dtype=np.bool_)
        self._counted = 0

    def read(self, prompt: Sequence[int]) -> None:
        self._seen[np.asarray(prompt, dtype=np.int64)] = True

    def catch_up(self, written: Written) -> NDArray[np.intp]:
        """The ids that were seen so far."""
        for token in written[self._counted :]:
            self.of[token] += 1
            self._seen[token] = True
        self._counted = len(written)
        return np.flatnonzero(self._seen)


def _repetition(penalty: float, prompt: Sequence[int], vocab: int) -> Change:
    """Scores of tokens that were read or written shrink: positive ones are divided, negative ones multiplied."""
    counts = _Counts(vocab)
    counts.read(prompt)
    factor = np.float32(penalty)

    def change(row: Row, written: Written) -> Row:
        seen = counts.catch_up(written)
        row = row.copy()
        row[seen] = np.where(row[seen] > 0, row[seen] / factor, row[seen] * factor)
        return row

    return change


def _occurrence(presence: float, frequency: float, vocab: int) -> Change:
    """`presence` once for a token that was written, `frequency` for each time; what was read does not count."""
    counts = _Counts(vocab)

    def change(row: Row, written: Written) -> Row:
        seen = counts.catch_up(written)
        row = row.copy()
        row[seen] -= np.float32(presence) + np.float32(frequency) * counts.of[seen]
        return row

    return change
