"""Names of tensors in GGUF files, and those that the same have at the hub. A new architecture is a line here."""

from __future__ import annotations

import re

from ..layers import EMBEDDINGS, FINAL_NORM, HEAD

ARCHITECTURES = {  # general.architecture, and the name in config.json
    "llama": "LlamaForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
OUTSIDE = {"token_embd": EMBEDDINGS, "output_norm": FINAL_NORM, "output": HEAD}
INSIDE = {
    "attn_norm": "input_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
FUSED = {"phi3": {"ffn_up": "mlp.gate_up_proj"}}  # what a name means in one architecture alone
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # read with the header
NEEDLESS = re.compile(r"blk\.\d+\.attn_rot_embd|.*\.attn_rot_embd\.weight")  # of old files
IN_LAYER = re.compile(r"blk\.(\d{1,5})\.(\w+)\.(weight|bias)")


def hub_name(architecture: str, name: str) -> str | None:
    """`model.layers.3.self_attn.q_proj.weight` of `blk.3.attn_q.weight`; None for what no layer needs.

    A name that is not known stays, so that it is told as one for which the model has no use.
    """
    if name in ROPE_TENSORS or NEEDLESS.fullmatch(name):
        return None
    stem, _, kind = name.rpartition(".")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.{kind}"
    if match := IN_LAYER.fullmatch(name):
        layer, part, kind = match.groups()
        own = FUSED.get(architecture, {}).get(part) or INSIDE.get(part)
        return f"model.layers.{int(layer)}.{own}.{kind}" if own else name
    return name


def is_paired(architecture: str, name: str) -> bool:
    """Do rows of this tensor (by its name at the hub) lie so that numbers that turn together are neighbours?

    llama.cpp turns them so in Llama alone: x0 y0 x1 y1 …, where the hub has x0 x1 … y0 y1 …
    """
    return architecture == "llama" and name.rsplit(".", 1)[0].endswith(("self_attn.q_proj", "self_attn.k_proj"))
