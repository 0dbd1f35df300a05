"""A rank's part of a model's weights: which rows and columns of each tensor, read without the rest.

What rows and columns are (model/layers.py: Axis) says who has which:
    queries, keys, values   whole heads; KV heads that are fewer than ranks are held by several of them
    heads of latents        whole heads; the latent is every rank's
    intermediate            as many numbers of the MLP for each; with expert parallelism experts are whole
    vocabulary              words; the last rank's part may be shorter and is filled with zeros
    all others              every rank has them
Where the checkpoint has several of them fused, a rank has its part of each. Where columns are cut, the ranks' results
are added up, so a bias is the first rank's alone.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.layers import Axis, Kind, TensorSpec

Read = Callable[[str, slice, slice | None], Tensor]  # rows, and columns where not all are wanted, of a tensor
Cut = Callable[[Axis], tuple[slice, int]]
Get = Callable[[str], Tensor]  # a rank's part of a tensor of the checkpoint, in the type in which it is stored
HEADS = {Axis.QUERIES, Axis.KEYS, Axis.VALUES}
SHARED = HEADS | {Axis.HEADS, Axis.LATENT_HEADS, Axis.ATTENDED, Axis.INTERMEDIATE, Axis.SHARED_INTERMEDIATE}


class Place(Protocol):
    """A worker's place in its group."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...


class Alone(NamedTuple):
    """The place of one that has no group."""

    rank: int = 0
    size: int = 1


def vocabulary_per_rank(vocabulary: int, size: int) -> int:
    """How many words a rank has."""
    return -(-vocabulary // size)


def shard(read: Read, shape: Architecture, place: Place, expert_parallel: bool = False) -> Get:
    """A function that reads this rank's part of a tensor of the whole model, of shape `shape`."""
    specs = shape.specs() | shape.scale_specs()
    shared, cut = _shared(expert_parallel), cutter(shape, place, expert_parallel)

    def get(name: str) -> Tensor:
        spec = specs[name]
        if spec.rows == (Axis.VOCABULARY,):
            return _words(read, name, shape.vocab_size, place)
        if spec.kind is Kind.BIAS and spec.columns in shared and place.rank:
            return torch.zeros_like(read(name, slice(None), None))
        return _part(read, name, spec, cut)

    return get


def cutter(shape: Architecture, place: Place, expert_parallel: bool) -> Cut:
    """Which rows or columns of a whole axis are this rank's, and how many there are."""
    shared = _shared(expert_parallel)
    return lambda axis: _cut(axis, shape, place, shared)


def _shared(expert_parallel: bool) -> Set[Axis]:
    return SHARED if expert_parallel else SHARED | {Axis.EXPERT_INTERMEDIATE}


def _part(read: Read, name: str, spec: TensorSpec, cut: Cut) -> Tensor:
    """Of each of the tensor's parts the rank's rows; `cut` says which, and of how many."""
    columns = None
    if spec.kind is Kind.WEIGHT and spec.columns is not None:
        own, whole = cut(spec.columns)
        columns = own if own != slice(0, whole) else None
    parts, first = [], 0
    for axis in spec.rows:
        rows, whole = cut(axis)
        parts.append(read(name, slice(first + rows.start, first + rows.stop), columns))
        first += whole
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _cut(axis: Axis, shape: Architecture, place: Place, shared: Set[Axis]) -> tuple[slice, int]:
    """The rank's part of an axis; ranks that share a KV head have the same."""
    whole = shape.size(axis)
    if axis in (Axis.KEYS, Axis.VALUES) and shape.kv_heads < place.size:
        head = place.rank * shape.kv_heads // place.size
        return slice(head * shape.head_dim, (head + 1) * shape.head_dim), whole
    part = whole // place.size if axis in shared else whole
    first = place.rank * part if axis in shared else 0
    return slice(first, first + part), whole


def own_words(tensor: Tensor, place: Place) -> Tensor:
    """The rows, one for each token of the vocabulary, that a rank has of these; behind the last ones zeros."""
    count = vocabulary_per_rank(len(tensor), place.size)
    rows = tensor[place.rank * count : (place.rank + 1) * count]
    return torch.cat([rows, rows.new_zeros(count - len(rows), *rows.shape[1:])])


def _words(read: Read, name: str, vocabulary: int, place: Place) -> Tensor:
    count = vocabulary_per_rank(vocabulary, place.size)
    first = min(place.rank * count, vocabulary)
    rows = read(name, slice(first, min(first + count, vocabulary)), None)
    if len(rows) == count:
        return rows
    return torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])])
