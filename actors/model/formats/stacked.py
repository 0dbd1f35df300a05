"""Checkpoints that have the linears of all experts of a layer in one tensor each, as if each expert had its own.

A tensor [experts, …] is a weight of floats, a bias, or what a format has in their place. Knows no torch and no files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple

from ..layers import LinearSpec, MoeSpec, StackedExperts
from .stored import StoredSpec

SCALE = ".weight_scale"  # of rows alone, or of blocks: what is transposed may leave it as it is
BY_PLACE = (".weight", ".weight_scale_inv", SCALE)  # have rows and columns, or blocks of them: transposed with these
Names = Callable[[LinearSpec], Iterator[str]]  # of the tensors of a linear, were it by itself


class StackedPart(NamedTuple):
    """Where the tensor of one expert's linear is."""

    name: str  # of the tensor of all experts
    expert: int
    experts: int
    number: int  # which of the linears that share the tensor's rows
    linears: int
    transposed: bool
    interleaved: bool
    either: bool  # or not transposed

    def rows(self, whole: int) -> slice:
        """Those of this linear, of all that the tensor has."""
        if self.interleaved:
            return slice(self.number, None, self.linears)
        each = whole // self.linears
        return slice(self.number * each, (self.number + 1) * each)

    def place(self, numbers: int) -> slice:
        """Where its own stands of so many numbers: one for all, for each expert, or for each of their linears."""
        if numbers == 1:
            return slice(1)
        at = self.expert if numbers == self.experts else self.expert * self.linears + self.number
        return slice(at, at + 1)

    def stacked(self, own: StoredSpec) -> StoredSpec:
        """The tensor of all, of that of one."""
        assert own.shape is not None
        if math.prod(own.shape) == 1:
            counts = ((self.experts,), (self.experts, self.linears))
            each = [(*count, *[1] * ones) for count in counts for ones in range(3)]
            return own._replace(shape=(), also=((1,), *each, (self.experts, 1, self.linears)))
        rows, *others = own.shape
        sizes = [self.linears * rows, *others]
        as_named, turned = (self.experts, *sizes), (self.experts, *reversed(sizes))
        also = (*own.also, as_named) if self.either else own.also
        return own._replace(shape=turned if self.transposed else as_named, also=also)


def stacked_parts(moe: MoeSpec, there: Container[str], names: Names) -> dict[str, StackedPart]:
    """The tensors of the experts of a layer, where a checkpoint with the tensors `there` has them stacked."""
    stacked = moe.stacked
    if stacked is None or not _is_stacked(moe, stacked, there, names):
        return {}
    found: dict[str, StackedPart] = {}
    for expert in range(moe.experts):
        gate_up, down = moe.expert(expert)
        for name, linears, interleaved in (
            (stacked.gate_up, gate_up, stacked.interleaved),
            (stacked.down, (down,), False),
        ):
            for number, linear in enumerate(linears):
                for own in names(linear):
                    whole = _whole(name, own, there)
                    transposed = stacked.transposed and own.endswith(BY_PLACE)
                    place = expert, moe.experts, number, len(linears)
                    either = transposed and (stacked.either or own.endswith(SCALE))
                    found[own] = StackedPart(whole, *place, transposed, interleaved, either)
    return found


def stacked_specs(specs: Mapping[str, StoredSpec], parts: Mapping[str, StackedPart]) -> dict[str, StoredSpec]:
    """Every tensor as it lies in the checkpoint; `specs` are those of a checkpoint in which nothing is stacked."""
    found: dict[str, StoredSpec] = {}
    for name, spec in specs.items():
        part = parts.get(name)
        if part is None:
            found[name] = spec
        elif part.name not in found:
            found[part.name] = part.stacked(spec)
    return found


def _is_stacked(moe: MoeSpec, stacked: StackedExperts, there: Container[str], names: Names) -> bool:
    (first, *_), _ = moe.expert(0)
    own = list(names(first))
    if any(_whole(stacked.gate_up, name, there) in there for name in own):
        return True
    return stacked.usual and not any(name in there for name in own)


def _whole(name: str, own: str, there: Container[str]) -> str:
    """Model Optimizer has the whole name of a scale there."""
    kind = own.rpartition(".")[2]
    full = f"{name}_{kind}"
    return name if kind == "weight" else full if full in there else f"{name}_{kind.removeprefix('weight_')}"
