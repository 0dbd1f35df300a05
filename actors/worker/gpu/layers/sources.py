"""The products of a model that are to have weights of few bits on a GPU, and where these come from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from actorserve.kernels.triton.linear.scaled_linear import try_product
from actorserve.kernels.triton.quantised_kv import supported

from ....model.architecture import Architecture
from ....model.info import ModelInfo
from ....model.memory.dtypes import float_on_gpu
from ....model.quantization import METHODS, NONE
from ....options.config import Config, ConfigError
from ....options.objects.speculative import count_drafts
from ...formats.as_stored import CheckpointBits
from ...formats.gguf_bits import GgufBits
from ...formats.rounded import RoundedBits
from ...models.sharding import Alone
from ...models.weights import read_parts
from ...tensor_parallel import TensorParallelGroup
from ..memory import is_out_of_memory
from .stored import Bits, StoredLinears

log = logging.getLogger("worker")


@contextmanager
def few_bits(
    config: Config,
    info: ModelInfo,
    shape: Architecture,
    stays: bool,
    group: TensorParallelGroup | None,
    device: torch.device,
) -> Iterator[StoredLinears | None]:
    """Of the whole model's shape as a GPU computes it, whose weights are to stay as they are (`stays`) or not.

    None: all are floats. The model is made meanwhile; then the log says what became of them.
    """
    bits: Bits | None = None
    if shape.quantization.bytes_per_weight is not None:
        bits = RoundedBits(shape)
    elif stays and config.load_format != "dummy":
        given = Path(info.folder), shape, group or Alone(), config.enable_expert_parallel
        bits = GgufBits(*given) if shape.stored is None else CheckpointBits(*given, read_parts, device)
    rounds_inputs = METHODS.get(config.quantization, NONE).rounds_inputs
    draws = config.max_num_seqs * (1 + count_drafts(config))
    stored = None if bits is None else StoredLinears(bits, rounds_inputs, draws)
    yield stored
    if rounds_inputs and (stored is None or not stored.count_scaled()):
        raise ConfigError(
            f"--quantization {config.quantization}: no weights here are e4m3 with scales by tensor or row; auto goes"
        )
    if stored is not None:
        kind = shape.quantization.name if not stays else "gguf" if shape.stored is None else shape.stored.name
        log.info("%s: %s", kind, stored.words(float_on_gpu(config, shape.stored_dtype)))


def check_rounded_inputs(config: Config, dtype: torch.dtype, device: torch.device) -> None:
    """ConfigError if --quantization asks for products that this device or torch has not."""
    name = config.quantization
    if not METHODS.get(name, NONE).rounds_inputs:
        return
    if dtype != torch.bfloat16:
        raise ConfigError(f"--quantization {name}: with --dtype bfloat16 only, not {str(dtype).removeprefix('torch.')}")
    if not supported(device):
        raise ConfigError(
            f"--quantization {name}: this GPU has no products of e4m3 (Ada, Hopper and newer have); fp8 goes"
        )
    try:
        try_product(device)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ConfigError(
            f"--quantization {name}: torch {torch.__version__} has no such product for this GPU: {error}; fp8 goes"
        ) from error
