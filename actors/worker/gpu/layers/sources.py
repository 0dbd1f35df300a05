"""Where the weights of a model come from that are to have few bits on a GPU."""

from __future__ import annotations

from pathlib import Path

from ....model.architecture import Architecture
from ....model.info import ModelInfo
from ....options.config import Config
from ...formats.as_stored import CheckpointBits
from ...formats.gguf_bits import GgufBits
from ...formats.rounded import RoundedBits
from ...models.sharding import Alone
from ...models.weights import read_parts
from ...tensor_parallel import TensorParallelGroup
from .stored import Bits


def find_bits(
    config: Config, info: ModelInfo, shape: Architecture, stays: bool, group: TensorParallelGroup | None
) -> Bits | None:
    """Of a whole model's shape as a GPU computes it, whose weights are to stay as they are (`stays`) or not.

    None: all are floats.
    """
    if shape.quantization.bytes_per_weight is not None:
        return RoundedBits(shape)
    if not stays or config.load_format == "dummy":
        return None
    given = Path(info.folder), shape, group or Alone(), config.enable_expert_parallel
    return GgufBits(*given) if shape.stored is None else CheckpointBits(*given, read_parts)
