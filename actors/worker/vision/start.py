"""A worker's eyes, where its model has some."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ...model.info import ModelInfo
from ...options.config import Config
from ...protocol.media import MediaItem, MediaTensor
from ...runtime.process import Context
from ..cpu.decoder import Decoder
from .encoder import CPU, MediaSource, VisionEncoder
from .rows import VisionRows
from .tower import load_tower

GB = 1 << 30


class NoMedia:
    """Nobody gives a model anything to see."""

    def items(self, slot: int, generation: int) -> list[MediaItem]:
        """See MediaSource."""
        return []

    def array(self, tensor: MediaTensor) -> np.ndarray[Any, Any]:
        """See MediaSource."""
        raise LookupError(f"there is no {tensor.name}")

    def intact(self, slot: int, generation: int) -> bool:
        """See MediaSource."""
        return True


def media_source(context: Context) -> MediaSource:
    """The media arena of this server."""
    return context.media() or NoMedia()


def make_vision(config: Config, info: ModelInfo, model: Decoder, source: MediaSource) -> VisionRows | None:
    """None: the model sees nothing."""
    return load_vision(config, info, model.precision, source)


def load_vision(
    config: Config, info: ModelInfo, dtype: torch.dtype, source: MediaSource, device: torch.device = CPU
) -> VisionRows | None:
    """The same of a model that computes in this type, with its tower on this device."""
    if info.vision is None:
        return None
    tower: Any = load_tower(config, info, dtype)
    if device != CPU:
        tower.to(device)
    most = int(config.encoder_cache_gb * GB)
    return VisionRows(VisionEncoder(tower, info.vision, dtype, source, most, device), config.max_num_seqs)
