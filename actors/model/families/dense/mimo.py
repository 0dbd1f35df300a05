"""MiMo: Qwen2, and beside its layers one that drafts (model/heads), of which the model itself has no use."""

from __future__ import annotations

from ..family import Family
from .llama import llama_layer
from .qwen import ABSENT, switched_windows

MTP_LAYERS = "model.mtp_layers."
MIMO = Family(
    architectures=("MiMoForCausalLM",),
    layer=llama_layer(qkv_bias=True),
    absent=ABSENT,
    windows=switched_windows,
    beside=(MTP_LAYERS,),
)
