"""The narrator: one short line about what is being done, from what may be seen of a request.

It writes until its sentence ends or its time is over; a line that is not whole by then is not shown, and the caller has
its template.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Final

from tandem.contract.messages import Narrate, Narrated, RoleRefusal, Undecided
from tandem.roles.role import Ask
from tandem.roles.small_model import SmallModel

MOST_TOKENS: Final = 24
MOST_CHARACTERS: Final = 90
SEEN: Final = 240  # characters of a task, or of what was written last, that it looks at
_NOT_PLAIN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f<>`*_#|]+")
_END: Final = re.compile(r"(?<=[.!?])[\"')]*\s|\n")


class Narrator:
    takes = Narrate

    def __init__(self, model: SmallModel) -> None:
        self._model = model

    def perform(self, ask: Ask, until: float) -> Narrated | Undecided:
        assert isinstance(ask, Narrate)
        written = self._model.write(self._model.prompt(instruct(ask)), MOST_TOKENS, until, self._is_whole)
        if time.monotonic() >= until:
            return Undecided(ask.id, RoleRefusal.LATE, "the line was not whole in time")
        line = first_line(self._model.text_of(written))
        if not line:
            return Undecided(ask.id, RoleRefusal.FAILED, "nothing that can be shown was written")
        return Narrated(ask.id, line)

    def _is_whole(self, written: Sequence[int]) -> bool:
        """What comes behind the first sentence would cost the answer beside it and be thrown away."""
        return bool(_END.search(self._model.text_of(written).lstrip()))

    def warm_up(self) -> None:
        ask = Narrate("warm-up", "Say hello.", "Reading: 1 of 2 prompt tokens", "", 0.0)
        self._model.write(self._model.prompt(instruct(ask)), 2, time.monotonic() + 60)


def instruct(ask: Narrate) -> str:
    parts = [
        "An assistant works on a task. Say in one short sentence of at most ten words what it is doing now.",
        "Task: Why does my sourdough not rise?\nNow: Thinking\nSentence: Looking for reasons why the dough stays flat.",
        f"Task: {' '.join(ask.task[:SEEN].split())}\nNow: {ask.doing}",
    ]
    if ask.heard:
        parts.append(f"Last words: {' '.join(ask.heard[-SEEN:].split())}")
    return "\n\n".join(parts) + "\nSentence:"


def first_line(text: str) -> str:
    """One plain line: the first sentence, without marks that a program could take for its own, cut at a word."""
    first = _END.split(text.strip(), maxsplit=1)[0]
    line = " ".join(_NOT_PLAIN.sub(" ", first).split()).strip("\"' ")
    if len(line) <= MOST_CHARACTERS:
        return line
    return line[:MOST_CHARACTERS].rpartition(" ")[0] + " …"
