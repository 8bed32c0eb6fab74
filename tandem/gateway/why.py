"""Why a conversation was read again, for whoever runs the appliance: with the text around the place where it parts.

Kept in memory only, of the last requests: neither the ledger nor a log ever holds a text.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from tandem.contract.messages import Missed
from tandem.text.detokenize import decode
from tandem.text.tokenizer import Tokenizer

KEPT: Final = 256  # requests


class Misses:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._missed: OrderedDict[str, Missed] = OrderedDict()  # by the id that clients see, oldest first

    def note(self, id: str, missed: Missed) -> None:
        self._missed[id] = missed
        while len(self._missed) > KEPT:
            self._missed.popitem(last=False)

    def tell(self, id: str) -> tuple[str, ...]:
        """Lines for people; none when there is nothing to tell, or it was too long ago."""
        missed = self._missed.get(id)
        if missed is None or not missed.of:
            return ()
        return (f"this prompt: {self._quoted(missed.ours)}", f"what it held: {self._quoted(missed.theirs)}")

    def _quoted(self, tokens: tuple[int, ...]) -> str:
        return repr(decode(self._tokenizer, tokens)) if tokens else "(it ends there)"
