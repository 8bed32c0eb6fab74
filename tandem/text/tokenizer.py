"""Text to token ids, and each id's bytes.

Control tokens (`<|im_start|>`) are found by this module, never by the byte-pair code: `encode` reads none, so a
user who types one gets its characters; `encode_with_controls` reads those that no mark breaks (see `guard`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as BytePairs

from tandem.errors import CannotStart
from tandem.text.vocabulary import TokenKind, Vocabulary

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


# `tokenizer.ggml.pre` -> how text is cut before merging. Each model was trained with its own; a wrong one still
# yields ids, only worse ones, so an unknown name is refused.
_CUTS: Final = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": _split(_LLAMA3),
    "qwen2": _split(_QWEN2),
}
_COMPOSED: Final = frozenset({"qwen2"})  # text is brought to Unicode's composed form first


class Tokenizer:
    """Thread-safe: nothing changes after construction."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises `CannotStart` when the vocabulary names a cut that is not known here, or merges what is not in it."""
        self.vocabulary = vocabulary
        self.num_tokens = len(vocabulary.tokens)
        ids = {token: id for id, token in enumerate(vocabulary.tokens)}
        self._pairs = _byte_pairs(vocabulary, ids)
        self._controls = {token: ids[token] for token in _control_texts(vocabulary)}
        longest_first = sorted(self._controls, key=len, reverse=True)
        self._longest_control = len(longest_first[0]) if longest_first else 0
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._control_start = re.compile(f"(?={self._control.pattern})")
        self._prefixes = frozenset(text[:size] for text in longest_first for size in range(1, len(text)))
        self.bytes_of = tuple(map(_bytes_of, vocabulary.tokens, vocabulary.kinds))
        self._most_characters = max(map(len, vocabulary.tokens), default=1) * (4 if self._pairs.normalizer else 1)

    def controls(self, texts: Iterable[str]) -> dict[int, bytes]:
        """Those of the texts that are one control token each: its id and bytes."""
        return {self._controls[text]: text.encode() for text in texts if text in self._controls}

    def least_tokens(self, text: str) -> int:
        """A lower bound of the text's ids, for nothing: no token stands for more characters than the longest one
        (composing turns up to four into one). Megabytes that cannot fit need not be read to be refused."""
        return -(-len(text) // self._most_characters)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; a control token in it is only characters."""
        return self._pairs.encode(text, add_special_tokens=False).ids

    def encode_with_controls(self, text: str, mark: str = "") -> list[int]:
        """Ids of a rendered template, or of a raw prompt whose writer may steer the model. Marks are taken out."""
        return self.encode_with_places(text, (), mark)[0]

    def encode_with_places(self, text: str, places: Sequence[int], mark: str = "") -> tuple[list[int], list[int]]:
        """As `encode_with_controls`; also, for each character index in `places`, how many ids lie wholly before it."""
        ids: list[int] = []
        counts = [0] * len(places)
        for start, piece, control in self._pieces(text):
            end = start + len(piece)
            if control is not None:
                new, ends = [control], [end]
            else:
                new, ends = self._plain(piece, mark, start, wanted=any(start < place < end for place in places))
            for which, place in enumerate(places):
                if place >= end:
                    counts[which] = len(ids) + len(new)
                elif place > start:
                    counts[which] = len(ids) + sum(at <= place for at in ends)
            ids += new
        return ids, counts

    def guard(self, text: str, mark: str) -> str:
        """Break every control token in `text` with `mark`, and a beginning of one at its end.

        Whatever a template puts beside or around the result, no control token of the user's making can appear in it;
        a text without any comes back as it was, so that templates which look at contents see what they expect.
        """
        starts = [found.start() + 1 for found in self._control_start.finditer(text)]
        broken = mark.join(text[start:end] for start, end in pairwise((0, *starts, len(text))))
        ends_open = any(broken[-size:] in self._prefixes for size in range(1, self._longest_control))
        return broken + mark if ends_open else broken

    def _pieces(self, text: str) -> Iterator[tuple[int, str, int | None]]:
        """Start, text and, when it is one, the id of each control token and each stretch between them."""
        at = 0
        for found in self._control.finditer(text):
            if found.start() > at:
                yield at, text[at : found.start()], None
            yield found.start(), found[0], self._controls[found[0]]
            at = found.end()
        if at < len(text):
            yield at, text[at:], None

    def _plain(self, piece: str, mark: str, start: int, wanted: bool) -> tuple[list[int], list[int]]:
        """Ids of a stretch without its marks and, when wanted, where each ends in the marked text."""
        if not wanted:
            return self.encode(piece.replace(mark, "") if mark else piece), []
        kept = [at for at, character in enumerate(piece) if character != mark]
        encoded = self._pairs.encode("".join(piece[at] for at in kept), add_special_tokens=False)
        return encoded.ids, [start + kept[end - 1] + 1 for _, end in encoded.offsets]


def _byte_pairs(vocabulary: Vocabulary, ids: dict[str, int]) -> BytePairs:
    if vocabulary.pairs is not None:
        try:
            return BytePairs.from_str(vocabulary.pairs)
        except Exception as error:  # the library raises nothing narrower
            raise CannotStart(f"the model's tokenizer.json cannot be used: {error}", "fetch it again") from error
    if vocabulary.pre not in _CUTS:
        raise CannotStart(f"the model's pre-tokenizer `{vocabulary.pre}` is unknown; known: {', '.join(_CUTS)}")
    pairs = BytePairs(models.BPE(vocab=ids, merges=list(vocabulary.merges)))
    pairs.pre_tokenizer = _CUTS[vocabulary.pre]
    if vocabulary.pre in _COMPOSED:
        pairs.normalizer = normalizers.NFC()
    return pairs


def _control_texts(vocabulary: Vocabulary) -> list[str]:
    """Tokens that stand for themselves and are never the result of merging. One character cannot be broken by a
    mark, so a token of one is left to the ordinary code."""
    return [
        token
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
        if kind in (TokenKind.CONTROL, TokenKind.USER_DEFINED) and len(token) > 1
    ]


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable stand-ins for bytes: printable Latin-1 stands for itself, the rest follow from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {0x100 + n: byte for n, byte in enumerate(others)}


_STAND_INS: Final = _byte_alphabet()


def _bytes_of(token: str, kind: int) -> bytes:
    """What a reader sees of one token: nothing of a control token."""
    if kind in (TokenKind.CONTROL, TokenKind.UNUSED):
        return b""
    shown = token.translate(_STAND_INS)
    is_in_alphabet = kind != TokenKind.USER_DEFINED and max(shown, default="") <= "\xff"
    return shown.encode("latin-1") if is_in_alphabet else token.encode()
