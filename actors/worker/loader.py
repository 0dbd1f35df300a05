"""Where weights come from: safetensors files, mapped and read tensor by tensor, or random numbers.

A Checkpoint is checked as a whole before the first tensor is read. Knows files; not how a model is put together.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..config import Config, ConfigError
from ..model_files import ModelInfo, read_json
from .architecture import Architecture, read_architecture
from .group import Group
from .machine import cpu_flags
from .model import Model
from .shards import ALL, Read, shard, shard_shape

log = logging.getLogger("worker")

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FLOATS = ("F32", "F16", "BF16")
STAYS_MAPPED = "model.embed_tokens.weight"  # by a map of its own: what is joined or packed needs no map when it is
NAMED_AT_MOST = 5  # tensors named in an error
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NATIVE_BFLOAT16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last is arm64's


def load_model(config: Config, info: ModelInfo, group: Group | None = None) -> Model:
    """The model of `info.folder`, or this member's part of it, ready to run. ConfigError says what is wrong with it."""
    folder = Path(info.folder)
    shape = read_architecture(read_json(folder / "config.json"))
    int8 = config.quantization == "int8"
    dtype = torch.float32 if int8 else choose_dtype(config, shape)
    read = random_tensors(shape, config.seed) if config.load_format == "dummy" else open_checkpoint(folder, shape)
    if group is not None:
        own = shard_shape(shape, group.size)
        return Model(own, shard(read, shape, group), dtype, info.max_model_len, group, int8)
    return Model(shape, lambda name: read(name, ALL, None), dtype, info.max_model_len, None, int8)


def choose_dtype(config: Config, shape: Architecture) -> torch.dtype:
    """--dtype; `auto` is float32, or bfloat16 where the model is stored so and the processor multiplies it natively."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    if shape.stored_dtype != "bfloat16":
        return torch.float32
    native = bool(cpu_flags() & NATIVE_BFLOAT16)
    reason = "multiplies it natively" if native else "has no instructions for it (avx512_bf16 or amx)"
    log.info("--dtype auto: %s; the model is bfloat16, and this CPU %s", "bfloat16" if native else "float32", reason)
    return torch.bfloat16 if native else torch.float32


def open_checkpoint(folder: Path, shape: Architecture) -> Read:
    """Map the files of `folder`; the result reads parts of tensors. Names and shapes of all must be as they should."""
    files = {path: _open(path) for path in _paths(folder)}
    places = {name: file for file in files.values() for name in file.keys()}
    _compare(folder, shape, {name: _shape(file, name) for name, file in places.items()})

    homes = {name: path for path, file in files.items() for name in file.keys()}

    def read(name: str, rows: slice, columns: slice | None) -> Tensor:
        file = _open(homes[name]) if name == STAYS_MAPPED else places[name]
        part = file.get_slice(name)
        tensor: Tensor = part[rows] if columns is None or columns == ALL else part[rows, columns]
        return tensor

    return read


def random_tensors(shape: Architecture, seed: int, device: torch.device | str = "cpu") -> Read:
    """--load-format dummy: what a model of this shape is initialised with, the same for the same seed and device."""
    names = {name: number for number, name in enumerate(shape.tensors())}
    shapes = shape.tensors()

    def whole(name: str) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shapes[name], device=device)
        if name.endswith("bias"):
            return torch.zeros(shapes[name], device=device)
        generator = torch.Generator(device).manual_seed(seed * len(names) + names[name])
        return torch.empty(shapes[name], device=device).normal_(0, 0.02, generator=generator)

    def read(name: str, rows: slice, columns: slice | None) -> Tensor:
        return whole(name)[rows] if columns is None else whole(name)[rows, columns]

    return read


def _paths(folder: Path) -> list[Path]:
    if not (folder / INDEX).exists():
        if not (folder / SINGLE).exists():
            raise ConfigError(f"model: {folder} has neither {SINGLE} nor {INDEX}; --load-format dummy needs no weights")
        return [folder / SINGLE]
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map")
    paths = [folder / name for name in sorted(set(weight_map.values()))]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise ConfigError(f"model: {folder} lacks {_some(missing)}, which {INDEX} names")
    return paths


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is broken or cut off: {error}") from None


def _shape(file: safe_open, name: str) -> tuple[int, ...]:
    part = file.get_slice(name)
    if part.get_dtype() not in FLOATS:
        raise ConfigError(f"model: {name} is stored as {part.get_dtype()}; supported are {', '.join(FLOATS)}")
    return tuple(part.get_shape())


def _compare(folder: Path, shape: Architecture, found: Mapping[str, tuple[int, ...]]) -> None:
    """Every tensor of the architecture is there with its shape, and no other."""
    wanted = shape.tensors()
    needless = {name for name in found if name.endswith("rotary_emb.inv_freq")}  # of old checkpoints
    needless |= {"lm_head.weight"} if shape.tied else set()
    problems = []
    if missing := sorted(wanted.keys() - found.keys()):
        problems.append(f"lacks {_some(missing)}")
    if unknown := sorted(found.keys() - wanted.keys() - needless):
        problems.append(f"has {_some(unknown)}, for which the model has no use")
    wrong = [name for name in wanted if name in found and found[name] != wanted[name]]
    if wrong:
        told = [f"{name} {list(found[name])} in place of {list(wanted[name])}" for name in wrong]
        problems.append(f"has the shape of {_some(told)}")
    if problems:
        raise ConfigError(f"model: the weights in {folder} do not fit its config.json: it {'; it '.join(problems)}")


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
