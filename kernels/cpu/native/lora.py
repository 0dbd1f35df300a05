"""What LoRA adapters add to a product, by lora.c: for all adapters of a step in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from .library import Library
from .linear import SIDE, LinearData, Weights

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_int64


class _Part(ctypes.Structure):
    """lora.h's lora_part."""

    _fields_ = (("b", _POINTER), *((name, _NUMBER) for name in ("first", "ranks", "column", "outputs")))


class _Factors(ctypes.Structure):
    """lora.h's lora_factors."""

    _fields_ = (("a", LinearData), ("parts", _POINTER), ("count", _NUMBER))


class _Group(ctypes.Structure):
    """lora.h's lora_group."""

    _fields_ = (("first", _NUMBER), ("count", _NUMBER))


class _Step(ctypes.Structure):
    """lora.h's lora_step."""

    _fields_ = (
        ("groups", _POINTER),
        *((name, _NUMBER) for name in ("count", "rows")),
        *((name, _POINTER) for name in ("chosen", "places")),
        ("most_ranks", _NUMBER),
        *((name, _POINTER) for name in ("ready", "inner", "factors")),
    )


class _Product(ctypes.Structure):
    """lora.h's lora_product."""

    _fields_ = (
        *((name, _POINTER) for name in ("step", "factors")),
        *((name, _NUMBER) for name in ("inputs", "outputs")),
        ("out", _POINTER),
    )


class LoraFactors:
    """One adapter's for one product, which may be several linear layers side by side."""

    def __init__(self, a: Tensor, parts: Sequence[Tensor], keep: Callable[[Tensor], Tensor]) -> None:
        """`a` [ranks, inputs] of all layers; `parts` [outputs, rank] of each, which may have no ranks: B with its
        scale. `keep` gives a tensor of float32 the memory in which it stays."""
        self.inputs, self.outputs, self.ranks = a.shape[1], sum(map(len, parts)), len(a)
        self._a, self._parts, made = keep(a), [], []
        rank = column = 0
        for part in parts:
            outputs, ranks = part.shape
            if ranks:
                self._parts.append(keep(_sides(part)))
                made.append(_Part(self._parts[-1].data_ptr(), rank, ranks, column, outputs))
            rank, column = rank + ranks, column + outputs
        self._made = (_Part * len(made))(*made)
        stride = self.inputs * self._a.itemsize
        linear = LinearData(Weights.FLOAT_32, self.ranks, self.inputs, stride, self._a.data_ptr(), None, None, 0, 0)
        self._data = _Factors(linear, ctypes.addressof(self._made), len(made))
        self.address = ctypes.addressof(self._data)


def _sides(part: Tensor) -> Tensor:
    """B as lora.c has it: [blocks of SIDE outputs, ranks, SIDE]."""
    filled = torch.nn.functional.pad(part, (0, 0, 0, -len(part) % SIDE))
    return filled.view(-1, SIDE, part.shape[1]).transpose(1, 2).contiguous()


class LoraRows:
    """Which rows of a batch have which adapter."""

    def __init__(self, groups: Sequence[Ints], rows: int) -> None:
        """`groups`: the rows of each adapter, of so many."""
        self.rows, self.chosen = rows, np.concatenate(groups).astype(np.int64)
        self.places = np.full(rows, -1, np.int64)
        self.places[self.chosen] = np.arange(len(self.chosen))
        sizes = [len(group) for group in groups]
        firsts = np.cumsum([0, *sizes[:-1]]).tolist()
        self.groups = (_Group * len(groups))(*(_Group(*pair) for pair in zip(firsts, sizes, strict=True)))


class LoraAdded:
    """What adapters of such rows add to one product, or to all of layers that are computed as a whole."""

    def __init__(self, library: Library, rows: LoraRows, products: Sequence[Sequence[LoraFactors | None]]) -> None:
        """`products`: of each what each adapter has, one at least; of layers q k v, out, gate and up, down of each."""
        self.library, self._rows, self._products = library, rows, products  # whose memory is read
        each = [factors for product in products for factors in product]
        there = [factors for factors in each if factors is not None]
        ranks, self._inputs = max(one.ranks for one in there), max(one.inputs for one in there)
        count, of_row = len(rows.chosen), library.size("lora_row_bytes", _NUMBER)(self._inputs)
        self.size, self._inner = count * (of_row + 4 * ranks), count * of_row
        self._factors = (_POINTER * len(each))(*(None if one is None else one.address for one in each))
        groups, factors = ctypes.addressof(rows.groups), ctypes.addressof(self._factors)
        where = (rows.chosen.ctypes.data, rows.places.ctypes.data)
        self._step = _Step(groups, len(rows.groups), count, *where, ranks, None, None, factors)
        self._product = _Product(ctypes.addressof(self._step), factors, self._inputs, there[0].outputs, None)
        self._where = ctypes.byref(self._product)
        self._run = library.function("lora_run", _POINTER, ctypes.POINTER(_Product), _POINTER)

    def place(self, memory: int, rows: int) -> int:
        """lora.h's lora_step for a batch of so many rows, with `size` bytes of memory."""
        assert rows == self._rows.rows
        self._step.ready, self._step.inner = memory, memory + self._inner
        return ctypes.addressof(self._step)

    def add(self, y: Tensor, x: Tensor) -> None:
        """y += B(A x) of one product, both of float32, [rows, …]."""
        assert x.is_contiguous() and y.is_contiguous() and x.shape[1] == self._inputs and len(x) == len(y)
        self.place(self.library.scratch(self.size), len(x))
        self._product.out = y.data_ptr()
        self._run(self.library.pool, self._where, x.data_ptr())
