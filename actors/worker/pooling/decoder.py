"""Hidden states by this server's own layers: causal, in parts, with KV memory and behind cached prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.config_json import read_architecture
from ...model.info import ModelInfo, read_json
from ...model.pooling.choice import native_values
from ...model.pooling.spec import PoolingSpec
from ...model.sharding import shard_shape
from ...model.weights.weight_files import find_hidden_weights
from ...options.config import Config
from ..cpu.builder import CpuBuilder
from ..cpu.executor import CpuModel
from ..memory import large_blocks_apart
from ..models.sharding import Alone, Read, shard
from ..models.weights import choose_dtype, open_homes, random_tensors
from ..quantization.base import CpuLinear
from ..tensor_parallel import TensorParallelGroup
from ..vision.model import SeeingModel
from . import heads
from .poolers import CPU, Head


class _NoLogits:
    """In the place of what makes logits."""

    def __call__(self, x: Tensor) -> NoReturn:
        raise AssertionError("a model that pools makes no logits")

    def add_to(self, out: Tensor, x: Tensor) -> NoReturn:
        self(x)


class HiddenModel(CpuModel):
    """The same decoder without logits."""

    def make_head(self, build: CpuBuilder) -> CpuLinear:
        return _NoLogits()

    def hidden(self, x: Tensor) -> Tensor:
        """Hidden states of rows of the last layer's output."""
        return self.norm(x)


class SeeingHiddenModel(HiddenModel, SeeingModel):
    """Of one that sees pictures."""


def load_hidden(
    config: Config, info: ModelInfo, spec: PoolingSpec, group: TensorParallelGroup | None = None
) -> tuple[HiddenModel, Head | None]:
    """The model of `info.folder`, or this member's part of it, and its head if it has one, which all have whole."""
    shape = hidden_shape(config, info, spec)
    dtype = choose_dtype(config, shape)
    read, head = open_hidden(config, info, spec, shape)
    place, experts = group or Alone(), config.enable_expert_parallel
    with large_blocks_apart():
        make = HiddenModel if shape.vision is None else SeeingHiddenModel
        get = shard(read, shape, place, experts)
        model = make(shard_shape(shape, place.size, experts), get, dtype, info.max_model_len, group)
    return model, head


def hidden_shape(config: Config, info: ModelInfo, spec: PoolingSpec) -> Architecture:
    """Of the decoder in whose layers hidden states are computed."""
    file = Path(info.folder) / "config.json"
    return read_architecture(native_values(read_json(file), spec.base), file, config.quantization)


def open_hidden(
    config: Config, info: ModelInfo, spec: PoolingSpec, shape: Architecture, device: torch.device = CPU
) -> tuple[Read, Head | None]:
    """What reads the decoder's tensors, and its head on `device`, if it has one."""
    if config.load_format == "dummy":
        head = heads.drawn(spec, shape.hidden_size, config.seed, device) if spec.head else None
        return random_tensors(shape, config.seed), head
    homes, others = find_hidden_weights(Path(info.folder), shape)
    read = open_homes(Path(info.folder), shape, homes)
    return read, heads.load(spec, shape, info, read, others, device) if spec.head else None
