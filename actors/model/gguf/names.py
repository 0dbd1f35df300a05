"""Names of tensors in GGUF files, and those that the same have at the hub. A new architecture is a few lines here, and
some in architectures.py where its files say more of it than those of others."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping

from ..layers import EMBEDDINGS, FINAL_NORM, HEAD, SCORES
from .header import GgufTensor
from .layout import MLA, PARTS, Layout
from .layouts import LAYOUTS, TWO_NORMS

ARCHITECTURES = {  # general.architecture, and the name in config.json
    "llama": "LlamaForCausalLM",
    "mistral3": "Ministral3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen2moe": "Qwen2MoeForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "granite": "GraniteForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "gpt-oss": "GptOssForCausalLM",
    "llama4": "Llama4ForCausalLM",
    "deepseek2": "DeepseekV3ForCausalLM",  # or V2, by its router
    "deepseek32": "DeepseekV32ForCausalLM",
    "glm-dsa": "GlmMoeDsaForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    **{name: layout.hub for name, layout in LAYOUTS.items()},
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
AROUND = {  # norms behind attention and MLP
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
GEMMA = {**AROUND, "ffn_norm": "pre_feedforward_layernorm"}
EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
LATENT = {
    **EXPERTS,
    **MLA,
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
INDEXERS = ("deepseek32", "glm-dsa")  # choose what is seen
INDEXED = {
    **LATENT,
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
}
OWN = {  # what names mean in one architecture alone
    "llama": {  # Mixtral says that it is Llama, and has experts
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "qwen2moe": {
        **EXPERTS,
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    },
    "qwen3moe": EXPERTS,
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "olmo2": AROUND,
    "glm4": {
        "ffn_up": "mlp.gate_up_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},  # its norm before the MLP
    "gpt-oss": {
        **EXPERTS,
        "ffn_gate_inp": "mlp.router",
        "post_attention_norm": "post_attention_layernorm",  # likewise
    },
    "llama4": {
        "ffn_gate_inp": "feed_forward.router",
        **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in PARTS},
        **{f"ffn_{part}_exps": f"feed_forward.experts.{{expert}}.{part}_proj" for part in PARTS},
        **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in PARTS},
    },
    "deepseek2": LATENT,
    **dict.fromkeys(INDEXERS, INDEXED),
    "mistral4": LATENT,
}
WHOLE = {  # parts of layers whose names at the hub, or here, end otherwise than with weight or bias
    "gpt-oss": {"attn_sinks.weight": "self_attn.sinks"},
    **{name: {"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"} for name in ("deepseek2", *INDEXERS)},
}
PAIRED = ("llama", "mistral3", "granite", "smollm3")
ONE_ROW = (".moe_statics.e_score_correction_bias", ".token_type_embeddings.weight", "classifier.weight")  # likewise
ROW = ("ffn_gate_inp_shexp",)  # of one row, which files leave out of the shape
EXPERT = "{expert}"
FUSED = "ffn_gate_up_exps"  # of each expert first rows of gate, then as many of up
MOST_EXPERTS = 1 << 16
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # read with the header
RANKING = "cls.output.weight"
NEEDLESS = re.compile(r"blk\.\d+\.attn_rot_embd|.*\.attn_rot_embd\.weight")  # of old files
IN_LAYER = re.compile(r"blk\.(\d{1,5})\.([\w.]+)\.(weight|bias)")
PART = re.compile(r"blk\.(\d{1,5})\.([\w.]+)")
SCALE = re.compile(r"(.+)\.(?:input_)?scale")
OF_EXPERT = re.compile(r"(blk\.\d{1,5}\.ffn_(?:gate|up|down))\.(\d{1,5})\.(weight)")  # of old files


def hub_tensors(
    architecture: str, name: str, tensor: GgufTensor, all_names: Container[str] = ()
) -> Iterator[tuple[str, GgufTensor]]:
    """The tensor by its name at the hub, which has each expert's apart: so each is read without the others.

    Nothing for what no layer needs. A name that is not known stays, so that it is told as one for which the model has
    no use. `all_names` are those of the file.
    """
    if name in ROPE_TENSORS or NEEDLESS.fullmatch(name) or _drafts(name, all_names):
        return
    if name == RANKING and architecture == "qwen3":  # some rows of what makes logits, which itself may not be there
        yield f"{SCORES}.weight", tensor
        return
    layout = LAYOUTS.get(architecture)
    if (alone := _alone(architecture, layout, name)) is not None:
        yield from _named(alone, tensor, alone.endswith(ONE_ROW))
    else:
        yield from _in_layer(architecture, layout, name, tensor, all_names)


def _in_layer(
    architecture: str, layout: Layout | None, name: str, tensor: GgufTensor, all_names: Container[str]
) -> Iterator[tuple[str, GgufTensor]]:
    stem, _, kind = name.rpartition(".")
    number = None
    if match := OF_EXPERT.fullmatch(name):
        number, stem = match[2], f"{match[1]}_exps"
    match = IN_LAYER.fullmatch(f"{stem}.{kind}")
    part = match[2] if match else ""
    if match is not None and layout is not None and part == layout.thirds:
        yield from _thirds(layout, int(match[1]), kind, tensor)
        return
    if match is not None and layout is None and part == FUSED and len(tensor.shape) == 3 and not tensor.shape[1] % 2:
        yield from _gate_and_up(architecture, int(match[1]), kind, tensor)
        return
    own = _inside(architecture, layout, part, all_names)
    of_all = 3 if kind == "weight" else 2  # dimensions of what all experts have in one
    if match is None or own is None or (EXPERT in own and number is None and len(tensor.shape) != of_all):
        yield name, tensor
        return
    hub = f"{_layer(layout, match[1])}.{own}.{kind}"
    if number is None:
        yield from _named(hub, tensor, part in ROW)
    else:
        yield hub.replace(EXPERT, str(int(number))), tensor


def _named(hub: str, tensor: GgufTensor, is_row: bool) -> Iterator[tuple[str, GgufTensor]]:
    """`is_row`: it has one row, which files may leave out of the shape."""
    if EXPERT in hub:
        yield from _each_expert(hub, tensor)
    else:
        yield hub, tensor._replace(shape=(1, *tensor.shape)) if is_row and len(tensor.shape) == 1 else tensor


def _layer(layout: Layout | None, number: str) -> str:
    return f"{'model.layers' if layout is None else layout.layers}.{int(number)}"


def _drafts(name: str, all_names: Container[str]) -> bool:
    """Is it of a layer behind the others, which drafts, and is not computed here?"""
    match = PART.fullmatch(name)
    return match is not None and f"blk.{match[1]}.nextn.eh_proj.weight" in all_names


def _alone(architecture: str, layout: Layout | None, name: str) -> str | None:
    """The name at the hub of what belongs to no layer, or to one by a name as a whole."""
    stem, _, kind = name.rpartition(".")
    outside = OUTSIDE if layout is None else layout.outside
    if stem in outside:
        return f"{outside[stem]}.{kind}"
    match = PART.fullmatch(name)
    whole = (WHOLE.get(architecture, {}) if layout is None else layout.whole).get(match[2]) if match else None
    if match is None or whole is None:
        return None
    return f"{_layer(layout, match[1])}.{whole}"


def _inside(architecture: str, layout: Layout | None, part: str, all_names: Container[str]) -> str | None:
    """The name of a part of a layer."""
    if layout is None:
        return OWN.get(architecture, {}).get(part) or INSIDE.get(part)
    if part in TWO_NORMS and architecture == "falcon" and "blk.0.attn_norm_2.weight" in all_names:
        return TWO_NORMS[part]
    return layout.inside.get(part)


def _thirds(layout: Layout, layer: int, kind: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """Queries, keys and values of one tensor."""
    rows, size = tensor.shape[0] // 3, tensor.size // 3
    for number, part in enumerate(("attn_q", "attn_k", "attn_v")):
        shape = (rows, *tensor.shape[1:])
        own = GgufTensor(tensor.type, shape, tensor.offset + number * size, size)
        yield f"{layout.layers}.{layer}.{layout.inside[part]}.{kind}", own


def _each_expert(hub: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """Of a tensor of all experts, one after the other. Of more than there may be the first are enough to be refused."""
    count, *shape = tensor.shape
    size = math.prod(shape) // tensor.type.numbers * tensor.type.size
    for number in range(min(count, MOST_EXPERTS)):
        yield (
            hub.replace(EXPERT, str(number)),
            GgufTensor(tensor.type, tuple(shape), tensor.offset + number * size, size),
        )


def _gate_and_up(architecture: str, layer: int, kind: str, tensor: GgufTensor) -> Iterator[tuple[str, GgufTensor]]:
    """Of each expert, from one tensor of both."""
    experts, rows, columns = tensor.shape
    halves = tensor._replace(shape=(2 * experts, rows // 2, columns))
    for name, half in _each_expert(EXPERT, halves):
        number, is_up = divmod(int(name), 2)
        own = OWN.get(architecture, {}).get("ffn_up_exps" if is_up else "ffn_gate_exps", f"{FUSED}.{EXPERT}")
        yield f"model.layers.{layer}.{own.replace(EXPERT, str(number))}.{kind}", half


def scale_names(architecture: str, types: Mapping[str, str]) -> dict[str, str]:
    """Of tensors by their types: those that are factors of a weight in NVFP4, and of what is multiplied by it (which
    is not rounded here), with the weight's name."""
    layout = LAYOUTS.get(architecture)
    found = {}
    for name in types:
        match = SCALE.fullmatch(name)
        weight = f"{match[1]}.weight" if match else ""
        if types.get(weight) == "NVFP4" and (layout is None or _alone(architecture, layout, name) is None):
            found[name] = weight
    return found


def is_paired(architecture: str, name: str) -> bool:
    """Do rows of this tensor (by its name at the hub) lie so that numbers that turn together are neighbours?

    llama.cpp turns them so in Llama and what it takes for its kin: x0 y0 x1 y1 …, where the hub has x0 x1 … y0 y1 …
    """
    layout = LAYOUTS.get(architecture)
    paired = architecture in PAIRED if layout is None else layout.paired
    return paired and name.rsplit(".", 1)[0].endswith((".q_proj", ".k_proj"))


def is_shifted(architecture: str, name: str) -> bool:
    """Is this the gain of a norm with the 1 in it that such norms (Gemma's) add to what the hub has?"""
    layout = LAYOUTS.get(architecture)
    shifted = architecture in ("gemma2", "gemma3") if layout is None else layout.shifted
    other = layout is not None and bool(layout.unshifted) and name.endswith(layout.unshifted)
    return shifted and name.endswith("norm.weight") and not other
