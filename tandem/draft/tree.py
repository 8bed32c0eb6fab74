"""Guesses in a tree: what several drafters believe comes next, told apart by how sure they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple

ROOT: Final = -1  # as a parent: the block's first row, the last written token


class Origin(NamedTuple):
    """Who guessed, and on what evidence: guesses of one origin come true about equally often."""

    source: str  # the drafter's name
    match: int = 0  # tokens that matched before the guess, in the drafter's own classes
    run: int = 0  # guesses in a row that came true just before, in classes


@dataclass(frozen=True, slots=True)
class DraftTree:
    """Nodes in depth-first pre-order: a parent stands before its children, `ROOT` is the parent of the first ones."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]  # index of a node, or ROOT
    scores: tuple[float, ...]  # probability that the text takes the path to this node; never above the parent's
    origins: tuple[Origin, ...]

    @property
    def nodes(self) -> int:
        return len(self.tokens)

    @property
    def is_sound(self) -> bool:
        """Whether it can be worked with: parents stand before their children, and scores are probabilities."""
        return (
            len(self.tokens) == len(self.parents) == len(self.scores) == len(self.origins)
            and all(ROOT <= parent < node for node, parent in enumerate(self.parents))
            and all(0 <= score <= 1 for score in self.scores)
        )

    def child(self, parent: int, token: int) -> int | None:
        """The node that guesses `token` behind `parent`, a node or ROOT."""
        for node in range(parent + 1, self.nodes):
            if self.parents[node] == parent and self.tokens[node] == token:
                return node
        return None

    def path(self, tokens: Iterable[int]) -> list[int]:
        """The nodes that guess `tokens`, from the first one on as far as the tree agrees."""
        path: list[int] = []
        for token in tokens:
            node = self.child(path[-1] if path else ROOT, token)
            if node is None:
                break
            path.append(node)
        return path

    def only(self, kept: Iterable[int]) -> DraftTree:
        """The tree of these nodes, each of them kept together with its parent."""
        nodes = sorted(kept)
        index = {node: place for place, node in enumerate(nodes)}
        index[ROOT] = ROOT
        return DraftTree(
            tuple(self.tokens[node] for node in nodes),
            tuple(index[self.parents[node]] for node in nodes),
            tuple(self.scores[node] for node in nodes),
            tuple(self.origins[node] for node in nodes),
        )

    def to_block_parents(self) -> tuple[int, ...]:
        """Parents of the block's rows, for `tandem.model.tree.Tree`: row 0 is the last written token and names itself,
        node i stands in row i + 1."""
        return (0, *(parent + 1 for parent in self.parents))


NO_GUESS: Final = DraftTree((), (), (), ())

NOT_YET: Final = DraftTree((), (), (), ())
"""No guess, because the drafter is still reading what it follows. Told from `NO_GUESS` by identity."""


def chain(tokens: Sequence[int], scores: Sequence[float], origin: Origin) -> DraftTree:
    """One guess behind the other; `scores` are those of the paths, so they never rise."""
    return DraftTree(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(scores), (origin,) * len(tokens))


def prune(tree: DraftTree, nodes: int) -> DraftTree:
    """The best `nodes` nodes. They hang together: no node is better than its parent, which wins between equals."""
    if tree.nodes <= nodes:
        return tree
    return tree.only(sorted(range(tree.nodes), key=lambda node: (-tree.scores[node], node))[:nodes])


def merge(trees: Iterable[DraftTree]) -> DraftTree:
    """One tree of all guesses; whose tree comes first makes no difference.

    Two drafters that agree are one node with the score and the origin of the surer: they read the same text, so
    agreement is little evidence. Drafters that contradict each other cannot both be right: siblings that promise
    more than their parent share what it has.
    """
    root = _Node(ROOT, 1.0, Origin(""))
    for tree in trees:
        _graft(root, tree)
    return _flatten(root)


def force(tree: DraftTree, tokens: Sequence[int], origin: Origin) -> DraftTree:
    """Behind `tokens`, which come whatever the model says, what the tree guesses once they have come."""
    path = tree.path(tokens)
    root = _Node(ROOT, 1.0, origin)
    _graft(root, chain(tokens, (1.0,) * len(tokens), origin))
    if len(path) == len(tokens) and (certain := tree.scores[path[-1]] if path else 1.0) > 0:
        _graft(root, _given(tree, path, certain, origin))
    return _flatten(root)


# --- the tree while it grows ------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Node:
    token: int
    score: float
    origin: Origin
    children: dict[int, _Node] = field(default_factory=dict)


def _graft(root: _Node, tree: DraftTree) -> None:
    grown: list[_Node] = []
    scores: list[float] = []
    for token, parent, claim, origin in zip(tree.tokens, tree.parents, tree.scores, tree.origins, strict=True):
        above, most = (root, 1.0) if parent == ROOT else (grown[parent], scores[parent])
        score = min(claim, most)
        node = above.children.get(token)
        if node is None:
            node = above.children[token] = _Node(token, score, origin)
        elif (score, origin) > (node.score, node.origin):
            node.score, node.origin = score, origin
        grown.append(node)
        scores.append(score)


def _flatten(root: _Node) -> DraftTree:
    """Depth-first pre-order, of siblings the better first."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    origins: list[Origin] = []
    waiting = _behind(root, ROOT, 1.0)
    while waiting:
        node, parent, share = waiting.pop()
        score = node.score * share
        tokens.append(node.token)
        parents.append(parent)
        scores.append(score if parent == ROOT else min(score, scores[parent]))  # rounding
        origins.append(node.origin)
        waiting += _behind(node, len(tokens) - 1, share)
    return DraftTree(tuple(tokens), tuple(parents), tuple(scores), tuple(origins))


def _behind(node: _Node, index: int, share: float) -> list[tuple[_Node, int, float]]:
    """Its children, the best last, with what is left to them of the scores they were given."""
    if not node.children:
        return []
    children = sorted(node.children.values(), key=lambda child: (child.score, -child.token))
    promised = sum(child.score for child in children)
    if promised > node.score:
        share *= node.score / promised
    return list(zip(children, repeat(index), repeat(share)))


def _given(tree: DraftTree, path: Sequence[int], certain: float, origin: Origin) -> DraftTree:
    """The path and what is behind it, once the path, whose score was `certain`, has come."""
    on_path = set(path)
    kept = set(path)
    for node, parent in enumerate(tree.parents):
        if parent == (path[-1] if path else ROOT) or (parent in kept and parent not in on_path):
            kept.add(node)
    scores = [1.0 if node in on_path else min(1.0, score / certain) for node, score in enumerate(tree.scores)]
    origins = [origin if node in on_path else each for node, each in enumerate(tree.origins)]
    return DraftTree(tree.tokens, tree.parents, tuple(scores), tuple(origins)).only(kept)
