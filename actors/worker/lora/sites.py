"""The products of a model that adapters may change, and which rows of a step have which adapter.

A model that was made for adapters has a LoraLinear around each such product. What all of them add in a step stands in
one place, LoraSites.parts, which is set before the forward pass: for each adapter of the step its products and the rows
of the flat batch. Where no row has one, nothing stands there, and a product is what it is without.

By kernels of our own all adapters of a step add to a product in one call, and to layers that are computed as a whole
within that. By torch, and what DoRA and latents have beside it, it is one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.native.layers import PlainLayers
from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.native.lora import LoraAdded, LoraFactors, LoraRows

from ..cpu.layers.native import current
from ..quantization.base import CpuLinear
from .products import Keep, LoraProduct, NativeLoraProduct, TorchLoraProduct, lora_product

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Products = Mapping[int, LoraProduct]  # of one adapter, by the numbers of sites
Rows = slice | Tensor


class Part(NamedTuple):
    """The rows of a step that have one adapter."""

    products: Products
    rows: Rows  # a slice where they follow one another


class StepParts(Sequence[Part]):
    """Those of a step, in the order of the adapters' numbers, so that all of a group of workers have the same."""

    def __init__(self, loaded: Mapping[int, Products], of_tokens: Ints) -> None:
        """`of_tokens`: the adapter of each token of the step; 0: none."""
        wanted = np.unique(of_tokens[of_tokens > 0]).tolist() if of_tokens.any() else []
        groups = [np.flatnonzero(of_tokens == adapter) for adapter in wanted]
        self._parts = [Part(loaded[adapter], _rows(group)) for adapter, group in zip(wanted, groups, strict=True)]
        self._groups, self._tokens = groups, len(of_tokens)
        self._added: dict[tuple[int, ...], LoraAdded | None] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        return self._parts[index]

    @cached_property
    def _native_rows(self) -> LoraRows:
        return LoraRows(self._groups, self._tokens)

    def added(self, library: Library, *numbers: int) -> LoraAdded | None:
        """What kernels of our own add to the products with these numbers; None: nothing."""
        if numbers not in self._added:
            products = [[_factors(part.products.get(number)) for part in self._parts] for number in numbers]
            any_there = any(one is not None for product in products for one in product)
            self._added[numbers] = LoraAdded(library, self._native_rows, products) if any_there else None
        return self._added[numbers]

    @cached_property
    def lengthened(self) -> bool:
        """Is one of them DoRA?"""
        return any(product.gain is not None for part in self._parts for product in part.products.values())


def _factors(product: LoraProduct | None) -> LoraFactors | None:
    return product.factors if isinstance(product, NativeLoraProduct) else None


NONE = StepParts({}, np.empty(0, np.int64))


class LoraSites:
    """Of one model."""

    def __init__(self) -> None:
        self.linears: list[LoraLinear] = []
        self.batch_invariant = False  # a token must have the same bits in every batch
        self.parts = NONE
        self.drawn = NONE  # the same of the rows of which logits are made, while they are
        self._loaded: Mapping[int, Products] = {}
        self._of_tokens = np.empty(0, np.int64)
        self._layers: tuple[PlainLayers, tuple[int, ...] | None] | None = None  # that were asked for last

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
        self.parts = StepParts(loaded, of_tokens)

    @contextmanager
    def narrowed(self, tokens: Tensor) -> Iterator[None]:
        """Some of the step's tokens alone go through the model meanwhile."""
        if not self.parts:
            yield
            return
        whole, self.parts = self.parts, StepParts(self._loaded, self._of_tokens[tokens.numpy()])
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
        every = tokens is None or not self.parts
        self.drawn = self.parts if every else StepParts(self._loaded, self._of_tokens[tokens])
        try:
            yield
        finally:
            self.drawn = NONE

    def joins(self, layers: PlainLayers) -> bool:
        """Can layers that are computed as a whole have what adapters add in this step?"""
        return not self.parts or not (self.parts.lengthened or self._numbers(layers) is None)

    def added(self, layers: PlainLayers) -> LoraAdded | None:
        """That; None: nothing."""
        numbers = self._numbers(layers) if self.parts else None
        return None if numbers is None else self.parts.added(layers.library, *numbers)

    def _numbers(self, layers: PlainLayers) -> tuple[int, ...] | None:
        """Of their products, one by one; None where one of them is not of these."""
        if self._layers is None or self._layers[0] is not layers:
            found = {id(linear.base): linear.number for linear in self.linears}
            numbers = [found.get(id(linear)) for linear in layers.linears]
            own = tuple(number for number in numbers if number is not None)
            self._layers = layers, own if len(own) == len(numbers) else None
        return self._layers[1]


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
        if self._parts().lengthened:
            for product, rows in self._products():
                own = y[rows]  # a copy where they do not follow one another
                product.lengthen(own, own, self.bias)
                put_back(y, rows, own)
        self._add(y, x)

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += y."""
        self.base.add_to(residual, x)
        if not self.sites.parts:
            return
        if self._parts().lengthened:
            for product, rows in self._products():
                if product.gain is not None:
                    own = residual[rows]
                    product.lengthen(own, self.base(x[rows]), self.bias)
                    put_back(residual, rows, own)
        self._add(residual, x)

    def _add(self, y: Tensor, x: Tensor) -> None:
        library = current()
        if library is None:
            for product, rows in self._products():
                if isinstance(product, TorchLoraProduct):
                    own = y[rows]
                    product.add(own, x[rows])
                    put_back(y, rows, own)
            return
        added = self._parts().added(library, self.number)
        if added is None:
            return
        x = (x if x.dtype == torch.float32 else x.float()).contiguous()
        if y.dtype == torch.float32 and y.is_contiguous():
            added.add(y, x)
            return
        more = torch.zeros(y.shape)
        added.add(more, x)
        y.add_(more)

    def product(self, a: Tensor, parts: Sequence[Tensor], gain: Tensor | None, keep: Keep) -> LoraProduct:
        """One adapter's for it (LoraFactors)."""
        return lora_product(a, parts, gain, keep, self.sites.batch_invariant)

    def _products(self) -> Iterator[tuple[LoraProduct, Rows]]:
        for part in self._parts():
            product = part.products.get(self.number)
            if product is not None:
                yield product, part.rows

    def _parts(self) -> StepParts:
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

    def _parts(self) -> StepParts:
        return self.sites.drawn


def put_back(y: Tensor, rows: Rows, own: Tensor) -> None:
    """What was taken by its numbers is a copy."""
    if not isinstance(rows, slice):
        y.index_copy_(0, rows, own)


def plain(linear: object) -> object:
    """The product itself."""
    return linear.base if isinstance(linear, LoraLinear) else linear
