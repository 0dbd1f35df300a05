"""Reads tensors of single experts of a checkpoint that has those of all experts in one (model/formats/stacked.py).

Of a tensor no more than one expert's part is read at a time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from ...model.formats.stacked import StackedPart
from ..models.sharding import Read


def unstacked(read: Read, parts: Mapping[str, StackedPart], shapes: Mapping[str, tuple[int, ...]]) -> Read:
    """The same with the names of `parts` beside the others; `shapes` are those of an expert's own."""

    def get(name: str, rows: slice, columns: slice | None) -> Tensor:
        part = parts.get(name)
        if part is None:
            return read(name, rows, columns)
        if math.prod(shapes[name]) == 1:
            numbers = read(part.name, slice(None), None).reshape(-1)
            return numbers[part.place(len(numbers))]
        whole = read(part.name, slice(part.expert, part.expert + 1), None)[0]
        if part.transposed and len(whole) == shapes[name][1]:  # else it is a checkpoint that has rows before columns
            whole = whole.t()
        own = whole[part.rows(len(whole))][rows]
        return own if columns is None else own[:, columns]

    return get
