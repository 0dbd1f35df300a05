"""Weights of floats of 4 bits, and of tables of 16 numbers, in float32 [rows, columns]. Pure functions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...model.formats.stored import EXPERT_GROUP, BnbWeight, ExpertFloat4Weight, Float4Weight
from ...options.config import ConfigError
from .integers import Tensors, scale_numbers, spread

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three lower bits; the fourth is the sign


def float4(form: Float4Weight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """The first of two numbers in a byte is in its lower half."""
    packed = stored[form.weight]
    pairs = torch.index_select(_pairs(), 0, packed.view(torch.uint8).reshape(-1).int())
    numbers = torch.view_as_real(pairs).view(rows, -1)[:, :columns]
    scale = stored[form.scale]
    if form.words and form.scale_type == "F8_E4M3":
        scale = scale.view(torch.float8_e4m3fn)
    scale = scale_numbers(scale)
    if form.whole is not None:
        whole = stored[form.whole].float().view(())
        scale = scale / whole if form.divides else scale * whole
    if columns % form.group:
        return numbers.mul_(spread(scale, form.group, columns))
    return numbers.view(rows, -1, form.group).mul_(scale[:, :, None]).view(rows, columns)


@cache
def _pairs() -> Tensor:
    """The two numbers of each byte, as a complex one: one look-up finds both."""
    table, byte = torch.tensor([*E2M1, *(-number for number in E2M1)]), torch.arange(256)
    return torch.complex(table[byte & 15], table[byte >> 4])


def expert(form: ExpertFloat4Weight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """One linear of one expert of gpt-oss: blocks [rows, groups, 16] and scales [rows, groups]."""
    same = Float4Weight(group=EXPERT_GROUP, weight="weight", scale_type="U8")
    parts = {"weight": stored["blocks"].flatten(1), "weight_scale": stored["scales"]}
    return float4(same, parts, rows, columns)


def bitsandbytes(form: BnbWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """Blocks run over the whole weight, row after row; scales of blocks may be of a table themselves."""
    name = f"weight.quant_state.bitsandbytes__{form.kind}"
    state = _state(name, stored[name])
    if state["shape"] != [rows, columns]:
        raise ConfigError(f"its {name} says shape = {state['shape']!r}, and config.json [{rows}, {columns}]")
    scale, block = stored["weight.absmax"].view(-1), _whole(name, state, "blocksize")
    _count("weight.absmax", scale, -(-rows * columns // block))
    if form.nested:
        outer, width = stored["weight.nested_absmax"].view(-1), _whole(name, state, "nested_blocksize")
        _count("weight.nested_absmax", outer, -(-len(scale) // width))
        offset = state.get("nested_offset")
        if not isinstance(offset, float | int):
            raise ConfigError(f"its {name} says nested_offset = {offset!r}; a number is needed")
        spread_out = outer.repeat_interleave(width)[: len(scale)]
        scale = stored["weight.nested_quant_map"][scale.int()].mul_(spread_out).add_(offset)
    indices = halves(stored["weight"].reshape(1, -1).view(torch.uint8), low_first=False)
    numbers = stored["weight.quant_map"][indices.int()]
    numbers = numbers[:, : rows * columns]
    return numbers.mul_(scale.repeat_interleave(block)[: rows * columns]).view(rows, columns)


def _state(name: str, told: Tensor) -> dict[str, Any]:
    """A JSON object in bytes."""
    try:
        state = json.loads(bytes(told.tolist()))
    except (ValueError, RecursionError):
        state = None
    if not isinstance(state, dict) or "shape" not in state:
        raise ConfigError(f"its {name} holds no JSON object with a shape")
    return state


def _whole(name: str, state: dict[str, Any], key: str) -> int:
    size = state.get(key)
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f"its {name} says {key} = {size!r}; a whole number from 1 is needed")
    return size


def _count(name: str, scales: Tensor, wanted: int) -> None:
    if len(scales) != wanted:
        raise ConfigError(f"its {name} has {len(scales)} numbers in place of {wanted}")


def halves(packed: Tensor, low_first: bool) -> Tensor:
    """The numbers of 4 bits in bytes [rows, bytes], uint8."""
    low, high = packed & 15, packed >> 4
    return torch.stack([low, high] if low_first else [high, low], 2).flatten(1)
