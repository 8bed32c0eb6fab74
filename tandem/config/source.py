"""Text to a tree that remembers where everything stands. The only door to YAML.

Knows syntax: keys, values, their places, duplicate keys, aliases. Knows no key by name and no meaning.

Scalars are read the way people mean them: `on`/`off`/`yes`/`no` are booleans, numbers are decimal, and what YAML 1.1
would make of `60:30`, `0o17` or `2026-10-06` stays text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import yaml

from tandem.config.paths import is_path_like
from tandem.errors import Place, Problem

Step = str | int
KeyPath = tuple[Step, ...]  # `("slots", "count")`
Scalar = str | int | float | bool | None

HIDDEN: Final = "\u2022"  # stands for each character of a secret
MAX_NODES: Final = 20_000  # aliases can name one list a billion times; no honest document comes near this
MAX_TEXT: Final = 1 << 20
_MAX_DEPTH: Final = 60

_INT: Final = re.compile(r"[-+]?\d[\d_]{0,29}")
_FLOAT: Final = re.compile(r"[-+]?(\d[\d_]*)?\.\d*([eE][-+]?\d+)?")
_LINE_BREAK: Final = re.compile("\r\n|[\r\n\x85\u2028\u2029]")  # YAML's line breaks, which are not Python's
_SECRET_NAME: Final = re.compile(r"(^|[_\-.])(api_?keys?|keys?|token|secret|password|bearer|credentials?)$", re.I)
_NOT_SECRET: Final = frozenset({"indexer_key"})
_SECRET_VALUE: Final = re.compile(r"(\b(?:sk|pk|hf|ghp|gho|xox[bp]|glpat)[-_]|\bbearer\s+)[\w\-.~+/=]{6,}", re.I)
_LINE_KEY: Final = re.compile(r"(\s*(?:-\s+)?[\"']?(?P<key>[^\s\"':={}\[\],]+)[\"']?\s*[:=]\s*)(?P<value>\S.*)")
_INLINE_KEY: Final = re.compile(r"([\"']?(?P<key>[A-Za-z_][\w\-.]*)[\"']?\s*:\s*)(?P<value>[^,{}\[\]]+)")


@dataclass(frozen=True, slots=True)
class Span:
    """Characters on one line, 1-based. `line` 0: not in a file, but in a variable or a flag."""

    line: int
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class Node:
    """A scalar, a list or a mapping, with the span that a caret should underline."""

    value: Scalar | tuple[Node, ...] | Mapping[str, Entry]
    span: Span

    def plain(self) -> object:
        """Ordinary values; lists become tuples, because documents are immutable."""
        if isinstance(self.value, Mapping):
            return {key: entry.node.plain() for key, entry in self.value.items()}
        if isinstance(self.value, tuple):
            return tuple(node.plain() for node in self.value)
        return self.value


@dataclass(frozen=True, slots=True)
class Entry:
    key: Span
    node: Node


@dataclass(frozen=True, slots=True)
class Tree:
    """One document (or one variable, or one flag): its name for people, its lines and its root mapping."""

    file: str
    lines: tuple[str, ...]
    root: Node

    def plain(self) -> dict[str, object]:
        plain = self.root.plain()
        assert isinstance(plain, dict)
        return plain

    def entry(self, path: KeyPath) -> Entry | None:
        """The key and node at `path`; a list item has no key of its own and answers with its own span."""
        entry: Entry | None = Entry(self.root.span, self.root)
        for step in path:
            if entry is None:
                return None
            entry = _child(entry.node, step)
        return entry

    def place(self, path: KeyPath, *, on_key: bool = False) -> Place | None:
        """Where `path` stands, or None when this document does not say anything there."""
        entry = self.entry(path)
        if entry is None:
            return None
        collection = isinstance(entry.node.value, (Mapping, tuple)) and entry.key.line != 0
        return self.place_of(entry.key if on_key or collection else entry.node.span, path)

    def place_of(self, span: Span, path: KeyPath = ()) -> Place:
        index = max(span.line, 1) - 1
        line = self.lines[index] if index < len(self.lines) else ""
        sections = path[:-1] if path else _sections_above(self.lines, index)
        secret = any(is_secret(str(step)) for step in sections) and not _names_a_file(line)
        shown = _without_value(line) if secret else without_secrets(line)
        return Place(self.file, span.line, span.column, max(span.length, 1), without_secrets(dotted(path)), shown)


def _child(node: Node, step: Step) -> Entry | None:
    if isinstance(node.value, Mapping) and isinstance(step, str):
        return node.value.get(step)
    if isinstance(node.value, tuple) and isinstance(step, int) and step < len(node.value):
        return Entry(node.value[step].span, node.value[step])
    return None


def dotted(path: KeyPath) -> str:
    """`slots.side_window`, `facts[2].value`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def is_secret(name: str) -> bool:
    """Whether a key (or a section) of this name holds something that must never be shown."""
    return _SECRET_NAME.search(name) is not None and name not in _NOT_SECRET


def without_secrets(line: str) -> str:
    """The user's line as it may be shown: values of keys that name a secret, and values that look like one, go.

    Carets keep their columns: every hidden character is replaced, none is removed.
    """

    def by_name(match: re.Match[str]) -> str:
        return match[1] + _hidden(match["value"]) if is_secret(match["key"]) else match[0]

    line = _INLINE_KEY.sub(by_name, _LINE_KEY.sub(by_name, line, count=1))
    return _SECRET_VALUE.sub(lambda match: _hidden(match[0]), line)


def _hidden(text: str) -> str:
    return HIDDEN * len(text)


def _names_a_file(line: str) -> bool:
    """Whether this is all a line says: where something lies, which is no secret itself."""
    match = _LINE_KEY.fullmatch(line)
    return match is not None and match["key"] == "file" and is_path_like(match["value"].strip("\"' "))


def _without_value(line: str) -> str:
    match = _LINE_KEY.fullmatch(line)
    if match is not None:
        return _SECRET_VALUE.sub(lambda found: _hidden(found[0]), match[1]) + _hidden(match["value"])
    rest = line.lstrip()
    return line if rest.rstrip().endswith(":") else line[: len(line) - len(rest)] + _hidden(rest)


def _sections_above(lines: tuple[str, ...], index: int) -> list[str]:
    """The keys a line is indented under, for a document whose syntax is broken: it has no paths yet."""
    names: list[str] = []
    depth = _indent(lines[index]) if index < len(lines) else 0
    for line in reversed(lines[:index]):
        if line.strip() and _indent(line) < depth:
            depth = _indent(line)
            names.append(line.partition(":")[0].strip(" -\"'"))
    return names


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def read_tree(text: str, file: str) -> tuple[Tree, list[Problem]]:
    """The tree of a document and everything wrong with its syntax.

    With a syntax error the tree is empty: YAML gives no second chance. Duplicate keys are reported all at once,
    and the first of them stays. An empty document is an empty mapping.
    """
    reader = _Reader(file, tuple(_LINE_BREAK.split(text)))
    root = reader.read(text)
    return Tree(file, reader.lines, root), reader.problems


def read_value(text: str, column: int, line: str, file: str) -> tuple[Node, list[Problem]]:
    """The value of a variable or flag, read as it would be in a document.

    `line` is what a finding shows, `column` where in it the value begins.
    """
    reader = _Reader(file, (line,), column)
    node = reader.compose(text)
    return node or Node(None, Span(0, column, len(text))), reader.problems


_CORE: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset(("null", "bool", "int", "float", "str", "timestamp", "seq", "map", "merge", "value"))

# The parser's findings in words for someone who has never read the YAML specification: what its sentence begins with,
# our sentence and fix, and whether the place to show is where the construct began rather than where it failed.
_EXPLAINED: Final[dict[str, tuple[str, str | None, bool]]] = {
    "found character '\\t'": ("a tab cannot indent YAML", "use spaces", False),
    "mapping values are not allowed": (
        "a `:` where none can stand",
        "quote a value that contains `: `, and check the indentation",
        False,
    ),
    "could not find expected ':'": ("this line is not `key: value`", "write a colon and a space after the key", True),
    "expected <block end>": ("this line fits no section above it", "check its indentation", False),
    "but found another document": ("one file is one document", "remove the `---` and what follows it", False),
    "expected alphabetic or numeric": ("`*` and `&` name aliases", "quote a value that begins with one", False),
    "found undefined alias": ("this alias names no anchor above it", "quote a value that begins with `*`", False),
}

_EMPTY: Final = Node({}, Span(1, 1, 1))


@dataclass(slots=True)
class _Reader:
    file: str
    lines: tuple[str, ...]
    column: int = 0  # of an inline value: 0 for a document
    problems: list[Problem] = field(default_factory=list)
    _nodes: int = 0

    def read(self, text: str) -> Node:
        if len(text) > MAX_TEXT:
            self._problem("syntax", "this document is larger than 1 MiB", Span(1, 1, 1))
            return _EMPTY
        node = self.compose(text)
        if node is None or node.value is None:
            return _EMPTY
        if not isinstance(node.value, Mapping):
            self._problem("syntax", "a document is made of `key: value` lines", node.span)
            return _EMPTY
        return node

    def compose(self, text: str) -> Node | None:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
            return None if node is None else self._node(node, ())
        except yaml.MarkedYAMLError as error:
            self._syntax_error(error)
        except yaml.reader.ReaderError as error:
            before = text[: error.position]
            span = Span(before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1, 1)
            code = error.character if isinstance(error.character, int) else ord(error.character)
            self._problem("syntax", f"the character U+{code:04X} cannot stand in a document", span)
        except RecursionError:
            self._problem("syntax", "this document is nested too deeply", Span(1, 1, 1))
        except _TooLarge:
            self._problem("syntax", "aliases make this document too large", Span(1, 1, 1))
        return None

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> None:
        problem = error.problem or error.context or "this is not YAML"
        explained = next((words for start, words in _EXPLAINED.items() if problem.startswith(start)), None)
        message, help, at_start = explained or (problem, None, False)
        if "<stream end>" in problem or "end of stream" in problem:
            message, help, at_start = "this is never closed", "close the bracket or the quote", True
        mark = error.context_mark if at_start and error.context_mark else error.problem_mark or error.context_mark
        self._problem("syntax", message, self._span(mark, mark) if mark else Span(1, 1, 1), help)

    def _node(self, node: yaml.Node, above: tuple[int, ...]) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise _TooLarge
        if id(node) in above or len(above) > _MAX_DEPTH:
            raise RecursionError
        above = (*above, id(node))
        span = self._span(node.start_mark, node.end_mark)
        if str(node.tag).removeprefix(_CORE) not in _TAGS:
            self._problem(
                "syntax", f"the tag `{str(node.tag).replace(_CORE, '!!')}` has no meaning here", span, "leave it out"
            )
            return Node(None, span)
        if isinstance(node, yaml.ScalarNode):
            return Node(_scalar(node.tag.removeprefix(_CORE), node.value), span)
        if isinstance(node, yaml.SequenceNode):
            return Node(tuple(self._node(child, above) for child in node.value), span)
        assert isinstance(node, yaml.MappingNode)
        return Node(self._entries(node, above), span)

    def _entries(self, node: yaml.MappingNode, above: tuple[int, ...]) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        merged: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key_span = self._span(key_node.start_mark, key_node.end_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem("syntax", "a key is a word, not a list or a mapping", key_span)
                continue
            key = str(key_node.value)  # never through the resolver: `on:` is the key `on`, not True
            value = self._node(value_node, above)
            if key == "<<" and key_node.style is None:
                for part in value.value if isinstance(value.value, tuple) else (value,):
                    if isinstance(part.value, Mapping):
                        merged = {**part.value, **merged}
                    else:
                        self._problem("syntax", "`<<` takes a mapping, or a list of mappings", key_span)
            elif key in entries:
                first = entries[key].key.line
                self._problem(
                    "duplicate-key",
                    f"`{key}` is set twice",
                    key_span,
                    "keep one of them",
                    (f"the first is on line {first}",) if first else (),
                )
            else:
                entries[key] = Entry(key_span, value)
        return {**merged, **entries}

    def _span(self, start: yaml.Mark, end: yaml.Mark) -> Span:
        if self.column:
            length = end.column - start.column if end.line == start.line else 1
            return Span(0, self.column + start.column, max(length, 1))
        line = self.lines[start.line] if start.line < len(self.lines) else ""
        stop = end.column if end.line == start.line else len(line.rstrip())
        return Span(start.line + 1, start.column + 1, max(stop - start.column, 1))

    def _problem(
        self, code: str, message: str, span: Span, help: str | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        place = Tree(self.file, self.lines, _EMPTY).place_of(span)
        self.problems.append(Problem(code, message, place, notes, help))


class _TooLarge(Exception):
    pass


def _scalar(kind: str, text: str) -> Scalar:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() in {"true", "yes", "on"}
        case "int" if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        case "float" if _FLOAT.fullmatch(text) and any(character.isdigit() for character in text):
            return float(text.replace("_", ""))
        case _:
            return text


@dataclass(frozen=True, slots=True)
class Layers:
    """Several trees seen as one, the strongest first: flags over variables over a document; a profile over its base."""

    trees: tuple[Tree, ...]

    def place(self, path: KeyPath, *, on_key: bool = False) -> Place | None:
        for tree in self.trees:
            if (place := tree.place(path, on_key=on_key)) is not None:
                return place
        return None

    def nearest(self, path: KeyPath) -> Place | None:
        """The place of `path`, or of the closest section around it that is written down; never the whole document."""
        for end in range(len(path), 0, -1):
            if (place := self.place(path[:end], on_key=end < len(path))) is not None:
                return replace(place, path=dotted(path))
        return None


def overlay(steps: Sequence[str], node: Node, key: Span) -> Node:
    """`node` under the sections `steps`, as a variable or flag says it: `key`, the whole name, stands for each step."""
    for step in reversed(steps):
        node = Node({step: Entry(key, node)}, key)
    return node
