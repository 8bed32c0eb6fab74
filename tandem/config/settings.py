"""What lies over the documents: `TANDEM_*` variables and `--set` flags, through pydantic-settings.

A variable names a key in capitals, `__` stands for the dot: `TANDEM_SLOTS__COUNT=4`. A flag names it as it is:
`--set slots.count=4`. Both are read exactly as the value would be in the document, and an error in one names it.
Flags win over variables, variables over the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from tandem.config.documents import Appliance
from tandem.config.section import Section
from tandem.config.source import KeyPath, Layers, Span, Tree, dotted, overlay, read_value, without_secrets
from tandem.errors import Place, Problem

PREFIX: Final = "TANDEM_"
OURS: Final = frozenset({"TANDEM_RUN", "TANDEM_LOGS"})  # set for our own processes; they override no document

Model = TypeVar("Model", bound=Section)


class _Tree(PydanticBaseSettingsSource):
    """One layer as a settings source: what it says, nothing else."""

    def __init__(self, settings: type[BaseSettings], tree: Tree) -> None:
        super().__init__(settings)
        self._values = tree.plain()

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


class _Layered(BaseSettings):
    model_config = SettingsConfigDict(validate_default=False)

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        layers: Layers = init_settings()["layers"]
        return tuple(_Tree(settings_cls, tree) for tree in layers.trees)


_LAYERED: dict[type[Section], Any] = {}


def validate(layers: Layers, model: type[Model]) -> Model:
    """The layers, merged key by key with the first one strongest, as `model`. Raises pydantic's `ValidationError`."""
    if model not in _LAYERED:
        _LAYERED[model] = type(model.__name__, (_Layered, model), {"__module__": __name__})
    document: Model = _LAYERED[model](layers=layers)
    return document


def read_overrides(flags: Sequence[str], environment: Mapping[str, str]) -> tuple[tuple[Tree, ...], list[Problem]]:
    """Flags and variables as trees, the strongest first, and what is wrong with their names or their syntax."""
    trees: list[Tree] = []
    problems: list[Problem] = []
    for flag in reversed(flags):
        name, equals, value = flag.partition("=")
        steps = name.strip().split(".")
        if not equals or not all(steps):
            place = Place("--set", 0, 1, max(len(flag), 1), "", without_secrets(flag))
            problems.append(Problem("syntax", "a flag is `--set section.key=value`", place))
            continue
        _add(trees, problems, f"--set {name.strip()}", flag, len(name), steps, value)
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in OURS:
            steps = name.removeprefix(PREFIX).lower().split("__")
            _add(trees, problems, name, f"{name}={environment[name]}", len(name), steps, environment[name])
    return tuple(trees), problems


def _add(
    trees: list[Tree], problems: list[Problem], file: str, line: str, name_length: int, steps: Sequence[str], text: str
) -> None:
    key = Span(0, 1, name_length)
    if steps[0] not in Appliance.model_fields:
        # The value stays unseen: nobody said that this is ours, and it may be a secret.
        line = f"{line[:name_length]}=\u2026"
        text = ""
    line = line.split("\n", 1)[0]
    value, found = read_value(text, name_length + 2, line, file)
    problems += found
    if not found:
        trees.append(Tree(file, (line,), overlay(steps, value, key)))


def find_overridden(layers: Layers) -> tuple[str, ...]:
    """What the document says in vain, one sentence a key: a flag or variable holds another value."""
    *over, document = layers.trees
    held: dict[KeyPath, object] = {}
    for tree in over:
        for path, value in _leaves(tree.plain()):
            held.setdefault(path, value)
    written = ((path, document.entry(path), value) for path, value in held.items())
    return tuple(
        _in_vain(path, entry.node.plain())
        for path, entry, value in written
        if entry is not None and entry.node.plain() != value
    )


def _leaves(value: object, above: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, (*above, key))
    else:
        yield above, value


def _in_vain(path: KeyPath, written: object) -> str:
    key, name = dotted(path), PREFIX + "__".join(map(str, path)).upper()
    word = {True: "on", False: "off"}[written] if isinstance(written, bool) else written
    *above, line = (*path[:-1], without_secrets(f"{path[-1]}: {word}"))
    return f"`{dotted((*above, line))}` has no effect: `--set {key}`, or `{name}`, of `tandem up` holds this key"


def without_keys(environment: Mapping[str, str], flags: Sequence[str], document: Tree) -> dict[str, str]:
    """The environment without the variables that carry the API keys and a hub's token, whoever names them: they are no
    overrides, and are never looked at."""
    named: list[object] = []
    for section, key in (("keys", "variable"), ("downloads", "token_variable")):
        written = document.plain().get(section)
        named += [
            *(flag.removeprefix(f"{section}.{key}=") for flag in flags),
            environment.get(f"TANDEM_{section}__{key}".upper()),
            written.get(key) if isinstance(written, dict) else None,
        ]
    return {name: value for name, value in environment.items() if name not in named}


def as_variables(flags: Sequence[str]) -> dict[str, str]:
    """`--set` flags as the variables that say the same, so that a process started later can be told."""
    pairs = (flag.partition("=")[::2] for flag in flags)
    return {PREFIX + name.strip().replace(".", "__").upper(): value for name, value in pairs}
