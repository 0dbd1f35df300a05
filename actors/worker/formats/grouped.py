"""Weights that a checkpoint has in groups that share scales, for products with these as they are.

GGUF's Q4_0, Q4_K, Q6_K and Q8_0, and what AWQ, GPTQ and compressed-tensors make of 4 bits with groups of a multiple of
32 columns in their order. Of all else there are none here: it is decoded to floats, and rounded to 8 bits. Knows no
requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.cpu.native.linear import CHUNK, GROUP, Grouped, Scales, can_follow

from ...model.architecture import Architecture
from ...model.formats.stored import WHOLE, AwqWeight, GptqWeight, PackedWeight, WeightFormat
from ...model.weights.weight_files import check_weights
from ..models.gguf_blocks import q4_0_parts, q4_k_parts, q6_k_parts, q8_0_parts
from ..models.gguf_tensors import gguf_blocks
from ..models.sharding import Read
from ..models.tensors import is_finite
from .integers import Affine, awq_parts, gptq_parts, packed_parts

AT_ONCE = 1 << 18  # bytes of blocks
ReadGrouped = Callable[[str], Grouped | None]  # of a linear layer's name; None: it is in none of these
PARTS: dict[type[WeightFormat], Callable[[Any, dict[str, Tensor], int, int], Affine]] = {
    AwqWeight: awq_parts,
    GptqWeight: gptq_parts,
    PackedWeight: packed_parts,
}


def open_grouped(folder: Path, shape: Architecture, read_parts: Callable[[Any], Read]) -> ReadGrouped | None:
    """What reads such weights of a checkpoint; `read_parts` opens its tensors by their homes, if they are no GGUF's."""
    blocks = gguf_blocks(folder, shape)
    if blocks is not None:
        return lambda name: None if (found := blocks(f"{name}.weight")) is None else _of_gguf(*found)
    if shape.stored is None:
        return None
    homes = {name: stored.home(name) for name, stored in check_weights(folder, shape).items()}
    read = read_parts(homes)
    specs = shape.specs()

    def of_linear(name: str) -> Grouped | None:
        form = shape.format_of(name)
        if form is None or type(form) not in PARTS or getattr(form, "bits", 4) != 4:
            return None
        rows, columns = shape.tensor_shape(specs[f"{name}.weight"])
        suffixes = [suffix for suffix in form.tensors(rows, columns) if f"{name}.{suffix}" in homes]
        stored = {suffix: read(f"{name}.{suffix}", slice(None), None) for suffix in suffixes}
        return _of_groups(PARTS[type(form)](form, stored, rows, columns))

    return of_linear


def _of_gguf(kind: str, blocks: Tensor, arrange: Callable[[Tensor], Tensor]) -> Grouped | None:
    """Of blocks [rows, blocks, bytes]."""
    if kind == "Q4_0":
        numbers, scale = _in_turn(q4_0_parts, blocks)
        scales: tuple[Tensor, ...] = (_filled(scale.view(len(blocks), -1), GROUP),)
        scaled = Scales.HALVES
    elif kind == "Q4_K":
        numbers, s, t, supers = _in_turn(q4_k_parts, blocks)
        scales = (supers.view(len(blocks), -1, 2), s.view(len(blocks), -1), t.view(len(blocks), -1))
        scaled = Scales.SUPER_BLOCKS
    elif kind == "Q6_K":
        numbers, d, s = _in_turn(q6_k_parts, blocks)
        scales = (d.view(len(blocks), -1), s.view(len(blocks), -1))
        scaled = Scales.SIX_BITS
    elif kind == "Q8_0":
        numbers, scale = _in_turn(q8_0_parts, blocks)
        scales = (_filled(scale.view(len(blocks), -1), GROUP),)
        scaled = Scales.EIGHT_BITS
    else:
        return None
    if not all(map(is_finite, scales)):
        return None
    return Grouped(arrange(numbers.view(len(blocks), -1)), tuple(arrange(part) for part in scales), scaled)


def _in_turn(parts_of: Callable[[Tensor], tuple[Tensor, ...]], blocks: Tensor) -> list[Tensor]:
    """What all blocks [rows, blocks, bytes] have, of so many at a time that they stay in the processor's cache."""
    each = blocks.reshape(-1, blocks.shape[-1]).split(AT_ONCE // blocks.shape[-1])
    found = list(zip(*map(parts_of, each), strict=True))
    return [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in found]


def _of_groups(parts: Affine) -> Grouped | None:
    numbers, scales, zeros, group, order = parts
    columns = numbers.shape[1]
    width = -(-columns // CHUNK) * CHUNK if group == WHOLE or group >= columns else group
    in_turn = order is None or torch.equal(order.long(), torch.arange(columns) // width)
    if width % GROUP or not in_turn:
        return None
    scales = scales.float()
    pairs = torch.stack([scales, scales * zeros], 2)
    if not is_finite(pairs):
        return None
    return Grouped(numbers, (_filled(pairs, width),), Scales.FLOAT_PAIRS, width)


def _filled(scales: Tensor, group: int) -> Tensor:
    """With zeros for the groups that fill up the last chunk; `scales` [rows, groups, …]."""
    count = -(-(-(-scales.shape[1] * group // CHUNK) * CHUNK) // group)
    more = count - scales.shape[1]
    return scales if not more else torch.cat([scales, scales.new_zeros(len(scales), more, *scales.shape[2:])], 1)


def joined(parts: Sequence[Grouped | None], arrange: Callable[[int, Tensor], Tensor]) -> list[Grouped]:
    """Those of several linears, as few as can be: neighbours that are scaled alike are one. None of them where one is
    in no groups, or they cannot be one product; `arrange` puts rows of the linear with a number in their order."""
    found: list[Grouped] = []
    for number, part in enumerate(parts):
        if part is None:
            return []
        scales = tuple(arrange(number, rows) for rows in part.scales)
        own = part._replace(numbers=arrange(number, part.numbers), scales=scales)
        if found and _alike(found[-1]) == _alike(own):
            found[-1] = _together(found[-1], own)
        elif found and not can_follow(found[-1], own):
            return []
        else:
            found.append(own)
    return found


def _alike(part: Grouped) -> tuple[Scales, int, int]:
    return part.scaled, part.group, part.numbers.shape[1]


def _together(first: Grouped, then: Grouped) -> Grouped:
    """One behind the other."""
    scales = tuple(torch.cat(both) for both in zip(first.scales, then.scales, strict=True))
    return first._replace(numbers=torch.cat([first.numbers, then.numbers]), scales=scales)
