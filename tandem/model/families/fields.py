"""`config.json` of a checkpoint, read field by field; a field that is missing or odd is named with its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tandem.model.weights.safetensors import WrongWeights


class Fields:
    """One object of the document. `path` is where it lies in it, empty for the whole."""

    def __init__(self, file: Path, values: dict[str, Any], path: str = "") -> None:
        self.file = file
        self.values = values
        self._path = path

    def at(self, key: str) -> Fields:
        """The object under `key`; the same object when there is none, as in checkpoints of text alone."""
        inner = self.values.get(key)
        return Fields(self.file, inner, f"{self._path}{key}.") if isinstance(inner, dict) else self

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number, at least 1."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a whole number, at least 1")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.wrong(key, "a number above 0")
        return float(value)

    def word(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a word")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def list_of(self, key: str, kind: type, default: list[Any] | None = None) -> list[Any]:
        value = self._value(key, default)
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise self.wrong(key, f"a list of {'words' if kind is str else 'numbers'}")
        return value

    def token(self, key: str) -> int | None:
        """A token id; the first of several."""
        value = self.values.get(key)
        if isinstance(value, list):
            value = value[0] if value else None
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise self.wrong(key, "a token id")
        return value

    def wrong(self, key: str, wanted: str) -> WrongWeights:
        found = f"is {self.values[key]!r}" if key in self.values else "is missing"
        return WrongWeights(
            f"{self.file}: `{self._path}{key}` {found}; it should be {wanted}", "fetch config.json of this model again"
        )

    def refuse(self, what: str) -> WrongWeights:
        return WrongWeights(
            f"{self.file} describes a model that cannot be read: {what}",
            "choose another model, or fetch config.json again if this one should be another",
        )

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        return default if value is None else value
