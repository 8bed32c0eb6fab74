"""Where in a schema the fault is: the library says what it cannot do, this finds the place.

Nothing here knows the library's keywords. A schema is judged by `judge`, which answers with the library's sentence or
None; the place is the deepest schema that is refused by itself, and in it the first keyword that makes it so.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tandem.engine.grammar.schemas import Path, Schema, children

Judge = Callable[[Schema], str | None]

_LONGEST: Final = 300  # characters of a sentence
_ROOT: Final = "_"


@dataclass(frozen=True, slots=True)
class Finding:
    path: Path
    sentence: str


def find(root: Schema, judge: Judge, has_time: Callable[[], bool] = lambda: True) -> Finding | None:
    """What is wrong with a schema; None when nothing is. Without time it names the place it has come to."""
    sentence = judge(root)
    return None if sentence is None else _Search(root, judge, has_time).deepest((), root, sentence)


class _Search:
    def __init__(self, root: Schema, judge: Judge, has_time: Callable[[], bool]) -> None:
        self._judge = judge
        self._has_time = has_time
        self._definitions = {_ROOT: _moved(root)}
        self._heading = {"$schema": root["$schema"]} if "$schema" in root else {}

    def deepest(self, path: Path, schema: Any, sentence: str) -> Finding:
        for step, child in children(schema):
            refusal = self._refusal(child)
            if refusal is not None and _kind(refusal) == _kind(sentence):  # an optional member may well be impossible
                return self.deepest((*path, *step), child, refusal)
        return self._keyword(path, schema, sentence)

    def _keyword(self, path: Path, schema: Any, sentence: str) -> Finding:
        """The keyword with which a schema is first refused, when it is read from its start."""
        part: Schema = {}
        for key, value in schema.items() if isinstance(schema, dict) else ():
            part[key] = value
            if (refusal := self._refusal(part)) is not None:
                return Finding((*path, key), refusal)
        return Finding(path, sentence)

    def _refusal(self, schema: Any) -> str | None:
        """Of one schema by itself; what it refers to stays within reach."""
        if not self._has_time():
            return None
        definitions = {**self._definitions, "tried": _moved(schema)}
        refusal = self._judge({**self._heading, "$ref": "#/$defs/tried", "$defs": definitions})
        return None if refusal is None else refusal.replace(f"/$defs/{_ROOT}", "")


def _kind(refusal: str) -> str:
    """Two refusals of one kind may have one cause."""
    return re.split(r"[:\n]", refusal, maxsplit=1)[0]


def _moved(part: Any) -> Any:
    """A part of a schema whose root stands in the definitions of another."""
    if isinstance(part, dict):
        return {key: _moved_reference(value) if key == "$ref" else _moved(value) for key, value in part.items()}
    return [_moved(each) for each in part] if isinstance(part, list) else part


def _moved_reference(value: Any) -> Any:
    is_local = isinstance(value, str) and (value == "#" or value.startswith("#/"))
    return f"#/$defs/{_ROOT}{value[1:]}" if is_local else value


_WORDS: Final = (
    (r'Unimplemented keys: \["([^"]+)".*', r"`\1` cannot be enforced here"),
    (r"oneOf constraints are not supported.*", "the alternatives of `oneOf` may overlap; write `anyOf`"),
    (r"Unknown format: (.*)", r"the format `\1` cannot be enforced here"),
    (r"Pointer '(.*)' does not exist", r"there is nothing at `#\1`"),
    (r"Resource '.*' is not present.*", "only places in the same schema can be referred to"),
    (r"Unsatisfiable schema: (.*)", r"no value can satisfy it: \1"),
    (r".*lookarounds not supported yet.*", "`^` and `$` inside it, and `\\\\b`, cannot be enforced"),
    (r".*\nerror: ([^\n]*).*", r"\1"),
    (r"(?:at )?(\d+)\((\d+)\): ([^\n]*).*", r"line \1, column \2: \3"),
    (r"no start rule found", "it has no rule `start`"),
    (r".*(?:too large|too big|fuel|too many|Unable to determine if regex is empty|limit).*", "it is too complex"),
    (r"NoExtension.*", "no answer can match it"),
)


def explain(refusal: str) -> str:
    """The library's refusal as a sentence of ours."""
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, refusal.partition("\n  while processing")[0], re.DOTALL):
            return found.expand(words)[:_LONGEST]
    return refusal.partition("\n")[0][:_LONGEST]
