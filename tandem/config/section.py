"""What every part of a document is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Rows = Annotated[int, Field(ge=1, le=16_777_216)]
Word = Annotated[str, Field(min_length=1, max_length=400)]
Device = Literal["cpu", "cuda"]


class Section(BaseModel):
    """A part of a document.

    `renamed` keeps explaining keys that people still write from elsewhere or earlier; `remark` is added to whatever is
    found wrong with the section.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
    renamed: ClassVar[Mapping[str, str]] = {}
    remark: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _empty(cls, value: object) -> object:
        """`slots:` with every line below it commented out is an empty section, not a mistake."""
        return {} if value is None else value


class Switched(Section):
    """A section that may be written as `off`, which is short for `enabled: off`."""

    @model_validator(mode="before")
    @classmethod
    def _switch(cls, value: object) -> object:
        return {"enabled": value} if isinstance(value, bool) else value

    def over(self, below: Self) -> Self:
        """What this one says and, where it says nothing, what `below` says."""
        said: dict[str, Any] = {}
        for name in type(self).model_fields:
            mine, its = getattr(self, name), getattr(below, name)
            said[name] = mine.over(its) if isinstance(mine, Switched) else its if mine is None else mine
        return type(self).model_construct(**said)
