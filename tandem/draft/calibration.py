"""How often guesses come true, by who guessed and on what evidence.

A drafter's scores are its own opinion; two drafters' opinions cannot be compared, and a fresh text may betray both.
Here every score is replaced by what came of guesses like it. Guesses are judged whether or not they were checked in
a pass, since the text that was written tells of them too: a drafter that nobody believes gets its chance again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from tandem.draft.tree import ROOT, DraftTree, Origin

_OPINION: Final = 3.0  # judged guesses that the drafter's own opinion is worth
_MEMORY: Final = 64.0  # judged guesses that are remembered; older ones fade
_GRADES: Final = 8  # of an opinion; guesses of one origin and one grade are alike


class Calibration:
    """Counts of guesses by origin and by how sure the drafter was that they follow their parent."""

    def __init__(self) -> None:
        self._judged: dict[tuple[Origin, int], tuple[float, float]] = {}  # -> (guesses, of them come true)

    def probability(self, origin: Origin, opinion: float) -> float:
        """That a guess comes true when its parent has."""
        guesses, true = self._judged.get(_kind(origin, opinion), (0.0, 0.0))
        return (true + _OPINION * opinion) / (guesses + _OPINION)

    def judge(self, origin: Origin, opinion: float, is_true: bool) -> None:
        """A guess whose parent has come did or did not come true."""
        kind = _kind(origin, opinion)
        guesses, true = self._judged.get(kind, (0.0, 0.0))
        fade = min(1.0, (_MEMORY - 1) / guesses) if guesses else 1.0
        self._judged[kind] = guesses * fade + 1, true * fade + is_true

    def rate(self, tree: DraftTree) -> DraftTree:
        """The tree with scores that came true in the past."""
        scores: list[float] = []
        for parent, origin, opinion in zip(tree.parents, tree.origins, _opinions(tree), strict=True):
            above = scores[parent] if parent != ROOT else 1.0
            scores.append(above * self.probability(origin, opinion))
        return replace(tree, scores=tuple(scores))

    def learn(self, tree: DraftTree, written: Sequence[int]) -> None:
        """A tree as its drafter made it, and the text that came in its place, as far as it is known."""
        opinions = _opinions(tree)
        came = ROOT
        for token in written:
            after = ROOT
            for node in range(came + 1, tree.nodes):
                if tree.parents[node] == came:
                    self.judge(tree.origins[node], opinions[node], tree.tokens[node] == token)
                    if tree.tokens[node] == token:
                        after = node
            if after == ROOT:
                return
            came = after


def _opinions(tree: DraftTree) -> list[float]:
    """How sure the drafter is of each node given its parent."""
    return [
        min(1.0, score / above) if (above := tree.scores[parent] if parent != ROOT else 1.0) > 0 else 0.0
        for parent, score in zip(tree.parents, tree.scores, strict=True)
    ]


def _kind(origin: Origin, opinion: float) -> tuple[Origin, int]:
    return origin, min(_GRADES - 1, int(opinion * _GRADES))
