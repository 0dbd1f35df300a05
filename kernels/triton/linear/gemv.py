"""Triton: y = x Wᵀ for up to 8 rows, where the bytes of W are all that counts, with what stands before and after it.

    y[r, n] = Σ_k x[r, k] · W[n, k] + b[n]                       sums in float32, rounded once
    norm      x[r, k] · gain[k] takes the place of x, and y is divided by sqrt(mean_k x² + eps): the norm before it
    gated     W has gate's rows, then up's:  y = g / (1 + exp(-g)) · u
    add       residual[r, n] += y[r, n], in place: the addition behind it

With these a layer needs no kernel for norms, gates and additions. A program makes a few outputs of all rows, by tensor
cores (W's tile times the rows', padded to 8). Where outputs are few, some programs share them: each takes a part of k
and leaves its sums, and who comes last adds them up in their order, so that no kernel has to follow and the result is
the same each time. A row's result does not depend on the other rows.

With `pdl` a kernel is started while the one before it ends, and waits for its results itself (Hopper and newer).
Compiled ahead of time and checked in the interpreter; not run on a GPU yet, so sizes are computed, not measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # an older triton: `programmatic_launch` says so, and nothing calls them
    gdc_launch_dependents = gdc_wait = None

MOST_ROWS = 8
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PRODUCTS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
MOST_SPLITS = 8
LEAST = 512  # of k, that a split is worth
INTERPRETED = bool(triton.knobs.runtime.interpret)


class GemvLaunch(NamedTuple):
    """How it is launched; tools/gpu_check times others. Outputs of gate and up count once."""

    tile_n: int = 32  # outputs of a program
    tile_k: int = 128
    warps: int = 4
    stages: int = 4
    waves: int = 2  # programs for each multiprocessor that splits are to make

    def splits(self, outputs: int, inputs: int, processors: int) -> int:
        """In how many parts of k to divide a product, so that there are programs for all processors."""
        programs = -(-outputs // self.tile_n)
        return max(1, min(self.waves * processors // programs, inputs // LEAST, MOST_SPLITS))


USUAL = GemvLaunch()
TABLE = {  # exact products take many registers: they are there for checks
    torch.float32: GemvLaunch(tile_n=16, tile_k=64, stages=2),
    torch.float16: USUAL,
    torch.bfloat16: USUAL,
}


class NormBefore(NamedTuple):
    """The root-mean-square norm of x; `x · gain` is rounded to x's type, so that this is no float16."""

    gain: Tensor  # [inputs]
    eps: float


class Workspace(NamedTuple):
    """Where splits leave their sums; products that run one after the other share it."""

    partial: Tensor  # float32
    tickets: Tensor  # int32, zeros before and after each product

    @classmethod
    def make(cls, outputs: int, device: torch.device | str) -> Workspace:
        """For products of up to so many outputs."""
        size = outputs + 256  # the last tile is filled up
        return cls(
            torch.empty(size * MOST_SPLITS * MOST_ROWS, device=device),
            torch.zeros(size // 16, dtype=torch.int32, device=device),
        )


def programmatic_launch(device: torch.device) -> bool:
    """Whether a kernel can be started while the one before it ends: by this triton, on this device."""
    from triton.backends.nvidia.compiler import CUDAOptions

    known = gdc_wait is not None and "launch_pdl" in CUDAOptions.__dataclass_fields__
    return known and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@triton.jit(do_not_specialize=["rows"])
def gemv_kernel(
    x, weight, bias, gain, out, partial, tickets, x_row, weight_row, out_row, rows, eps,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, PART: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, PRODUCT: tl.constexpr, BIASED: tl.constexpr, NORM: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """TILE_N outputs of all rows, of PART numbers of k."""
    tile, split = tl.program_id(0), tl.program_id(1)
    if PDL:
        gdc_wait()
    outputs = tile * TILE_N + tl.arange(0, TILE_N)
    row = tl.arange(0, ROWS)
    first = weight + outputs.to(tl.int64)[:, None] * weight_row
    second = first + OUTPUTS * weight_row.to(tl.int64) if GATED else first
    wanted = outputs < OUTPUTS
    total = tl.zeros([TILE_N, ROWS], tl.float32)
    other = tl.zeros([TILE_N, ROWS], tl.float32)
    squares = tl.zeros([ROWS, TILE_K], tl.float32)
    begin = split * PART
    for at in range(begin, tl.minimum(begin + PART, INPUTS), TILE_K):
        k = at + tl.arange(0, TILE_K)
        inside = k < INPUTS
        given = (row < rows)[:, None] & inside[None, :]
        values = tl.load(x + row[:, None] * x_row + k[None, :], mask=given, other=0.0)
        if NORM:
            exact = values.to(tl.float32)
            squares += exact * exact  # and gains once for each row, so that they are wide enough to be fetched ahead
            gains = tl.load(gain + (row * 0)[:, None] + k[None, :], mask=given, other=0.0)
            values = (exact * gains.to(tl.float32)).to(x.dtype.element_ty)
        values = tl.trans(values.to(PRODUCT))
        there = wanted[:, None] & inside[None, :]
        weights = tl.load(first + k[None, :], mask=there, other=0.0).to(PRODUCT)
        total = tl.dot(weights, values, total, input_precision="ieee")
        if GATED:
            weights = tl.load(second + k[None, :], mask=there, other=0.0).to(PRODUCT)
            other = tl.dot(weights, values, other, input_precision="ieee")
    if PDL:
        gdc_launch_dependents()
    if SPLITS > 1:
        place = partial + (tl.arange(0, TILE_N)[:, None] * ROWS + row[None, :])
        tl.store(place + (tile * SPLITS + split) * (TILE_N * ROWS), total)
        tl.debug_barrier()  # what all threads have stored, one of them releases
        if tl.atomic_add(tickets + tile, 1, sem="acq_rel", scope="gpu") < SPLITS - 1:
            return
        tl.store(tickets + tile, 0)
        total = tl.zeros([TILE_N, ROWS], tl.float32)
        for index in range(SPLITS):
            total += tl.load(place + (tile * SPLITS + index) * (TILE_N * ROWS), cache_modifier=".cg")
    if NORM:
        scale = 1.0 / tl.sqrt_rn(tl.sum(squares, 1) / INPUTS + eps)
        total = total * scale[None, :]
        other = other * scale[None, :]
    if BIASED:
        total += tl.load(bias + outputs, mask=wanted, other=0.0).to(tl.float32)[:, None]
        if GATED:
            other += tl.load(bias + OUTPUTS + outputs, mask=wanted, other=0.0).to(tl.float32)[:, None]
    if GATED:
        total = total / (1.0 + tl.exp(-total)) * other
    target = out + row[None, :] * out_row + outputs[:, None]
    inside = wanted[:, None] & (row < rows)[None, :]
    if ADD:
        total += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)


def gemv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: NormBefore | None = None,
    gated: bool = False,
    add: Tensor | None = None,
    workspace: Workspace | None = None,
    splits: int = 1,
    launch: GemvLaunch | None = None,
    pdl: bool = False,
) -> Tensor:
    """[rows, outputs], or `add` with that added to it.

    x          [rows, inputs], 1 to 8 rows of floats, which may lie apart
    weight     [outputs, inputs], of the same type; twice the outputs where it is gated
    bias       as many numbers as weight has rows
    add        [rows, outputs], of the same type, and not the memory of x
    workspace  for more splits than 1, which a product with a norm or a gate cannot have
    launch     in place of the table's; splits are to be its own
    pdl        if `programmatic_launch`
    """
    rows, inputs = _check(x, weight, bias, norm)
    outputs = weight.shape[0] // 2 if gated else weight.shape[0]
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device) if add is None else add
    if out.shape != (rows, outputs) or out.dtype != x.dtype or out.stride(1) != 1 or out.device != x.device:
        raise ValueError(f"add {out.dtype}{list(out.shape)} must be {x.dtype}{[rows, outputs]}")
    if splits > 1 and (norm is not None or gated or workspace is None or splits > MOST_SPLITS):
        raise ValueError(f"splits {splits}: up to {MOST_SPLITS}, with a workspace, and without norm and gate")
    launch = TABLE[x.dtype] if launch is None else launch
    tiles = triton.cdiv(outputs, launch.tile_n)
    partial, tickets = (out, out) if workspace is None else workspace
    if splits > 1 and (len(tickets) < tiles or len(partial) < tiles * splits * launch.tile_n * MOST_ROWS):
        raise ValueError(f"workspace of {len(partial)} and {len(tickets)} numbers for {outputs} outputs")
    product = tl.float32 if INTERPRETED else PRODUCTS[x.dtype]  # bfloat16 cannot be multiplied there
    gain, eps = (x, 0.0) if norm is None else norm
    gemv_kernel[tiles, splits](
        x, weight, x if bias is None else bias, gain, out, partial, tickets,
        x.stride(0), weight.stride(0), out.stride(0), rows, eps,
        OUTPUTS=outputs, INPUTS=inputs, PART=triton.cdiv(inputs, splits * launch.tile_k) * launch.tile_k,
        SPLITS=splits, ROWS=MOST_ROWS, TILE_N=launch.tile_n, TILE_K=launch.tile_k, PRODUCT=product,
        BIASED=bias is not None, NORM=norm is not None, GATED=gated, ADD=add is not None, PDL=pdl,
        num_warps=launch.warps, num_stages=launch.stages, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, norm: NormBefore | None) -> tuple[int, int]:
    """(rows, inputs)."""
    if x.dim() != 2 or not 0 < len(x) <= MOST_ROWS or x.dtype not in DTYPES or x.stride(1) != 1:
        raise ValueError(f"x {x.dtype}{list(x.shape)} must be floats [1 to {MOST_ROWS}, inputs], a row side by side")
    rows, inputs = x.shape
    if weight.dim() != 2 or weight.shape[1] != inputs or weight.dtype != x.dtype or weight.stride(1) != 1:
        raise ValueError(f"weight {weight.dtype}{list(weight.shape)} does not fit x {x.dtype}{list(x.shape)}")
    if norm is not None and x.dtype == torch.float16:
        raise ValueError("norm: x times its gain may be beyond what float16 holds")
    vectors = {"bias": (bias, len(weight)), "gain": (None if norm is None else norm.gain, inputs)}
    for name, (vector, size) in vectors.items():
        if vector is not None and (vector.shape != (size,) or vector.dtype not in DTYPES or vector.stride(0) != 1):
            raise ValueError(f"{name} {vector.dtype}{list(vector.shape)} must be {size} floats side by side")
    return rows, inputs
