"""The drafter that has seen it before: where the last tokens stood earlier, they may go on as they did there.

It looks in the request itself (prompt and answer), in the store of what this scope's requests read or wrote, and in
the corpus. All places vote (`votes`). It follows a sequence on the device thread; the store learns on its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from tandem.contract.plan import LookupPlan
from tandem.draft.archive import Archive
from tandem.draft.corpus import read_corpus
from tandem.draft.grams import BOUNDARY, LONGEST, GramIndex, View
from tandem.draft.store import LookupStore, Shelf
from tandem.draft.tree import NO_GUESS, DraftTree
from tandem.draft.votes import MOST_VOTES, Vote, elect, length_class
from tandem.errors import CannotStart
from tandem.model.interface import SequenceState
from tandem.text.tokenizer import Tokenizer
from tandem.text.vocabulary import Vocabulary
from tandem.units import MIB, format_bytes

# In its own text two tokens in a row are a hint. In text of others they are chance.
REQUEST_SIZES: Final = (2, 4, 8)
LEAST_SIZE: Final = MIB  # of a store; its volumes are a sixteenth of it, and hold few documents then


class Realm(IntEnum):
    """Where a place was found; in the tens of `Origin.match`."""

    REQUEST = 0
    STORE = 1
    CORPUS = 2


# Of a match in a request's own text and one as long in another text, the first is right more often.
_TRUST: Final = {Realm.REQUEST: 1.0, Realm.STORE: 0.5, Realm.CORPUS: 0.5}


@dataclass(slots=True)
class Session:
    """One sequence, from its prompt on."""

    scope: str
    text: GramIndex
    shelf: Shelf | None  # of its scope
    prompt: int | None = None  # tokens, once it was followed
    guessed: DraftTree = NO_GUESS
    run: int = 0  # guesses in a row that came true, up to the last token


class _Text(NamedTuple):
    realm: Realm
    view: View


class Lookup:
    """Called by the device thread only."""

    name: Final = "lookup"

    def __init__(
        self,
        ends: frozenset[int] = frozenset(),
        store: LookupStore | None = None,
        learns_prompts: bool = False,
        corpus: View | None = None,
    ) -> None:
        """`ends`: tokens that end an answer, or a document; never guessed."""
        self._stops = ends
        self._ends = ends | {BOUNDARY}
        self._store = store
        self._learns_prompts = learns_prompts
        self._corpus = () if corpus is None else (_Text(Realm.CORPUS, corpus),)

    def begin(self, state: SequenceState, scope: str) -> Session:
        """The model's state is no help in finding text again."""
        shelf = self._store.shelf(scope) if self._store else None
        return Session(scope, GramIndex(REQUEST_SIZES), shelf)

    def follow(self, session: Session, tokens: Sequence[int]) -> None:
        """The first call brings the whole prompt: what comes later was written."""
        session.run = _run_after(session.guessed, session.run, tokens)
        session.guessed = NO_GUESS
        session.text.append(tokens)
        if session.prompt is None:
            session.prompt = len(tokens)

    def propose(self, sessions: Sequence[Session], limits: Sequence[int]) -> list[DraftTree]:
        return [self._guess(session, limit) for session, limit in zip(sessions, limits, strict=True)]

    def end(self, session: Session) -> None:
        """The store learns what it may; a sequence that was given up still wrote what it wrote."""
        if self._store is None or session.prompt is None:
            return
        view = session.text.view
        words = view.words[LONGEST : view.end]
        written = words[session.prompt :]
        stops = np.flatnonzero(np.isin(written, tuple(self._stops)))
        end = session.prompt + (int(stops[0]) if len(stops) else len(written))
        self._store.remember(session.scope, words[0 if self._learns_prompts else session.prompt : end])

    def close(self) -> None:
        """Let the store write what waits."""
        if self._store:
            self._store.close()

    def _guess(self, session: Session, limit: int) -> DraftTree:
        if limit <= 0:
            return NO_GUESS
        last = session.text.view.last(LONGEST)
        texts = [_Text(Realm.REQUEST, session.text.view), *self._corpus]
        if session.shelf:
            texts.append(_Text(Realm.STORE, session.shelf.view))
        votes = [vote for text in texts for vote in _votes(text, last, limit)]
        session.guessed = elect(votes, limit, self._ends, self.name, length_class(session.run))
        return session.guessed


def open_lookup(plan: LookupPlan, vocabulary: Vocabulary) -> Lookup:
    """As the plan has it. `vocabulary` is the served model's.

    Raises `CannotStart` for a corpus that cannot be read, a store whose directory cannot be made, or one too small
    to be worth it.
    """
    ends = frozenset(vocabulary.stop_tokens)
    corpus = read_corpus(Path(plan.corpus), Tokenizer(vocabulary)) if plan.corpus else None
    if plan.scope == "request":
        return Lookup(ends, corpus=corpus)
    if plan.size < LEAST_SIZE:
        least = format_bytes(LEAST_SIZE, 0)
        raise CannotStart(f"a lookup store of {format_bytes(plan.size)} is too small: {least} is the least")
    archive = Archive(Path(plan.path), plan.size, tokenizer_digest(vocabulary), plan.readonly)
    return Lookup(ends, LookupStore(archive), plan.scope == "all", corpus)


def tokenizer_digest(vocabulary: Vocabulary) -> bytes:
    """SHA-256 of all that decides which id stands for which text."""
    parts = (vocabulary.tokens, vocabulary.kinds, vocabulary.merges, vocabulary.pre, vocabulary.pairs)
    return hashlib.sha256(repr(parts).encode()).digest()


def _votes(text: _Text, last: Sequence[int], limit: int) -> list[Vote]:
    """Of the places with the longest matches; between equals, of the latest."""
    places = text.view.find(last)
    if not len(places.positions):
        return []
    chosen = np.argsort(-places.lengths, kind="stable")[:MOST_VOTES]
    continuations = text.view.after(places.positions[chosen], limit).tolist()
    matches = places.lengths[chosen].tolist()
    trust = _TRUST[text.realm]
    return [
        Vote(continuation, match, rank, trust, text.realm)
        for continuation, match, rank in zip(continuations, matches, chosen.tolist(), strict=True)
    ]


def _run_after(guessed: DraftTree, run: int, tokens: Sequence[int]) -> int:
    """Guesses in a row that came true. A token that nobody guessed ends the run unless the guesses had ended there."""
    if not guessed.nodes:
        return 0
    path = guessed.path(tokens)
    if len(path) == len(tokens):
        return run + len(path)
    is_leaf = bool(path) and (path[-1] + 1 == guessed.nodes or guessed.parents[path[-1] + 1] != path[-1])
    return run + len(path) if is_leaf else 0
