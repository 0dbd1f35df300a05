"""Products with a weight in which a row has the same bits whatever stands beside it (`--deterministic`).

Libraries choose by the number of rows how a product is blocked, and with that in which order a sum is made. So rows are
multiplied in tiles of a few sizes only, the last one filled up with zeros, and of these sizes only such are used as
have the same order of sums. Which ones have it, is found out at load, for each shape of a weight, with the threads that
will be used. Of one row alone no library is asked that much: it is the same call for all.

Measured (oneDNN 3.12, AVX-512 and AMX, weights of 512 x 256 to 8192 x 256, 1 to 3 threads): in float32 and float16 all
numbers of rows agree but 1, in bfloat16 those up to 32. torch's plain products agree for hardly any two.
One thread of 512 rows, 6144 x 1024, ms: at once 37 (float32) and 5.0 (bfloat16), in tiles of 64 41 and 6.7, of 32 46
and 10, of 16 56 and 19.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ..torch_import import generator
from .layers.linear import PackedLinear

SIZES = (4, 8, 16, 32, 64)  # of tiles
Product = Callable[[Tensor], Tensor]
_agreeing: dict[tuple[object, ...], tuple[int, ...]] = {}  # sizes, by what they depend on


class BatchInvariantLinear:
    """y = x Wᵀ + b."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        if PackedLinear.works(weight.dtype):
            self.product: Product = PackedLinear(weight, bias)
        else:
            self.product = partial(F.linear, weight=weight, bias=bias)
        kind = (*weight.shape, weight.dtype, bias is None, torch.get_num_threads())
        if kind not in _agreeing:
            _agreeing[kind] = agreeing_sizes(self.product, weight)
        self.sizes = _agreeing[kind]

    def __call__(self, x: Tensor) -> Tensor:
        return in_tiles(self.product, x, self.sizes)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        residual.add_(self(x))


def in_tiles(product: Product, x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """product(x), called with so many rows only as are in `sizes` (ascending)."""
    if len(x) in sizes:
        return product(x)
    parts, first = [], 0
    while first < len(x):
        left = len(x) - first
        size = next((size for size in sizes if size >= left), sizes[-1])
        part = x[first : first + size]
        parts.append(product(part) if size <= left else product(F.pad(part, (0, 0, 0, size - left)))[:left])
        first += size
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def agreeing_sizes(product: Product, weight: Tensor) -> tuple[int, ...]:
    """Those of SIZES with which a row has the same bits, in whatever place of a tile it stands; only 1 if none has."""
    rows = revealing_rows(weight, SIZES[-1])
    expected = in_tiles(product, rows, SIZES[:1])
    moved = in_tiles(product, rows.roll(1, 0), SIZES[:1]).roll(-1, 0)
    if not torch.equal(moved, expected):
        return (1,)
    return tuple(size for size in SIZES if torch.equal(in_tiles(product, rows, (size,)), expected))


def revealing_rows(weight: Tensor, count: int) -> Tensor:
    """Rows whose products with a row of `weight` each are sums of a, -a, b, -b … in random order.

    Nothing is left of them but what rounding makes, so that another order of the sums shows, in 16 bits as well.
    """
    outputs, inputs = weight.shape
    random = generator(outputs + inputs)
    rows = torch.zeros(count, inputs, dtype=weight.dtype)
    for row in rows:
        own = weight[int(torch.randint(outputs, (), generator=random))]
        ones, others = torch.randperm(inputs, generator=random)[: inputs // 2 * 2].view(2, -1).unbind()
        row[ones], row[others] = own[others], -own[ones]
    return rows
