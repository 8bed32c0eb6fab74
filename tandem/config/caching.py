"""The section `caches`: what is kept of conversations so that it need not be read twice."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tandem.config.quantities import Size, Time
from tandem.config.section import Section, Switched
from tandem.units import Bytes, Duration


class DiskCache(Switched):
    """Conversations on disk: they outlive a restart, and hold more than memory does."""

    renamed = {"path": "it lies in `cache` under the `state` directory", "max_size": "it is `size`"}
    enabled: bool = Field(
        default=True,
        description="Write what conversations leave in the slots behind their answers. The files hold token ids and "
        "what the model made of them, for the owner of the directory alone. `disk: off` is short for it.",
    )
    size: Annotated[Size, Field(ge=1 << 20)] = Field(
        default=Bytes(4 << 30), description="What the files may take; those used longest ago go first."
    )
    max_age: Annotated[Time, Field(ge=60)] = Field(
        default=Duration(7 * 86400.0), description="Files that nobody used for this long are deleted."
    )


class Caches(Section):
    """What is kept of conversations, so that nothing is read twice. None of it changes what is written."""

    renamed = {
        "store": "`memory` is for heads, conversations moved aside, stashes and pins together",
        "park": "`memory` is for heads, conversations moved aside, stashes and pins together",
        "prefix_cache": "a slot's own rows are always used again; `memory` and `disk` are for what left the slots",
    }
    memory: Size | None = Field(
        default=None,
        description="Copies in memory: shared heads, conversations moved aside, rows put aside for a guest. Default: "
        "what the residency document's peak for this engine leaves over its parts, else 256 MiB.",
    )
    disk: DiskCache = Field(default=DiskCache(), description="Conversations on disk.")
