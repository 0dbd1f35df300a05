"""Reads weights of a checkpoint that stores them in one of the formats as if it had them as floats.

One weight is decoded at a time, and the last one kept, since fused ones are read in parts. So memory never holds more
than the model and one tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from torch import Tensor

from ...model.architecture import MATRICES, Architecture
from ...model.formats.stored import (
    ALL,
    AffineWeight,
    AwqWeight,
    BnbWeight,
    Cuts,
    ExpertFloat4Weight,
    Float4Weight,
    GptqWeight,
    PackedWeight,
    ScaledWeight,
    StoredSpec,
    WeightFormat,
    blocks,
)
from ...options.config import ConfigError
from ..models.sharding import Read
from ..models.tensors import is_finite
from .floats import bitsandbytes, expert, float4
from .integers import added, awq, gptq, packed, scaled

DECODERS: dict[type[WeightFormat], Callable[[Any, dict[str, Tensor], int, int], Tensor]] = {
    AffineWeight: added,
    AwqWeight: awq,
    BnbWeight: bitsandbytes,
    ExpertFloat4Weight: expert,
    Float4Weight: float4,
    GptqWeight: gptq,
    PackedWeight: packed,
    ScaledWeight: scaled,
}


def decoded(read: Read, shape: Architecture, there: Container[str]) -> Read:
    """The same for all names of the architecture; `there` are those of the checkpoint."""
    specs, scales = shape.specs(), shape.scale_specs()
    last: tuple[str, Tensor] | None = None

    def get(name: str, rows: slice, columns: slice | None) -> Tensor:
        nonlocal last
        if name in scales:
            form = shape.format_of(name.rpartition(".")[0])
            assert isinstance(form, ScaledWeight)
            return read(name, slice(None), None).float().div(form.divisor).view(-1)[rows]
        form = shape.format_of(name.removesuffix(".weight")) if specs[name].kind in MATRICES else None
        if form is None:
            return read(name, rows, columns)
        if last is None or last[0] != name:
            last = None  # before the next is made
            height, width = shape.tensor_shape(specs[name])
            own = set(specs) - {name}
            last = name, decode(read, there, form, name.removesuffix("weight"), (height, width), own)
        return last[1][rows] if columns is None else last[1][rows, columns]

    return get


def decode(
    read: Read, there: Container[str], form: WeightFormat, prefix: str, size: tuple[int, int], used: set[str]
) -> Tensor:
    """All of a weight, float32."""
    stored = read_stored(read, there, form, prefix, size, used)
    try:
        weight = DECODERS[type(form)](form, stored, *size)
    except ConfigError as error:
        raise ConfigError(f"model: {prefix}weight: {error}") from None
    if not is_finite(weight):
        raise ConfigError(f"model: {prefix}weight has numbers that are not finite when it is decoded")
    return weight


def read_stored(
    read: Read,
    there: Container[str],
    form: WeightFormat,
    prefix: str,
    size: tuple[int, int],
    used: Container[str],
    cuts: Cuts | None = None,
) -> dict[str, Tensor]:
    """What a weight is made of, by what comes after the layer's name; of what `cuts` name that part."""
    stored: dict[str, Tensor] = {}
    for suffix, spec in form.tensors(*size).items():
        if prefix + suffix in there:
            rows, columns = (cuts or {}).get(suffix, (ALL, ALL))
            assert rows is not None and columns is not None, "what cannot be cut is read whole"
            stored[suffix] = tensor = read(prefix + suffix, rows, None if columns == ALL else columns)
            _check(prefix + suffix, tensor, spec, prefix + suffix in used)
    _check_whole(form, prefix, stored, size)
    return stored


def _check(name: str, tensor: Tensor, spec: StoredSpec, used: bool) -> None:
    if spec.zero and not used and tensor.any():
        raise ConfigError(f"model: {name} is not 0, and by config.json the layer has none")


def _check_whole(form: WeightFormat, prefix: str, stored: dict[str, Tensor], size: tuple[int, int]) -> None:
    """What one tensor says of another."""
    if isinstance(form, ScaledWeight) and form.other_name and (form.scale in stored) == (form.other_name in stored):
        raise ConfigError(f"model: either {prefix}{form.scale} or {prefix}{form.other_name} is needed")
    if "weight_shape" in stored and stored["weight_shape"].tolist() != list(size):
        told = stored["weight_shape"].tolist()
        raise ConfigError(f"model: {prefix}weight_shape is {told}, and by config.json it is {list(size)}")
    for name in ("g_idx", "weight_g_idx"):
        if name in stored:
            assert isinstance(form, GptqWeight | PackedWeight)
            count = blocks(size[1], form.group)
            least, most = stored[name].min().item(), stored[name].max().item()
            if least < 0 or most >= count:
                raise ConfigError(f"model: {prefix}{name} has groups from {least} to {most}; there are {count}")
