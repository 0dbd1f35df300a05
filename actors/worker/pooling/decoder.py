"""Hidden states by this server's own layers: causal, in parts, with KV memory and behind cached prefixes."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

from torch import Tensor
from torch.nn import functional

from ...model.architecture import Architecture, read_architecture
from ...model.info import ModelInfo, read_json
from ...model.pooling.choice import native_values
from ...model.pooling.spec import PoolingSpec
from ...model.weights.weight_files import find_hidden_weights
from ...options.config import Config, ConfigError
from ..cpu.executor import CpuBuilder, CpuModel
from ..memory import large_blocks_apart
from ..models.sharding import Alone, shard
from ..models.weights import choose_dtype, random_tensors, read_parts
from ..quantization.base import CpuLinear
from .poolers import Head

SCORE = "score.weight"


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


def load_hidden(config: Config, info: ModelInfo, spec: PoolingSpec) -> tuple[HiddenModel, Head | None]:
    """The model of `info.folder`, and its head if it has one."""
    file = Path(info.folder) / "config.json"
    shape = read_architecture(native_values(read_json(file), spec.base), file, config.quantization)
    dtype = choose_dtype(config, shape)
    if config.load_format == "dummy":
        read, head = random_tensors(shape, config.seed), None
    else:
        homes, heads = find_hidden_weights(Path(info.folder), shape)
        read = read_parts(homes)
        head = read_parts(heads)(SCORE, slice(None), None).float() if SCORE in heads else None
    with large_blocks_apart():
        model = HiddenModel(shape, shard(read, shape, Alone(), False), dtype, info.max_model_len)
    return model, _head(shape, spec, head) if spec.head else None


def _head(shape: Architecture, spec: PoolingSpec, weight: Tensor | None) -> Head:
    """A row for each label."""
    labels = len(spec.labels)
    if weight is None or tuple(weight.shape) != (labels, shape.hidden_size):
        found = "no" if weight is None else f"a {list(weight.shape)}"
        raise ConfigError(
            f"model: its weights have {found} {SCORE}; {labels} labels need {[labels, shape.hidden_size]}"
        )

    def scores(hidden: Tensor, ids: Tensor) -> Tensor:
        return functional.linear(hidden.float(), weight)

    return scores
