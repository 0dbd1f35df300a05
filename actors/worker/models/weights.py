"""Where weights come from: safetensors or GGUF files, mapped and read tensor by tensor, or random numbers.

A Checkpoint is checked as a whole before the first tensor is read. Knows files; not how a model is put together.
"""

from __future__ import annotations

import logging
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...model.architecture import Architecture
from ...model.config_json import find_architecture, read_architecture
from ...model.gguf.folder import gguf_tensors
from ...model.heads.checkpoints import Head
from ...model.info import ModelInfo, read_json
from ...model.layers import EMBEDDINGS, HEAD, Kind
from ...model.memory.dtypes import dtype_on_cpu, float_on_gpu
from ...model.mistral.names import read_mark, turning_of
from ...model.pipeline.stages import worker_shapes
from ...model.rope import long_texts
from ...model.sharding import shard_shape
from ...model.weights.weight_files import Homes, check_weights, is_pickled
from ...options.config import Config, ConfigError
from ..cpu.decoder import Decoder
from ..cpu.executor import CpuModel
from ..cpu.layers import native
from ..formats.decoding import decoded
from ..formats.grouped import open_grouped
from ..formats.stacking import unstacked
from ..lora.sites import LoraSites
from ..memory import large_blocks_apart
from ..tensor_parallel import TensorParallelGroup
from ..torch_import import generator, import_rest
from ..vision.model import SeeingModel
from ..weight_cache.cache import open_weight_cache
from .gguf_tensors import open_gguf
from .sharding import Alone, Get, Read, shard
from .tensors import regrouped, unpaired

if TYPE_CHECKING:
    from ..pipeline.link import StageLink

log = logging.getLogger("worker")

STAYS_MAPPED = f"{EMBEDDINGS}.weight"  # by a map of its own: what is joined or packed needs no map when it is
PLACES, ROWS_AT_A_PLACE = 16, 8  # of a vocabulary, where two tables are compared
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_decoder(
    config: Config, info: ModelInfo, group: TensorParallelGroup | None = None, stage: StageLink | None = None
) -> Decoder:
    """The model of `info.folder`, by layers of this server or of transformers; of a pipeline the part of this stage."""
    values = read_json(Path(info.folder) / "config.json")
    if find_architecture(values, config.model_impl, config.quantization) is not None:
        return load_model(config, info, group, stage)
    import_rest()
    from ..adapter.load import load_adapted

    return load_adapted(config, info, group)


def load_model(
    config: Config, info: ModelInfo, group: TensorParallelGroup | None = None, stage: StageLink | None = None
) -> CpuModel:
    """The model of `info.folder`, or this member's part of it, ready to run. ConfigError says what is wrong with it."""
    shape = read_architecture(read_json(Path(info.folder) / "config.json"), quantization=config.quantization)
    dtype = choose_dtype(config, shape)
    is_whole = group is None and stage is None
    # before the files are opened, whose marks name it: what is made of those that replace them meanwhile is not found
    cache = open_weight_cache(config, info, native.current(), dtype) if is_whole else None
    own, get = open_weights(config, info, shape, group)
    grouped = None
    if (
        native.current() is not None
        and group is None
        and config.quantization != "int8"
        and config.load_format != "dummy"
        and not shape.grouped_qkv
    ):
        grouped = open_grouped(Path(info.folder), shape, read_parts)
    make = CpuModel if shape.vision is None else SeeingModel
    lora = LoraSites() if config.enable_lora else None
    with large_blocks_apart():
        if stage is not None:
            from ..pipeline.model import StageModel

            parts = worker_shapes(config, shape)
            return StageModel(stage, parts, get, dtype, info.max_model_len, group, config.deterministic, grouped, lora)
        made = make(own, get, dtype, info.max_model_len, group, config.deterministic, grouped, lora, cache)
    if cache is not None:
        cache.loaded()
    return made


def open_weights(
    config: Config,
    info: ModelInfo,
    shape: Architecture,
    group: TensorParallelGroup | None,
    device: torch.device | str = "cpu",
) -> tuple[Architecture, Get]:
    """The architecture of this member's part of a model, and what reads its tensors. Random ones are on `device`."""
    if words := long_texts(shape.rope, info.max_model_len):
        log.info("%s", words)
    dummy = config.load_format == "dummy"
    read = random_tensors(shape, config.seed, device) if dummy else open_checkpoint(Path(info.folder), shape)
    place = group or Alone()
    own = shard_shape(shape, place.size, config.enable_expert_parallel)
    return own, shard(read, shape, place, config.enable_expert_parallel)


def files_bytes(folder: str) -> int:
    """Of all files of a checkpoint, those that a GGUF's folder names included: about what its weights are."""
    found = gguf_tensors(Path(folder))
    paths = set(Path(folder).iterdir()) if found is None else {path for path, _, _ in found[1]}
    return sum(path.stat().st_size for path in paths if path.is_file())


def choose_dtype(config: Config, shape: Architecture) -> torch.dtype:
    """As machine.py has it, and the log says why."""
    name = dtype_on_cpu(config, shape)
    if config.dtype == "auto" and shape.stored_dtype == "bfloat16" and shape.quantization.computes_in is None:
        reason = "multiplies it natively" if name == "bfloat16" else "has no instructions for it (avx512_bf16 or amx)"
        log.info("--dtype auto: %s; the model is bfloat16, and this CPU %s", name, reason)
    return DTYPES[name]


def dtype_on_gpu(config: Config, stored: str) -> torch.dtype:
    """The same of weights that are stored in this type, on a GPU."""
    name = float_on_gpu(config, stored)
    if name not in DTYPES:
        raise ConfigError(f"--dtype auto: the model is stored in {name}; name one of {', '.join(DTYPES)}")
    if name != stored and config.dtype == "auto":
        log.info("--dtype auto: %s; the model is stored in %s, in which --dtype %s computes", name, stored, stored)
    return DTYPES[name]


def open_checkpoint(folder: Path, shape: Architecture) -> Read:
    """Map the files of `folder`; the result reads parts of tensors. Names and shapes of all must be as they should."""
    stored = check_weights(folder, shape)
    homes = {name: one.home(name) for name, one in stored.items()}
    if shape.tied and shape.stored is None and gguf_tensors(folder) is None:
        _check_tied(folder, homes, shape.vocab_size)
    return open_homes(folder, shape, homes)


def _check_tied(folder: Path, homes: Homes, words: int) -> None:
    """Where there is another table beside embeddings that make logits: is it the same? Some rows tell."""
    tables = {name: homes[name] for name in (f"{EMBEDDINGS}.weight", f"{HEAD}.weight") if name in homes}
    if len(tables) < 2:
        return
    read = read_parts(tables)
    for first in range(0, words, max(1, words // PLACES)):
        rows = slice(first, first + ROWS_AT_A_PLACE)
        embeddings, head = (read(name, rows, None).float() for name in tables)
        if not torch.equal(embeddings, head):
            raise ConfigError(
                f"model: {folder / 'config.json'} says tie_word_embeddings, and {HEAD}.weight is other than "
                f"""{EMBEDDINGS}.weight; --hf-overrides '{{"tie_word_embeddings": false}}' takes it"""
            )


def open_homes(folder: Path, shape: Architecture, homes: Homes) -> Read:
    """The same of tensors whose places are known, and right."""
    if (read_gguf := open_gguf(folder, shape)) is not None:
        return read_gguf
    files = read_parts(homes)
    if parts := shape.stacked(homes):
        files = unstacked(files, parts, shape.stored_shapes())
    if shape.stored is not None:
        files = decoded(files, shape, homes.keys() | {name for name, part in parts.items() if part.name in homes})
    return regrouped(files, shape) if shape.grouped_qkv else files


def read_parts(homes: Homes) -> Read:
    """What reads parts of tensors of which file and name there are known. Of Mistral's own form rows of queries and
    keys are read in the order of the hub: by whole heads.
    """
    paths = {path for path, _ in homes.values()}
    pickled = {path: _load(path) for path in paths if is_pickled(path)}
    files = {path: _open(path) for path in paths if not is_pickled(path)}
    marks = {path: mark for path in paths if (mark := read_mark(path.parent)) is not None}

    def read(name: str, rows: slice, columns: slice | None) -> Tensor:
        path, stored = homes[name]
        if path in pickled:
            whole = pickled[path][stored]
            return whole if not whole.shape else whole[rows] if columns is None else whole[rows, columns]
        file = _open(path) if name == STAYS_MAPPED else files[path]
        part = file.get_slice(stored)
        if not part.get_shape():  # one number has no rows
            return cast(Tensor, file.get_tensor(stored))
        tensor: Tensor = part[rows] if columns is None else part[rows, columns]
        turning = turning_of(marks[path], stored) if path in marks else None
        if turning is None or part.get_shape()[0] != turning.rows:  # of a block of rows there is one scale
            return tensor
        return unpaired(tensor, turning.head_dim)

    return read


def open_head(head: Head) -> Get:
    """What reads a head's tensors by the names that its format has for them."""
    read = read_parts(head.homes)
    return lambda name: read(name, slice(None), None)


def random_tensors(shape: Architecture, seed: int, device: torch.device | str = "cpu") -> Read:
    """--load-format dummy: what a model of this shape is initialised with, the same for the same seed and device."""
    specs, scales = shape.specs(), shape.scale_specs()
    numbers = {name: number for number, name in enumerate(specs)}

    def whole(name: str) -> Tensor:
        if name in scales:  # of 127 steps up to what is drawn below
            return torch.full(shape.tensor_shape(scales[name]), 0.1 / 127, device=device)
        sizes, kind = shape.tensor_shape(specs[name]), specs[name].kind
        if kind in (Kind.GAIN, Kind.SCALE):
            return torch.ones(sizes, device=device)
        if kind is Kind.BIAS:
            return torch.zeros(sizes, device=device)
        numbered = generator(seed * len(numbers) + numbers[name], device)
        return torch.empty(sizes, device=device).normal_(0, 0.02, generator=numbered)

    def read(name: str, rows: slice, columns: slice | None) -> Tensor:
        return whole(name)[rows] if columns is None else whole(name)[rows, columns]

    return read


def _load(path: Path) -> dict[str, Tensor]:
    """All tensors of pytorch_model.bin, mapped; of what it may make of a pickle, torch has a list."""
    try:
        tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, OSError) as error:
        raise ConfigError(f"model: {path} cannot be read: {str(error).splitlines()[0]}") from None
    return tensors


def _open(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path} is broken or cut off: {error}") from None
