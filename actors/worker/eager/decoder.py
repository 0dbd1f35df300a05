"""Hidden states by this server's own layers on a GPU, for a runner that keeps its rows on the host.

Every step is started kernel by kernel: it has prompts alone, which are long enough for that, or parts of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import Span
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.step_inputs import StepInputs

from ...model.architecture import Architecture
from ...model.info import ModelInfo
from ...model.memory.dtypes import architecture_on_gpu
from ...options.config import Config
from ..adapter.model import Spans
from ..gpu.executor import GpuBatch, GpuModel
from ..gpu.layers.scratch import attention_of
from ..gpu.layers.varied_layers import make_model
from ..gpu.load import check_shape, choose_dtype
from ..gpu.memory import make_pools
from ..models.sharding import Alone, Read, shard
from ..transfer import to_device
from ..vision.step import VisionStep
from .kv import DeviceKV
from .pictures import EagerPictures


class EagerDecoder:
    """See cpu/decoder.py:Decoder; it makes no logits."""

    batch_invariant = quantised = False

    def __init__(self, model: GpuModel, length: int) -> None:
        """`length`: of the longest sequence."""
        self.model, self.kv = model, model.shape.kv
        self.dtype = self.precision = model.dtype
        self.vocab_size = model.shape.vocab_size
        layer = attention_of(model.shape)
        self._scratch = Scratch.of(1, layer.heads, layer.value_dim, 1, model.device)
        self.step: VisionStep | None = None  # what the next one's tokens have of pictures
        spec = model.shape.vision
        self._pictures = None if spec is None else EagerPictures(spec, model, length)

    def attention(self, kv: object, spans: Sequence[Span]) -> Spans:
        """What is needed of them is sent with the step."""
        return Spans(spans)

    def forward(
        self, ids: Tensor, positions: Tensor, slots: Tensor, kv: DeviceKV, attention: Spans, states: None = None
    ) -> Tensor:
        """Hidden states of all tokens, on the device."""
        spans, device = attention.spans, self.model.device
        packed = np.zeros((3, len(ids) + len(ids) % 2), np.int64)  # by 16 bytes: kernels are compiled for that
        for row, part in zip(packed, (ids, positions, slots), strict=True):
            row[: len(ids)] = part.numpy()
        tokens = to_device(packed, device)[:, : len(ids)]
        ends = np.array([span.position + span.size for span in spans], np.int32)
        starts = np.cumsum([0, *(span.size for span in spans)], dtype=np.int32)
        inputs = StepInputs(tokens[0], tokens[1], tokens[2], to_device(ends, device), kv.table(spans))
        batch = GpuBatch(inputs, 0, to_device(starts, device), self._scratch)
        if self._pictures is not None:
            batch = self._pictures.among(batch, self.step, list(spans))
        return self._hidden(batch, list(kv.pools))

    def hidden(self, x: Tensor) -> Tensor:
        """Of rows of what `forward` gives."""
        return x

    def logits(self, x: Tensor) -> Tensor:
        raise AssertionError("a model that pools makes no logits")

    def try_out(self, tokens: int, block_size: int) -> None:
        """A step of so many, of a row that is none; they are a picture's where the model sees any."""
        device = self.model.device
        inputs = StepInputs.make(1, tokens, 4, device)
        inputs.fill()
        pools = make_pools(self.model.shape, 1, block_size, self.dtype, device)
        batch = GpuBatch(inputs, 0, to_device(np.array([0, tokens], np.int32), device), self._scratch)
        self._hidden(batch if self._pictures is None else self._pictures.try_out(batch), pools)

    def _hidden(self, batch: GpuBatch, pools: list[Pools]) -> Tensor:
        return self.model.norm(self.model.forward(batch, pools))


def check_decoder(config: Config, shape: Architecture) -> torch.dtype:
    """In what it is computed; ConfigError unless the kernels can take this model."""
    check_shape(config, shape)
    return choose_dtype(config, shape)


def make_decoder(
    config: Config, info: ModelInfo, shape: Architecture, read: Read, device: torch.device
) -> EagerDecoder:
    """`read`: the checkpoint's tensors, of which all become floats. What makes logits is left out."""
    dtype = choose_dtype(config, shape)
    plain = replace(architecture_on_gpu(config, shape)[0], tied=True)
    get = shard(read, shape, Alone(), False)
    return EagerDecoder(make_model(plain, get, dtype, info.max_model_len, device), info.max_model_len)
