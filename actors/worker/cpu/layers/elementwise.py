"""What is done with each number for itself: rotations, and the MLP's activation; each in two ways.

torch computes most of a tensor in vectors and what is left over in single numbers, and cuts a large one into parts for
its threads. Where the two ways round otherwise (silu, products of complex numbers), a number's last bit depends on how
much stands beside it. Those whose names begin with `exact`, and `rotate_by_rows`, are those in which it does not.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ....model.shapes import ClampedGate

GRAIN = 32768  # numbers of which torch gives parts to several threads


def rotate(heads: Tensor, rotations: Tensor) -> None:
    """Rotate pairs of numbers of `heads` [tokens, heads, head_dim] by `rotations` [tokens, 1, head_dim / 2]."""
    if heads.dtype == torch.float32:
        torch.view_as_complex(heads.view(*heads.shape[:2], -1, 2)).mul_(rotations)
    else:
        exact = heads.float()
        rotate(exact, rotations)
        heads.copy_(exact)


def rotate_by_rows(heads: Tensor, rotations: Tensor) -> None:
    """The same; never so much at once that a head would be cut."""
    if heads.dtype != torch.float32:
        exact = heads.float()
        rotate_by_rows(exact, rotations)
        heads.copy_(exact)
        return
    tokens = max(1, (GRAIN - 1) * 2 // heads[0].numel())
    for some, turns in zip(heads.split(tokens), rotations.split(tokens), strict=True):
        rotate(some, turns)


def exact_silu(x: Tensor) -> Tensor:
    """x / (1 + exp(-x)) in float32, rounded once.

    exp has the same bits in a vector and at its end, and for all the rest IEEE 754 has one result.
    """
    exact = x.float()
    divisor = exact.neg().exp_().add_(1)
    return torch.div(exact, divisor, out=divisor).to(x.dtype)


def exact_sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) in float32, rounded once; as exact as exact_silu."""
    return x.float().neg().exp_().add_(1).reciprocal_().to(x.dtype)


def clamped_swiglu(gate: Tensor, up: Tensor, numbers: ClampedGate) -> Tensor:
    """g / (1 + exp(-alpha · g)) · (u + 1) of g up to the limit and u within it, in float32, rounded once; as exact."""
    exact = gate.float().clamp(max=numbers.limit)
    divisor = exact.mul(-numbers.alpha).exp_().add_(1)
    more = up.float().clamp(-numbers.limit, numbers.limit).add_(1)
    return exact.div_(divisor).mul_(more).to(gate.dtype)


def gelu_tanh(x: Tensor) -> Tensor:
    """x · Φ(x), Φ by its approximation with tanh."""
    return F.gelu(x, approximate="tanh")


def exact_gelu_tanh(x: Tensor) -> Tensor:
    """The same as x / (1 + exp(-2u)), u = √(2/π) · (x + 0.044715 · x³), in float32, rounded once."""
    exact = x.float()
    twice = exact.mul(exact).mul_(exact).mul_(0.044715).add_(exact).mul_(-2 * math.sqrt(2 / math.pi))
    return exact.div(twice.exp_().add_(1)).to(x.dtype)


def soft_cap(x: Tensor, cap: float) -> None:
    """x becomes cap · tanh(x / cap)."""
    x.div_(cap).tanh_().mul_(cap)


def exact_soft_cap(x: Tensor, cap: float) -> None:
    """The same as cap - 2 · cap / (exp(2x / cap) + 1)."""
    x.mul_(2 / cap).exp_().add_(1).reciprocal_().mul_(-2 * cap).add_(cap)
