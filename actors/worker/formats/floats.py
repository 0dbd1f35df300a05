"""Weights of floats of 4 bits, and of tables of 16 numbers, in float32 [rows, columns]. Pure functions."""

from __future__ import annotations

import json

import torch
from torch import Tensor

from ...model.formats.stored import BnbWeight, Float4Weight
from ...options.config import ConfigError
from .integers import Tensors, spread

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # by the three lower bits; the fourth is the sign
BIAS = 127  # of exponents of 8 bits


def float4(form: Float4Weight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """The first of two numbers in a byte is in its lower half."""
    table = torch.tensor([*E2M1, *(-number for number in E2M1)])
    numbers = table[halves(stored[form.weight], low_first=True)][:, :columns]
    scale = stored["weight_scale"]
    if form.scale_type == "U8":
        scale = torch.ldexp(torch.ones(()), scale.view(torch.uint8).int() - BIAS)
    scale = scale.float()
    if form.whole is not None:
        whole = stored[form.whole].float().view(())
        scale = scale / whole if form.divides else scale * whole
    return numbers.mul_(spread(scale, form.group, columns))


def bitsandbytes(form: BnbWeight, stored: Tensors, rows: int, columns: int) -> Tensor:
    """Blocks run over the whole weight, row after row; scales of blocks may be of a table themselves."""
    name = f"weight.quant_state.bitsandbytes__{form.kind}"
    state = json.loads(bytes(stored[name].tolist()))
    if list(state["shape"]) != [rows, columns]:
        raise ConfigError(f"its {name} says shape = {state['shape']}, and config.json [{rows}, {columns}]")
    scale = stored["weight.absmax"]
    if form.nested:
        table, block = stored["weight.nested_quant_map"], int(state["nested_blocksize"])
        outer = stored["weight.nested_absmax"].repeat_interleave(block)[: len(scale)]
        scale = table[scale.int()].mul_(outer).add_(float(state["nested_offset"]))
    numbers = stored["weight.quant_map"][halves(stored["weight"].view(1, -1), low_first=False)]
    numbers = numbers[:, : rows * columns]
    return numbers.mul_(scale.repeat_interleave(int(state["blocksize"]))[: rows * columns]).view(rows, columns)


def halves(packed: Tensor, low_first: bool) -> Tensor:
    """The numbers of 4 bits in bytes [rows, bytes], as indices."""
    low, high = (packed & 15).int(), (packed >> 4).int()
    return torch.stack([low, high] if low_first else [high, low], 2).flatten(1)
