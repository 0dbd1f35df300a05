"""Names of tensors in Mistral's own form, and those that the same have at the hub; which of their rows turn in pairs.

Of a folder that was made of such files (folder.py) MARK tells what names depend on. No torch.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from ..layers import EMBEDDINGS, FINAL_NORM, HEAD
from ..values import read_json

MARK = "mistral.json"
POSITIONS = "positions.safetensors"  # beside it, with the hub's names: what Mistral's files leave out
TEXTS = "layers"  # what names of the text's layers begin with
VISION = "vision_encoder"  # and those of the tower
OUTSIDE = {
    "tok_embeddings": EMBEDDINGS,
    "mm_whisper_embeddings.tok_embeddings": EMBEDDINGS,
    "norm": FINAL_NORM,
    "output": HEAD,
}
INSIDE = {
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention.wq_a": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.wq_b": "self_attn.q_b_proj",
    "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.wkv_b": "self_attn.kv_b_proj",
    "shared_experts.w1": "mlp.shared_experts.gate_proj",
    "shared_experts.w2": "mlp.shared_experts.down_proj",
    "shared_experts.w3": "mlp.shared_experts.up_proj",
}


class ExpertNames(NamedTuple):
    """Of a layer's experts at the hub, where the kind of model tells them."""

    router: str
    expert: str  # with its number and part
    parts: dict[str, str]  # where it has other names for them


MIXTRAL = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts.{expert}.{part}", {})
WITH_LATENTS = ExpertNames(
    "mlp.gate", "mlp.experts.{expert}.{part}", {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
)
SEEING = {  # parts of towers' layers
    "attention.wq": "attention.q_proj",
    "attention.wk": "attention.k_proj",
    "attention.wv": "attention.v_proj",
    "attention.wo": "attention.o_proj",
    "feed_forward.w1": "feed_forward.gate_proj",
    "feed_forward.w2": "feed_forward.down_proj",
    "feed_forward.w3": "feed_forward.up_proj",
}
HEARING = {
    "attention_norm": "self_attn_layer_norm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.out_proj",
    "ffn_norm": "final_layer_norm",
    "feed_forward.w1": "fc1",
    "feed_forward.w2": "fc2",
}
WHISPER = "mm_whisper_embeddings"
TOWERS = {  # what stands before `layers`, the same at the hub, and its parts
    f"{VISION}.transformer": ("vision_tower.transformer", SEEING),
    f"{WHISPER}.whisper_encoder.transformer": ("audio_tower", HEARING),
}
BESIDE = {  # what stands outside of a tower's layers, and between towers and the text
    f"{VISION}.ln_pre": "vision_tower.ln_pre",
    f"{VISION}.patch_conv": "vision_tower.patch_conv",
    f"{WHISPER}.whisper_encoder.conv_layers.0": "audio_tower.conv1",
    f"{WHISPER}.whisper_encoder.conv_layers.1": "audio_tower.conv2",
    f"{WHISPER}.whisper_encoder.transformer.norm": "audio_tower.layer_norm",
    f"{WHISPER}.audio_language_projection.0": "multi_modal_projector.linear_1",
    f"{WHISPER}.audio_language_projection.2": "multi_modal_projector.linear_2",
    "vision_language_adapter.w_in": "multi_modal_projector.linear_1",
    "vision_language_adapter.w_out": "multi_modal_projector.linear_2",
    "patch_merger.merging_layer": "multi_modal_projector.patch_merger.merging_layer",
    "pre_mm_projector_norm": "multi_modal_projector.norm",
}
ENDS = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}  # of a weight in 8 bits
IN_LAYER = re.compile(r"(?:(.+)\.)?layers\.(\d+)\.(.+)\.(\w+)")
OF_EXPERT = re.compile(r"(?:feed_forward\.)?experts\.(\d+)\.(w[123])")
OF_ROUTER = re.compile(r"(?:feed_forward\.)?gate")
OF_KV = re.compile(r"attention\.(\w+)_fake_quantizer")  # scales of KV memory


class Turning(NamedTuple):
    """A tensor whose rows, where there are so many, are those of heads of so many numbers each."""

    rows: int
    head_dim: int


def is_of_mistral(folder: Path) -> bool:
    """Whether the folder's weights are in Mistral's form, and config.json was made here."""
    return (folder / MARK).is_file()


def read_mark(folder: Path) -> dict[str, Any] | None:
    """What folder.py wrote; None of another folder."""
    return read_json(folder / MARK) if is_of_mistral(folder) else None


def hub_name(name: str, mark: dict[str, Any]) -> str:
    """The name of a tensor at the hub; `mark` says what the text part's begin with, and whether it has latents. One
    that is not known stays, so that it is told as one for which the model has no use."""
    stem, _, end = name.rpartition(".")
    end, prefix = ENDS.get(end, end), mark["prefix"]
    if stem in OUTSIDE:
        return f"{prefix}{OUTSIDE[stem]}.{end}"
    if stem in BESIDE:
        return f"{BESIDE[stem]}.{end}"
    if (match := IN_LAYER.fullmatch(name)) is None:
        return name
    before, layer, part, _ = match.groups()
    if before in TOWERS:
        tower, parts = TOWERS[before]
        return f"{tower}.layers.{layer}.{parts.get(part, part)}.{end}"
    own = None if before else _inside(part, WITH_LATENTS if mark["latent"] else MIXTRAL)
    if own is None:
        return name
    return f"{prefix}model.layers.{layer}.{own}" + ("" if OF_KV.fullmatch(part) else f".{end}")


def turning_of(mark: dict[str, Any], name: str) -> Turning | None:
    """Of a tensor, by its name in Mistral's form, of which numbers that turn together may be neighbours: x0 y0 x1 y1 …,
    where the hub has x0 x1 … y0 y1 …"""
    parts = name.split(".")
    found = mark["turning"].get(parts[0], {}).get(parts[-2]) if len(parts) > 2 else None
    return None if found is None else Turning(*found)


def _inside(part: str, names: ExpertNames) -> str | None:
    """The name of a part of a layer."""
    if (match := OF_EXPERT.fullmatch(part)) is not None:
        return names.expert.format(expert=match[1], part=names.parts.get(match[2], match[2]))
    if OF_ROUTER.fullmatch(part):
        return names.router
    if (match := OF_KV.fullmatch(part)) is not None:
        return f"self_attn.{match[1]}_scale"
    return INSIDE.get(part)
