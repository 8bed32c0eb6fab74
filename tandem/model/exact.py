"""Functions of single numbers whose bits depend on the number alone.

A library computes most of a tensor with vector code and what is left over at its end with scalar code; the two differ
in the last bit, and which of them a number meets depends on the rows beside it. Rows whose width is a multiple of a
vector meet the vector code only. Rows of one number a head do not: they are computed in float64 and rounded once.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def sigmoid(numbers: Tensor) -> Tensor:
    """float32, of any shape."""
    return numbers.double().sigmoid().float()


def softplus(numbers: Tensor) -> Tensor:
    result: Tensor = functional.softplus(numbers.double()).float()
    return result


def exp(numbers: Tensor) -> Tensor:
    return numbers.double().exp().float()
