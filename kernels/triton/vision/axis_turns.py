"""Triton: cosines and sines by which tokens turn that stand at three positions, as those of pictures do.

    angle = (positions[t] + shifts[t, axes[i]]) · frequencies[i]         of token t and pair i
    cos, sin = factor · cos(angle), factor · sin(angle)
positions[t] is where the token's keys lie, and its shifts say how much further on it is in time, height and width.
Models have the first pairs of a head turn by time and the last by width, or one after the other in turns; `axes` says
it. Formula: Wang et al. 2024, Qwen2-VL (M-RoPE).

Made once a step, by token, they stand in the place of tables by position (rotary_kv.py), in which a token's number is
its position. Angles are float32, as those of tables are; there is no bound to positions, since films are further apart
in time than their tokens are many. Compiled ahead of time and checked in the interpreter; not run on a GPU yet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...checked import once_for_each_form
from ..rotary_kv import RotaryTables

AXES = 3


class AxisTurns(NamedTuple):
    """How the pairs of a head turn."""

    axes: Tensor  # int32 [pairs]: by which of a token's positions
    frequencies: Tensor  # float32 [pairs]: the angle of one position
    factor: float = 1.0  # of cosines and sines


@triton.jit(do_not_specialize_on_alignment=["positions", "shifts"])  # they may be parts of a vector
def axis_turns_kernel(
    positions, shifts, axes, frequencies, cos, sin, factor, COUNT: tl.constexpr, PAIRS: tl.constexpr,
    AXES: tl.constexpr,
):  # fmt: skip
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)
    inside = pair < COUNT
    axis = tl.load(axes + pair, mask=inside, other=0)
    place = tl.load(positions + token) + tl.load(shifts + token * AXES + axis, mask=inside, other=0)
    angle = place.to(tl.float32) * tl.load(frequencies + pair, mask=inside, other=0.0)
    tl.store(cos + token * COUNT + pair, tl.cos(angle) * factor, mask=inside)
    tl.store(sin + token * COUNT + pair, tl.sin(angle) * factor, mask=inside)


def turn_by_axes(positions: Tensor, shifts: Tensor, turns: AxisTurns, out: RotaryTables) -> None:
    """Fill `out`.

    positions   int64 [tokens]
    shifts      int64 [tokens, 3], of time, height and width
    out         float32 [tokens, pairs]
    """
    _check(positions, shifts, turns.axes, turns.frequencies, out)
    tokens, count = out.cos.shape
    if tokens:
        pairs = triton.next_power_of_2(count)
        given = positions, shifts, turns.axes, turns.frequencies, *out, turns.factor
        axis_turns_kernel[(tokens,)](*given, COUNT=count, PAIRS=pairs, AXES=AXES, num_warps=1)


@once_for_each_form
def _check(positions: Tensor, shifts: Tensor, axes: Tensor, frequencies: Tensor, out: RotaryTables) -> None:
    tokens, pairs = out.cos.shape
    wanted = {"positions": (positions, torch.int64, (tokens,)), "shifts": (shifts, torch.int64, (tokens, AXES))}
    wanted |= {"axes": (axes, torch.int32, (pairs,)), "frequencies": (frequencies, torch.float32, (pairs,))}
    wanted |= {name: (table, torch.float32, (tokens, pairs)) for name, table in out._asdict().items()}
    for name, (tensor, dtype, shape) in wanted.items():
        fits = tensor.shape == shape and tensor.dtype == dtype and tensor.is_contiguous()
        if not fits or tensor.device != positions.device:
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} must be {dtype}{list(shape)}")
