"""Tensors of GGUF files as they lie at the hub: one pure function for each thing that llama.cpp's converter does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from ...model.gguf.joined import How
from ...model.gguf.layout import Change

Sizes = Mapping[str, int]  # of attention (model/gguf/config.py)


def changed(tensor: Tensor, changes: Iterable[Change], sizes: Sizes) -> Tensor:
    """All that is to be done to a tensor, in turn."""
    for change in changes:
        tensor = CHANGES[change](tensor, sizes)
    return tensor


def together(how: How, first: Tensor, second: Tensor, sizes: Sizes) -> Tensor:
    """One tensor of two parts (model/gguf/joined.py)."""
    if how is How.ROWS:
        return torch.cat([first, second], -2)
    if how is How.KEY_HEADS:
        return by_key_head(first, second, sizes)
    return torch.cat([first.transpose(1, 2), second], 1).flatten(0, 1)


def by_kv_head(rows: Tensor, sizes: Sizes) -> Tensor:
    """Of queries, keys and values one after the other: each KV head's queries, its keys and its values, in turn."""
    heads, kv_heads, head_dim = (sizes[name] for name in ("heads", "kv_heads", "head_dim"))
    parts = rows.split([heads * head_dim, kv_heads * head_dim, kv_heads * head_dim])
    by_head = [part.reshape(kv_heads, -1, *rows.shape[1:]) for part in parts]
    return torch.cat(by_head, 1).reshape(rows.shape)


def by_key_head(qkv: Tensor, gates: Tensor, sizes: Sizes) -> Tensor:
    """Of linear attention: each head of keys with its queries, keys, values and gates, in turn."""
    heads, width = sizes["linear_num_key_heads"], sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    parts = (*qkv.split([width, width, len(qkv) - 2 * width]), gates)
    by_head = [part.reshape(heads, -1, *qkv.shape[1:]) for part in parts]
    return torch.cat(by_head, 1).flatten(0, 1)


def value_rows(rows: Tensor, sizes: Sizes) -> Tensor:
    """Heads of values stand as the first of each head of keys, then the second of each, …; the hub has those of a head
    of keys together. They are the last rows, behind those of queries and keys, if there are any."""
    heads, keys = sizes["linear_num_value_heads"], sizes["linear_num_key_heads"]
    before = 2 * keys * sizes["linear_key_head_dim"]
    values = heads * sizes["linear_value_head_dim"]
    first = before if len(rows) == before + values else 0
    own = rows[first:]
    grouped = own.reshape(heads // keys, keys, -1, *rows.shape[1:]).transpose(0, 1).reshape(own.shape)
    return torch.cat([rows[:first], grouped])


CHANGES: dict[Change, Callable[[Tensor, Sizes], Tensor]] = {
    Change.TRANSPOSED: lambda tensor, sizes: tensor.t(),
    Change.CHANNELS: lambda tensor, sizes: tensor.reshape(-1, 1, tensor.shape[-1]),  # some have 1 and 1 beside, too
    Change.LOGARITHM: lambda tensor, sizes: (-tensor).log(),
    Change.FLAT: lambda tensor, sizes: tensor.flatten(),
    Change.BY_HEAD: lambda tensor, sizes: tensor.reshape(1, 1, -1, 1),
    Change.STACKED: lambda tensor, sizes: tensor.flatten(0, 1),
    Change.TURNED_STACKED: lambda tensor, sizes: tensor.transpose(1, 2).flatten(0, 1),
    Change.BY_KV_HEAD: by_kv_head,
    Change.VALUE_ROWS: value_rows,
    Change.VALUE_COLUMNS: lambda tensor, sizes: value_rows(tensor.t(), sizes).t(),
}
