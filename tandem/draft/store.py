"""The lookup store as the device thread sees it: a shelf to look into, and a place to leave what was read and written.

One thread of its own reads and writes the archive. No round waits for it: until a scope's shelf is read it is empty,
and what a slow disk cannot take in time is lost.
"""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Final

from tandem.draft.archive import SIZES, Archive
from tandem.draft.grams import GramIndex, View, Words

log = logging.getLogger("tandem.draft")

_MOST_WAITING: Final = 64  # texts
_EMPTY: Final = GramIndex(SIZES).view


@dataclass(slots=True)
class Shelf:
    """What the requests of one scope may find. The store's thread sets `view`, whoever drafts reads it."""

    scope: str
    view: View = _EMPTY


@dataclass(frozen=True, slots=True)
class _Text:
    """To be kept on a shelf; without tokens, a wish to see what is there."""

    shelf: Shelf
    tokens: Words | None = None


class LookupStore:
    """`shelf` and `remember` are the device thread's; neither waits."""

    def __init__(self, archive: Archive) -> None:
        self.num_lost = 0  # texts
        self._archive = archive
        self._shelves: dict[str, Shelf] = {}
        self._texts: queue.Queue[_Text | None] = queue.Queue(_MOST_WAITING)
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="lookup-store", daemon=True)
        self._thread.start()

    def shelf(self, scope: str) -> Shelf:
        if scope not in self._shelves:
            self._shelves[scope] = Shelf(scope)
            self._hand_over(_Text(self._shelves[scope]))
        return self._shelves[scope]

    def remember(self, scope: str, tokens: Words) -> None:
        """`tokens` are not changed any more."""
        if len(tokens) and not self._archive.readonly:
            self._hand_over(_Text(self.shelf(scope), tokens))

    def close(self, timeout: float = 5.0) -> None:
        """Keep what waits, then stop. `timeout`: seconds a stuck disk may take; what waits for it is lost."""
        try:
            self._texts.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _hand_over(self, text: _Text) -> None:
        try:
            self._texts.put_nowait(text)
        except queue.Full:
            self.num_lost += 1

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            try:
                self._take(text)
            except Exception as error:  # a store that fails costs guesses, never a request
                self.num_lost += text.tokens is not None
                if not self._is_failing:
                    log.error("lookup store: %s (%s); nothing is learned until it works", error, type(error).__name__)
                self._is_failing = True
            else:
                self._is_failing = False
        self._archive.close()

    def _take(self, text: _Text) -> None:
        if text.tokens is not None:
            self._archive.add(text.shelf.scope, text.tokens)
        for shelf in tuple(self._shelves.values()):  # room for one scope may have been another's
            shelf.view = self._archive.view(shelf.scope)
