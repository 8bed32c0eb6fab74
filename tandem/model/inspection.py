"""What a checkpoint holds and costs, from its headers alone. No weights are read and no torch is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tandem.model.families.architecture import Architecture, Kind, read_architecture, with_mtp
from tandem.model.families.fields import Fields
from tandem.model.families.header import architecture_of, read_header
from tandem.model.weights import blockscaled
from tandem.model.weights.gguf import GgufFile
from tandem.model.weights.safetensors import CONFIG, Entry, WrongWeights, read_config, read_directory

ELEMENT: Final = 2  # bytes of a number in KV rows, index keys and tails: bfloat16

HEAD: Final = "head"
EMBEDDING: Final = "embedding"
EXPERTS: Final = "routed experts"
ON_DISK: Final = "n-gram tables (stay on disk)"
AHEAD: Final = "head that guesses ahead (when it drafts)"
UNREAD: Final = "not read: pictures"

_GROUPS: Final = (
    ((".model.visual.",), UNREAD),
    ((".mtp.",), AHEAD),
    ((".ngram_embedding.",), ON_DISK),
    ((".embed_tokens.", ".token_embd."), EMBEDDING),
    ((".lm_head.", ".output.weight"), HEAD),
    ((".experts.",), EXPERTS),
    ((".self_attn.", ".attn_q.", ".attn_k.", ".attn_v.", ".attn_output."), "attention"),
    ((".linear_attn.",), "linear attention"),
    ((".mlp.", ".ffn_gate.", ".ffn_up.", ".ffn_down."), "feed-forward"),
    ((".attn_hyper_", ".mlp_hyper_", ".hyper_connection_mixer."), "hyper-connections"),
    ((".ple.",), "n-gram memories"),
)
_OTHERS: Final = "norms and others"
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


@dataclass(frozen=True, slots=True)
class Ahead:
    """What drafting with the model's own head takes beside the model."""

    resident_bytes: int
    bytes_a_token: int
    fixed_bytes: int  # of one sequence's state


@dataclass(frozen=True, slots=True)
class KvRows:
    """What a token's rows are made of, in a profile's words."""

    layers: int  # that keep rows
    heads: int
    head_dim: int
    indexer_key: int = 0

    @property
    def bytes_a_layer(self) -> int:
        return (2 * self.heads * self.head_dim + self.indexer_key) * ELEMENT

    @property
    def bytes_a_token(self) -> int:
        return self.layers * self.bytes_a_layer

    def __str__(self) -> str:
        """As a profile has it."""
        key = f", indexer_key: {self.indexer_key}" if self.indexer_key else ""
        return f"kv: {{layers: {self.layers}, heads: {self.heads}, head_dim: {self.head_dim}{key}}}"


@dataclass(frozen=True, slots=True)
class Inspection:
    family: str
    layers: dict[str, int]  # by kind
    vocab: int
    window: int
    bytes_a_token: int
    fixed_bytes: int  # of one sequence's state, at any length
    formats: dict[str, int]  # bytes by format
    groups: dict[str, int]  # bytes by what they are for
    step_bytes: int  # weights that decoding one row reads
    kv: KvRows
    ahead: Ahead | None = None  # a head that can be read

    @property
    def resident_bytes(self) -> int:
        """Weights in memory when they are served as they are stored, without a head that guesses ahead."""
        return sum(size for group, size in self.groups.items() if group not in (ON_DISK, UNREAD, AHEAD))

    def takes(self, rows: KvRows) -> bool:
        """Whether these rows are of the model's size. A head that guesses ahead may be counted as one more layer."""
        most = self.bytes_a_token + (self.kv.bytes_a_layer if AHEAD in self.groups else 0)
        return self.bytes_a_token <= rows.bytes_a_token <= most

    def sequence_bytes(self, rows: int) -> int:
        """What one sequence of `rows` tokens takes."""
        return rows * self.bytes_a_token + self.fixed_bytes


def inspect(path: Path) -> Inspection:
    """A checkpoint directory or a GGUF file. Raises `CannotStart` for one that is damaged or not known."""
    return _inspect_directory(path) if path.is_dir() else _inspect_gguf(path)


def family_of(path: Path) -> str:
    """The family alone, as `inspect` names it, from one header. Raises `CannotStart` as `inspect` does."""
    if path.is_dir():
        return read_architecture(Fields(path / CONFIG, read_config(path))).family
    with GgufFile(path) as file:
        return architecture_of(file)


def wrong_family(path: Path, declared: str, found: str) -> tuple[str, str]:
    """What is wrong with a profile that names another family than its weights have, and what to do."""
    return (
        f"the profile says `family: {declared}`, and {path} holds a model of the family `{found}`",
        f"write `family: {found}` in the profile, or name the weights of a `{declared}` model",
    )


def window_too_long(path: Path | str, declared: int, trained: int) -> tuple[str, str]:
    """The same of a window of more rows than the model knows positions."""
    return (
        f"the profile declares a window of {declared:,} rows; the model in {path} has {trained:,}",
        f"write `window: {trained}` or less in the profile, and `serving.side_window` no larger",
    )


def wrong_rows(path: Path, declared: KvRows, seen: Inspection) -> tuple[str, str]:
    """The same of rows of another size than the model's."""
    return (
        f"the profile says that a token's rows take {declared.bytes_a_token:,} bytes; the model in {path} takes "
        f"{seen.bytes_a_token:,} (of {ELEMENT} bytes a number, without drafters)",
        f"write `{seen.kv}` in the profile",
    )


def _inspect_directory(directory: Path) -> Inspection:
    fields = Fields(directory / CONFIG, read_config(directory))
    architecture = read_architecture(fields)
    groups, formats = _sums(_tensors(read_directory(directory)))
    experts, attention = architecture.experts, architecture.attention
    index = architecture.index.dim if architecture.index else 0
    layers = sum(kind is not Kind.LINEAR for kind in architecture.kinds)
    return Inspection(
        family=architecture.family,
        layers=dict(Counter(kind.value for kind in architecture.kinds)),
        vocab=architecture.model.vocab,
        window=architecture.model.window,
        bytes_a_token=architecture.bytes_a_token(ELEMENT),
        fixed_bytes=architecture.fixed_bytes(ELEMENT),
        formats=formats,
        groups=groups,
        step_bytes=_step_bytes(groups, architecture.tied, experts.chosen / experts.experts if experts else 1.0),
        kv=KvRows(layers, attention.kv_heads, attention.head_dim, index),
        ahead=_ahead(architecture, fields, groups.get(AHEAD)),
    )


def _ahead(architecture: Architecture, fields: Fields, size: int | None) -> Ahead | None:
    """None as well for a head of a form that is not read; a model is served without it."""
    try:
        headed = with_mtp(architecture, fields)
    except WrongWeights:
        return None
    if size is None or not headed.mtp:
        return None
    return Ahead(
        size,
        headed.bytes_a_token(ELEMENT) - architecture.bytes_a_token(ELEMENT),
        headed.fixed_bytes(ELEMENT) - architecture.fixed_bytes(ELEMENT),
    )


def _inspect_gguf(path: Path) -> Inspection:
    with GgufFile(path) as file:
        _, config = read_header(file)
        tensors = [(each.name, each.kind.name, each.size) for each in file.tensors.values()]
        family = file.architecture
    groups, formats = _sums(iter(tensors))
    rows = KvRows(config.layers, config.kv_heads, config.head_dim)
    return Inspection(
        family=family,
        layers={Kind.FULL.value: config.layers},
        vocab=config.vocab,
        window=config.window,
        bytes_a_token=rows.bytes_a_token,
        fixed_bytes=0,
        formats=formats,
        groups=groups,
        step_bytes=_step_bytes(groups, HEAD not in groups, 1.0),
        kv=rows,
    )


def _tensors(entries: dict[str, Entry]) -> Iterator[tuple[str, str, int]]:
    """Name, format and bytes. Scales count with the format of the values they belong to."""
    owned: dict[str, str] = {}
    for name in entries:
        weight = name.removesuffix("_packed")
        if weight.endswith(".weight") and (found := blockscaled.recognise(weight, entries)) is not None:
            for entry in found.entries:
                owned[entry.name] = found.format
    for entry in entries.values():
        yield entry.name, owned.get(entry.name, entry.dtype), entry.bytes


def _sums(tensors: Iterator[tuple[str, str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes by group and by format, largest first."""
    groups: Counter[str] = Counter()
    formats: Counter[str] = Counter()
    for name, format, size in tensors:
        groups[_group(name.translate(_NO_DIGITS))] += size
        formats[format] += size
    return dict(groups.most_common()), dict(formats.most_common())


@lru_cache(maxsize=1024)
def _group(name: str) -> str:
    """Of a name without its numbers: layers and experts by the hundred thousand share a few."""
    for marks, group in _GROUPS:
        if any(mark in f".{name}" for mark in marks):
            return group
    return _OTHERS


def _step_bytes(groups: dict[str, int], tied: bool, share: float) -> int:
    """Of an embedding one row is read, unless it is the head too; of routed experts the share a row chooses."""
    skipped = {UNREAD, AHEAD, ON_DISK, EXPERTS} | (set() if tied else {EMBEDDING})
    return sum(size for group, size in groups.items() if group not in skipped) + round(groups.get(EXPERTS, 0) * share)
