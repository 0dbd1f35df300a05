"""Products with weights of 8 bits by int8.c, which has the formula."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from .library import Library

MOST_INPUTS = 1 << 16  # whose sums fit 32 bits


class _Product(ctypes.Structure):
    """int8.c's int8_product."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "weight", "scale", "offset", "bias", "out", "bytes", "step")),
        *((name, ctypes.c_int64) for name in ("rows", "inputs", "stride", "outputs")),
        *((name, ctypes.c_int32) for name in ("steps", "add")),
    )


class Int8Product:
    """y = x Wᵀ + b of float32 x."""

    def __init__(self, library: Library, weight: Tensor, scales: Tensor, inputs: int, steps: int, bias: Tensor | None):
        """`weight` int8 [outputs, stride], zeros behind `inputs`; `scales` float32 [outputs]; `steps` that x takes."""
        outputs, stride = weight.shape
        assert stride % stride_of(library, 1) == 0 and weight.is_contiguous() and inputs <= MOST_INPUTS
        self.library = library
        self.call = library.function("int8_linear", ctypes.c_void_p, ctypes.POINTER(_Product))
        offset = (weight.sum(1, dtype=torch.int32) * library.number("int8_offset")).int()
        self.kept = [weight, scales.float().contiguous(), offset, None if bias is None else bias.float().contiguous()]
        weight_at, scale_at, offset_at, bias_at = (None if one is None else one.data_ptr() for one in self.kept)
        self.outputs, self.inputs, self.stride = outputs, inputs, stride
        self.product = _Product(
            None, weight_at, scale_at, offset_at, bias_at, None, None, None, 0, inputs, stride, outputs, steps, 0
        )
        self.where = ctypes.byref(self.product)

    def __call__(self, x: Tensor) -> Tensor:
        out = x.new_empty(len(x), self.outputs)
        self._run(x, out, 0)
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y; it is contiguous."""
        self._run(x, residual, 1)

    def _run(self, x: Tensor, out: Tensor, add: int) -> None:
        x = x.contiguous()
        product, rows = self.product, len(x)
        product.x, product.out, product.rows, product.add = x.data_ptr(), out.data_ptr(), rows, add
        product.bytes = self.library.scratch(rows * (self.stride + 4))
        product.step = product.bytes + rows * self.stride
        self.call(self.library.pool, self.where)


def stride_of(library: Library, inputs: int) -> int:
    """Bytes that a row of weights takes."""
    unit = library.number("int8_vector")
    return -(-inputs // unit) * unit
