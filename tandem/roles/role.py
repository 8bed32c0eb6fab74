"""What a role's process needs of the role."""

from __future__ import annotations

from typing import Protocol

from tandem.contract.messages import AskDecider, Decided, Narrate, Narrated, Observe, Undecided

Ask = AskDecider | Narrate | Observe
Reply = Decided | Narrated | Undecided


class Role(Protocol):
    """Belongs to the model's thread."""

    @property
    def takes(self) -> type[Ask]:
        """The one message that it answers."""
        ...

    def perform(self, ask: Ask, until: float) -> Reply | None:
        """The answer, if there is to be one; it should be there by `until` (monotonic)."""
        ...

    def warm_up(self) -> None:
        """One whole piece of work: what `ready` means. Raises what stands in the way of it."""
        ...
