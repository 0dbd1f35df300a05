"""Tensors of GGUF files: mapped, and decoded where they are read, so that no more than one is whole in memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.gguf.folder import Tensors, gguf_given, gguf_sizes, gguf_tensors
from ...model.gguf.header import BY_NAME, GgufTensor
from ...model.gguf.joined import joined_names
from ...model.gguf.layouts import LAYOUTS
from ...model.gguf.names import hub_tensors, is_paired, is_shifted, scale_names
from ...model.layers import EMBEDDINGS
from ...options.config import ConfigError
from .gguf_blocks import DECODERS
from .gguf_changes import changed, together
from .sharding import Read
from .tensors import is_finite, unpaired

FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
AT_ONCE = 1 << 19  # numbers that are decoded in one step: what it needs beside its result stays in the cache


def open_gguf(folder: Path, shape: Architecture) -> Read | None:
    """What reads parts of the tensors that a folder made of GGUF files names; None if it is another folder."""
    if (found := gguf_tensors(folder)) is None:
        return None
    kept = shape.quantization.bytes_per_weight is not None  # other weights are rounded to 8 bits, these to 11
    return gguf_reader(folder, *found, f"{EMBEDDINGS}.weight" if kept else None)


def gguf_reader(folder: Path, architecture: str, tensors: Tensors, small: str | None = None) -> Read:
    """The same for any architecture; the tensor `small` is float16, if it can be."""
    homes = _homes(architecture, tensors)
    factors = _factors(architecture, tensors)
    given = gguf_given(folder)
    sizes, layout = gguf_sizes(folder), LAYOUTS.get(architecture)
    joined = {whole: (parts, one.how) for whole, parts, one in joined_names(architecture, homes)}

    def read(name: str, rows: slice, columns: slice | None) -> Tensor:
        if name in given:
            shape, number = given[name]
            return torch.full(shape, number)
        if name in joined:
            parts, how = joined[name]
            whole = together(how, _whole(*homes[parts[0]]), _whole(*homes[parts[1]]), sizes)
            return whole[rows] if columns is None else whole[rows, columns]
        data, tensor = homes[name]
        if len(tensor.shape) > 2:
            whole = _whole(data, tensor) * factors.get(name, 1.0)
            return (whole if layout is None else changed(whole, layout.changes_of(name), sizes))[rows]
        kind = torch.float16 if name == small else torch.float32
        part = _read(data, tensor, rows, columns, kind)
        if kind == torch.float16 and not is_finite(part):
            part = _read(data, tensor, rows, columns)
        if name in factors:
            part = part * factors[name]
        if is_shifted(architecture, name):
            return part - 1
        if layout is not None and (changes := layout.changes_of(name)):
            return changed(part, changes, sizes)
        return unpaired(part, sizes["head_dim"]) if is_paired(architecture, name) else part

    return read


def gguf_blocks(
    folder: Path, shape: Architecture
) -> Callable[[str], tuple[str, Tensor, Callable[[Tensor], Tensor]] | None] | None:
    """As `open_gguf`, what reads of a weight its type, its blocks [rows, blocks, bytes], and what to do with rows; None
    of one that is made of other numbers than these."""
    if (found := gguf_tensors(folder)) is None:
        return None
    architecture, tensors = found
    homes, factors = _homes(architecture, tensors), _factors(architecture, tensors)
    layout = LAYOUTS.get(architecture)

    def read(name: str) -> tuple[str, Tensor, Callable[[Tensor], Tensor]] | None:
        if name not in homes or name in factors or (layout is not None and layout.changes_of(name)):
            return None
        data, tensor = homes[name]
        stored = data[tensor.offset : tensor.offset + tensor.size]
        blocks = stored.view(-1, tensor.shape[-1] // tensor.type.numbers, tensor.type.size)
        paired = is_paired(architecture, name)
        return tensor.type.name, blocks, lambda rows: unpaired(rows, shape.head_dim) if paired else rows

    return read


def _homes(architecture: str, tensors: Tensors) -> dict[str, tuple[Tensor, GgufTensor]]:
    """By the hub's names, which file has a tensor, and where."""
    maps: dict[Path, Tensor] = {}
    homes: dict[str, tuple[Tensor, GgufTensor]] = {}
    names = {name for _, name, _ in tensors}
    scales = scale_names(architecture, {name: tensor.type.name for _, name, tensor in tensors})
    for path, name, tensor in tensors:
        if name in scales:
            continue
        for hub, part in hub_tensors(architecture, name, tensor, names):
            if path not in maps:
                maps[path] = _mapped(path)
            homes[hub] = maps[path], part
    return homes


def _factors(architecture: str, tensors: Tensors) -> dict[str, float]:
    """By the hub's names, what weights in NVFP4 are multiplied by: one number for each, or for each expert."""
    by_name = {name: (path, tensor) for path, name, tensor in tensors}
    found: dict[str, float] = {}
    for name, weight in scale_names(architecture, {name: one.type.name for name, (_, one) in by_name.items()}).items():
        if name.endswith(".input_scale"):
            continue
        path, tensor = by_name[name]
        numbers = _whole(_mapped(path), tensor).flatten().tolist()
        hubs = [hub for hub, _ in hub_tensors(architecture, weight, by_name[weight][1], by_name)]
        if len(numbers) not in (1, len(hubs)):
            raise ConfigError(f"model: {name} has {len(numbers)} numbers; 1 or {len(hubs)} are needed")
        found |= dict(zip(hubs, numbers * (len(hubs) // len(numbers)), strict=True))
    return found


def _mapped(path: Path) -> Tensor:
    """All bytes of a file; what is written to them would be seen by nobody, and nobody does."""
    try:
        with path.open("rb") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path} cannot be read: {error}") from None


def _read(
    data: Tensor, tensor: GgufTensor, rows: slice, columns: slice | None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Some rows, and of these some columns; what is decoded is of the type `dtype`."""
    kind, width = tensor.type, tensor.shape[-1]
    stored = data[tensor.offset : tensor.offset + tensor.size]
    if len(tensor.shape) == 1:
        return _decoded(stored.view(1, -1, kind.size), kind.name, dtype).view(-1)[rows]
    blocks = stored.view(-1, width // kind.numbers, kind.size)[rows]
    if columns is None:
        return _decoded(blocks, kind.name, dtype)
    first, end, _ = columns.indices(width)
    cut = blocks[:, first // kind.numbers : -(-end // kind.numbers)]
    skipped = first // kind.numbers * kind.numbers
    return _decoded(cut, kind.name, dtype)[:, first - skipped : end - skipped]


def _whole(data: Tensor, tensor: GgufTensor) -> Tensor:
    """All of it, with as many dimensions as it has."""
    return _read(data, tensor, slice(None), None).view(tensor.shape)


def _decoded(blocks: Tensor, name: str, dtype: torch.dtype) -> Tensor:
    """[rows, numbers] of bytes [rows, blocks, bytes]: floating point is only seen as such, all else decoded."""
    if name in FLOATS:
        if not blocks.is_contiguous():
            blocks = blocks.contiguous()
        return blocks.flatten(1).view(FLOATS[name])
    decode = DECODERS[name]
    result = torch.empty(len(blocks), blocks.shape[1] * BY_NAME[name].numbers, dtype=dtype)
    step = max(1, AT_ONCE // max(1, result.shape[1]))
    for first in range(0, len(blocks), step):
        some = blocks[first : first + step]
        result[first : first + step] = decode(some.reshape(-1, some.shape[-1])).view(len(some), -1)
    return result
