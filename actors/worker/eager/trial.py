"""KV memory for a small model of an encoder with a decoder, with which a GPU is tried."""

from __future__ import annotations

from ..encoder_decoder.model import EncoderDecoder
from ..gpu.adapted.shape import shape_of
from ..gpu.memory import make_pools
from .kv import DeviceKV

BLOCK = 16
LONGEST = 1024  # positions of a small model's rows


def trial_kv(model: EncoderDecoder, blocks: int) -> DeviceKV:
    """So many blocks; Unfit if kernels or pools cannot have what the model keeps."""
    shape = shape_of(model.kv, model.passes.width, model.vocab_size)
    return DeviceKV(make_pools(shape, blocks, BLOCK, model.dtype, model.device), BLOCK, LONGEST, model.device)
