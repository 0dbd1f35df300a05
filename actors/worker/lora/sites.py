"""The products of a model that adapters may change, and which rows of a step have which adapter.

A model that was made for adapters has a LoraLinear around each such product. What all of them add in a step stands in
one place, LoraSites.parts, which is set before the forward pass: for each adapter of the step its products and the rows
of the flat batch. Where no row has one, nothing stands there, and a product is what it is without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..quantization.base import CpuLinear
from .products import LoraProduct

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Products = Mapping[int, LoraProduct]  # of one adapter, by the numbers of sites
Rows = slice | Tensor


class Part(NamedTuple):
    """The rows of a step that have one adapter."""

    products: Products
    rows: Rows  # a slice where they follow one another


class LoraSites:
    """Of one model."""

    def __init__(self) -> None:
        self.linears: list[LoraLinear] = []
        self.parts: Sequence[Part] = ()
        self.drawn: Sequence[Part] = ()  # the same of the rows of which logits are made, while they are
        self._loaded: Mapping[int, Products] = {}
        self._of_tokens = np.empty(0, np.int64)

    def wrap(self, base: CpuLinear, modules: Sequence[str], bias: Tensor | None) -> LoraLinear:
        """The product of these layers of the model, side by side, with room for adapters."""
        made = LoraLinear(self, len(self.linears), base, tuple(modules), bias)
        self.linears.append(made)
        return made

    def wrap_head(self, base: CpuLinear, module: str) -> LoraLinear:
        """The same of what makes logits, of few of a step's tokens."""
        made = LoraHead(self, len(self.linears), base, (module,), None)
        self.linears.append(made)
        return made

    def begin(self, loaded: Mapping[int, Products], of_tokens: Ints) -> None:
        """A step begins, whose tokens have these adapters; 0: none."""
        self._loaded, self._of_tokens = loaded, of_tokens
        self.parts = self._parts_of(of_tokens)

    @contextmanager
    def narrowed(self, tokens: Tensor) -> Iterator[None]:
        """Some of the step's tokens alone go through the model meanwhile."""
        if not self.parts:
            yield
            return
        whole, self.parts = self.parts, self._parts_of(self._of_tokens[tokens.numpy()])
        try:
            yield
        finally:
            self.parts = whole

    def changes(self, *linears: CpuLinear) -> bool:
        """Has an adapter of this step something for one of these?"""
        numbers = [linear.number for linear in linears if isinstance(linear, LoraLinear)]
        return any(number in part.products for part in self.parts for number in numbers)

    @contextmanager
    def drawing(self, tokens: Ints | None) -> Iterator[None]:
        """Meanwhile logits are made of these tokens of the step, one behind the other; None: of all."""
        self.drawn = self.parts if tokens is None or not self.parts else self._parts_of(self._of_tokens[tokens])
        try:
            yield
        finally:
            self.drawn = ()

    def _parts_of(self, of_tokens: Ints) -> list[Part]:
        """In the order of the adapters' numbers, so that all of a group of workers have the same."""
        wanted = np.unique(of_tokens[of_tokens > 0]).tolist() if of_tokens.any() else []
        return [Part(self._loaded[adapter], _rows(np.flatnonzero(of_tokens == adapter))) for adapter in wanted]


def _rows(tokens: Ints) -> Rows:
    first, last = int(tokens[0]), int(tokens[-1])
    return slice(first, last + 1) if last - first + 1 == len(tokens) else torch.from_numpy(tokens)


class RowAdapters:
    """Which row of the worker's batch has which adapter, and what of a step follows from that; made again where the
    rows of a step are others than those of the last one.
    """

    def __init__(self, sites: LoraSites, loaded: Mapping[int, Products], rows: int) -> None:
        """`loaded`: the adapters that are there, by id."""
        self._sites, self._loaded = sites, loaded
        self._of_row = np.zeros(rows, np.int64)
        self._last: tuple[Ints, Ints | None] | None = None

    def place(self, row: int, adapter: int) -> None:
        """A sequence takes a row, with an adapter that is there; 0: with none."""
        self._of_row[row] = adapter
        self._last = None

    def drawing(self, tokens: Ints | None = None) -> AbstractContextManager[None]:
        """See LoraSites.drawing."""
        return self._sites.drawing(tokens)

    def begin(self, rows: Ints, counts: Ints | None) -> None:
        """A step of these rows; None: each computes one token."""
        if self._last is not None and _same(self._last[0], rows) and _same(self._last[1], counts):
            return
        self._last = rows, counts
        own = self._of_row[rows]
        self._sites.begin(self._loaded, own if counts is None else np.repeat(own, counts))


def _same(one: Ints | None, other: Ints | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


class LoraLinear:
    """y = x Wᵀ + b, and what the adapters of a step add to their rows."""

    def __init__(
        self,
        sites: LoraSites,
        number: int,
        base: CpuLinear,
        modules: tuple[str, ...],
        bias: Tensor | None,
    ) -> None:
        self.sites, self.number = sites, number
        self.base, self.modules = base, modules
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        y = self.base(x)
        if self.sites.parts:
            self.adapt(y, x)
        return y

    def adapt(self, y: Tensor, x: Tensor) -> None:
        """What the product has made of x becomes what it would be with adapters."""
        for product, rows in self._products():
            own = y[rows]  # a copy where they do not follow one another
            product.lengthen(own, own, self.bias)
            product.add(own, x[rows])
            if not isinstance(rows, slice):
                y.index_copy_(0, rows, own)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        self.base.add_to(residual, x)
        if not self.sites.parts:
            return
        for product, rows in self._products():
            some, own = x[rows], residual[rows]
            if product.gain is not None:
                product.lengthen(own, self.base(some), self.bias)
            product.add(own, some)
            if not isinstance(rows, slice):
                residual.index_copy_(0, rows, own)

    def product(self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, alike: bool) -> LoraProduct:
        """One adapter's for it (LoraProduct)."""
        return LoraProduct(a, parts, gain, alike)

    def _products(self) -> Iterator[tuple[LoraProduct, Rows]]:
        for part in self._parts():
            product = part.products.get(self.number)
            if product is not None:
                yield product, part.rows

    def _parts(self) -> Sequence[Part]:
        return self.sites.parts


class LoraHead(LoraLinear):
    """What makes logits. Whoever makes them of other rows than LoraSites.drawing says, as drafts do, has none of
    adapters.
    """

    def __call__(self, x: Tensor) -> Tensor:
        y = self.base(x)
        if self.sites.drawn:
            self.adapt(y, x)
        return y

    def _parts(self) -> Sequence[Part]:
        return self.sites.drawn


def plain(linear: object) -> object:
    """The product itself."""
    return linear.base if isinstance(linear, LoraLinear) else linear
