"""Hidden states by this server's own layers: causal, in parts, with KV memory and behind cached prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from torch import Tensor

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
from ..models.sharding import Alone, shard
from ..models.weights import choose_dtype, open_homes, random_tensors
from ..quantization.base import CpuLinear
from ..tensor_parallel import TensorParallelGroup
from ..vision.model import SeeingModel
from . import heads
from .poolers import Head


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
    file = Path(info.folder) / "config.json"
    shape = read_architecture(native_values(read_json(file), spec.base), file, config.quantization)
    dtype = choose_dtype(config, shape)
    head: Head | None
    if config.load_format == "dummy":
        read = random_tensors(shape, config.seed)
        head = heads.drawn(spec, shape.hidden_size, config.seed) if spec.head else None
    else:
        homes, others = find_hidden_weights(Path(info.folder), shape)
        read = open_homes(Path(info.folder), shape, homes)
        head = heads.load(spec, shape, info, read, others) if spec.head else None
    place, experts = group or Alone(), config.enable_expert_parallel
    with large_blocks_apart():
        make = HiddenModel if shape.vision is None else SeeingHiddenModel
        get = shard(read, shape, place, experts)
        model = make(shard_shape(shape, place.size, experts), get, dtype, info.max_model_len, group)
    return model, head
