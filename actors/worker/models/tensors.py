"""From tensors of the checkpoint to those that an executor multiplies with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.layers import Axis, LinearSpec


def split_rows(linear: LinearSpec, tensor: Tensor, shape: Architecture) -> Iterator[tuple[Axis, Tensor]]:
    """A weight's or a bias's rows by what they are; `shape` is that of the part that was read."""
    if len(linear.rows) == 1:
        return iter([(linear.rows[0], tensor)])
    sizes = [shape.size(axis) for axis in linear.rows]
    return zip(linear.rows, tensor.split(sizes), strict=True)


def join(parts: Sequence[Tensor], dtype: torch.dtype | None, device: torch.device | str = "cpu") -> Tensor:
    """All rows one after the other in new memory of one type; without a type what needs no new memory gets none."""
    if dtype is None:
        if len(parts) == 1:
            return parts[0].to(device)
        dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    joined = torch.empty(sum(len(part) for part in parts), *parts[0].shape[1:], dtype=dtype, device=device)
    first = 0
    for part in parts:
        joined[first : first + len(part)] = part.to(device)  # made another type there
        first += len(part)
    return joined
