"""A rank's part of a model's weights: which rows or columns of each tensor, read without the rest.

    q, k, v, gate, up   rows: whole heads, or numbers of the MLP
    o, down             columns: the same; what the ranks make of them is added up, so a bias is the first rank's alone
    embeddings, head    rows: words; the last rank's part may be shorter and is filled with zeros
KV heads that are fewer than ranks are held by several of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ...model.architecture import Architecture

Read = Callable[[str, slice, slice | None], Tensor]  # rows, and columns where there are any, of a tensor
BY_HEADS = {"q_proj": "heads", "k_proj": "kv_heads", "v_proj": "kv_heads"}
BY_ROWS = ("gate_proj", "up_proj")
BY_COLUMNS = ("o_proj", "down_proj")
BY_WORDS = ("embed_tokens", "lm_head")
ALL = slice(None)


class Place(Protocol):
    """A worker's place in its group."""

    rank: int
    size: int


def words_of(vocabulary: int, size: int) -> int:
    """How many words a rank has."""
    return -(-vocabulary // size)


def shard(read: Read, shape: Architecture, place: Place) -> Callable[[str], Tensor]:
    """A function that reads this rank's part of a tensor of the whole model, of shape `shape`."""

    def get(name: str) -> Tensor:
        module, _, kind = name.rpartition(".")
        part = module.rpartition(".")[2]
        if part in BY_HEADS:
            return read(name, _heads(shape, part, place), None if kind == "bias" else ALL)
        if part in BY_ROWS:
            return read(name, _share(shape.intermediate_size, place), None if kind == "bias" else ALL)
        if part in BY_COLUMNS and kind == "bias":
            bias = read(name, ALL, None)
            return bias if place.rank == 0 else torch.zeros_like(bias)
        if part in BY_COLUMNS:
            whole = shape.heads * shape.head_dim if part == "o_proj" else shape.intermediate_size
            return read(name, ALL, _share(whole, place))
        if part in BY_WORDS:
            return _words(read, name, shape.vocab_size, place)
        return read(name, ALL, None)

    return get


def _share(whole: int, place: Place) -> slice:
    part = whole // place.size
    return slice(place.rank * part, (place.rank + 1) * part)


def _heads(shape: Architecture, part: str, place: Place) -> slice:
    """Rows of a rank's heads; ranks that share a KV head have the same rows."""
    heads = shape.heads if BY_HEADS[part] == "heads" else shape.kv_heads
    if heads >= place.size:
        return _share(heads * shape.head_dim, place)
    head = place.rank * heads // place.size
    return slice(head * shape.head_dim, (head + 1) * shape.head_dim)


def _words(read: Read, name: str, vocabulary: int, place: Place) -> Tensor:
    count = words_of(vocabulary, place.size)
    first = min(place.rank * count, vocabulary)
    rows = read(name, slice(first, min(first + count, vocabulary)), ALL)
    if len(rows) == count:
        return rows
    return torch.cat([rows, rows.new_zeros(count - len(rows), rows.shape[1])])
