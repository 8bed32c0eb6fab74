"""The ways in which one file of weights is read: as it is served, in torch's computes, and in float32, which the
others are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from bench.machine import PROJECT
from tandem.config import load as load_documents
from tandem.contract.plan import EnginePlan
from tandem.memory.reading import read_box
from tandem.model import Block, Model, Wants, load
from tandem.model.native.model import NativeModel
from tandem.model.native.step import NativeStep
from tandem.model.weights.quant import Compute
from tandem.planner.compile import compile_plan

REFERENCE: Final = "float32"


def served_engine(settings: Sequence[str] = ()) -> EnginePlan:
    """What `tandem up` would serve here, with `--set` values."""
    return compile_plan(load_documents(PROJECT / "appliance.yaml", settings), read_box()).engine


@dataclass(frozen=True, slots=True)
class Reader:
    """A model, and what holds while it runs."""

    name: str
    model: Model
    chunk: int
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def window(self, tokens: Sequence[int]) -> Tensor:
        """Logits [len(tokens), vocab] behind each of them, read as a prompt: chunk after chunk, from nothing."""
        ids, state = torch.tensor(tokens), self.model.new_state(len(tokens))
        with self.around():
            logits = [
                self.model.forward([Block(ids[start : start + self.chunk], start, state, Wants.ALL)])
                for start in range(0, len(tokens), self.chunk)
            ]
        return torch.cat(logits)

    def answer(self, tokens: Sequence[int], prompt: int) -> Iterator[Tensor]:
        """Logits [1, vocab] after the first `prompt` tokens, read in chunks, and after each that follows but the last,
        row by row, as an answer is written."""
        ids, state = torch.tensor(tokens), self.model.new_state(len(tokens))
        with self.around():
            for start in range(0, prompt, self.chunk):
                end = min(start + self.chunk, prompt)
                logits = self.model.forward([Block(ids[start:end], start, state, Wants.LAST)])
            yield logits
            for at in range(prompt, len(tokens) - 1):
                yield self.model.forward([Block(ids[at : at + 1], at, state)])


class RoundedKv(TorchFunctionMode):
    """Keys and values have 16 bits when attention looks at them; everything else stays as it is."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is functional.scaled_dot_product_attention:
            queries, keys, values, *rest = args
            args = (queries, keys.bfloat16().float(), values.bfloat16().float(), *rest)
        return function(*args, **kwargs or {})


def open_readers(engine: EnginePlan, tell: Callable[[str], None]) -> list[Reader]:
    """float32 first, which every other is held against; then what is served, then torch's computes."""
    weights, threads, chunk = Path(engine.weights), engine.threads, engine.chunk
    tell(f"loading {weights.name} in float32")
    reference = load(weights, Compute.FLOAT32, threads)
    readers = [Reader(REFERENCE, reference, chunk), Reader("float32, KV bfloat16", reference, chunk, RoundedKv)]
    tell(f"loading {weights.name} as it is served")
    served = load(weights, engine.compute, threads)
    is_native = isinstance(served, NativeModel)
    readers.insert(1, Reader(f"served: {engine.compute}{', native step' if is_native else ''}", served, chunk))
    for compute in _others(engine.compute, is_native):
        tell(f"loading {weights.name} in torch's {compute}")
        with _torch_only():
            readers.append(Reader(f"torch {compute}", load(weights, compute, threads), chunk))
    return readers


def _others(served: str, is_native: bool) -> Iterable[Compute]:
    """Torch's, but for one that is what is served already."""
    return [each for each in Compute if each is not Compute.FLOAT32 and (is_native or each != served)]


@contextmanager
def _torch_only() -> Iterator[None]:
    with patch.object(NativeStep, "pays", staticmethod(lambda: False)):
        yield
