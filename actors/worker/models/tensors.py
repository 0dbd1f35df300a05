"""From tensors of the checkpoint to those that an executor multiplies with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.layers import Axis, LinearSpec
from .sharding import Read


def split_rows(linear: LinearSpec, tensor: Tensor, shape: Architecture) -> Iterator[tuple[Axis, Tensor]]:
    """A weight's or a bias's rows by what they are; `shape` is that of the part that was read."""
    if len(linear.rows) == 1:
        return iter([(linear.rows[0], tensor)])
    sizes = [shape.size(axis) for axis in linear.rows]
    return zip(linear.rows, tensor.split(sizes), strict=True)


def join(parts: Sequence[Tensor], dtype: torch.dtype | None, device: torch.device | str = "cpu") -> Tensor:
    """All rows one after the other in memory of their own, of one type; without a type what needs none gets none."""
    if len(parts) == 1 and (dtype is None or _is_alone(parts[0], dtype)):
        return parts[0].to(device)
    if dtype is None:
        dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    joined = torch.empty(sum(len(part) for part in parts), *parts[0].shape[1:], dtype=dtype, device=device)
    first = 0
    for part in parts:
        joined[first : first + len(part)] = part.to(device)  # made another type there
        first += len(part)
    return joined


def _is_alone(part: Tensor, dtype: torch.dtype) -> bool:
    """Is it of this type, and all of a memory that torch has made for it? What is mapped can be given no other size."""
    memory = part.untyped_storage()
    return part.dtype == dtype and part.is_contiguous() and memory.nbytes() == part.nbytes and memory.resizable()


def regrouped(read: Read, shape: Architecture) -> Read:
    """The same of a checkpoint in which q, k and v of each KV head follow one another: all of q come first, then k."""
    (linear,) = shape.layer.qkv
    order, mark = qkv_order(shape), f".{linear.name}."

    def get(name: str, rows: slice, columns: slice | None) -> Tensor:
        if mark not in name:
            return read(name, rows, columns)
        return read(name, slice(None), columns)[order[rows]]

    return get


def qkv_order(shape: Architecture) -> Tensor:
    """Where in such a tensor the rows of q, of k and of v are."""
    queries = shape.heads // shape.kv_heads
    rows = torch.arange(shape.kv_heads * (queries + 2) * shape.head_dim)
    q, k, v = rows.view(shape.kv_heads, queries + 2, shape.head_dim).split([queries, 1, 1], 1)
    return torch.cat([q.flatten(), k.flatten(), v.flatten()])


def unpaired(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads, the first numbers of all pairs before the second ones, as the hub has them."""
    heads = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return heads.transpose(1, 2).reshape(rows.shape)


def is_finite(numbers: Tensor) -> bool:
    """One that is no number is the least and the largest. (To ask each of them takes twenty times as long.)"""
    return not numbers.numel() or all(bool(one.isfinite()) for one in torch.aminmax(numbers))
