"""GGUF files of models that layers of transformers compute, as llama.cpp's converter writes them.

Names are those of the `gguf` package's maps. What the converter puts in another order is done here by loops over heads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.twin import shrink

from ..checkpoints import write_tokenizer
from .files import Array, Stored, byte_level_fields, decoded, each_tensor, heads_in_order, stored, write

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {  # by a name: the file's architecture, transformers' kind, fields
    "arcee": ("arcee", "arcee", {}),
    "bloom": ("bloom", "bloom", {}),
    "cohere": ("command-r", "cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", "cohere2", {}),
    "ernie4_5": ("ernie4_5", "ernie4_5", {}),
    "exaone4": ("exaone4", "exaone4", {}),
    "falcon": ("falcon", "falcon", {"multi_query": True, "new_decoder_architecture": False}),
    "falcon_40b": ("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 8}),
    "gemma": ("gemma", "gemma", {}),
    "gpt2": ("gpt2", "gpt2", {}),
    "gpt_neox": ("gptneox", "gpt_neox", {}),
    "lfm2": ("lfm2", "lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}),
    "mamba": ("mamba", "mamba", {"hidden_size": 64, "expand": 2}),
    "mpt": ("mpt", "mpt", {}),
    "nemotron": ("nemotron", "nemotron", {"num_key_value_heads": 8}),
    "olmo": ("olmo", "olmo", {"clip_qkv": 4.0}),
    "olmoe": ("olmoe", "olmoe", {}),
    "phi": ("phi2", "phi", {}),
    "stablelm": ("stablelm", "stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    "starcoder": ("starcoder", "gpt_bigcode", {}),
    "starcoder2": ("starcoder2", "starcoder2", {"sliding_window": None}),
}
NAMES = [
    (
        r"(model\.embed_tokens|transformer\.wte|transformer\.word_embeddings|gpt_neox\.embed_in|backbone\.embeddings)",
        "token_embd",
    ),
    (r"transformer\.wpe", "position_embd"),
    (r"(transformer\.word_embeddings_layernorm|model\.embedding_norm)", "token_embd_norm"),
    (
        r"(model\.norm|transformer\.ln_f|backbone\.norm_f|transformer\.norm_f|gpt_neox\.final_layer_norm|model\.final_layernorm)",
        "output_norm",
    ),
    (r"(lm_head|embed_out)", "output"),
]
INSIDE = [
    (r"(input_layernorm|ln_1|ln_mlp|norm_1|norm|operator_norm)", "attn_norm"),
    (r"ln_attn", "attn_norm_2"),
    (r"(attn\.c_attn|attn\.Wqkv|self_attention\.query_key_value|attention\.query_key_value)", "attn_qkv"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.([qk])_(?:layer)?norm", r"attn_\1_norm"),
    (
        r"(attn\.c_proj|attn\.out_proj|self_attn\.out_proj|self_attention\.dense|attention\.dense|self_attn\.o_proj|self_attn\.dense)",
        "attn_output",
    ),
    (r"post_feedforward_layernorm", "post_ffw_norm"),
    (r"(post_attention_layernorm|ln_2|norm_2|ffn_norm)", "ffn_norm"),
    (r"(mlp\.gate_proj|feed_forward\.w1)", "ffn_gate"),
    (r"(mlp\.(c_fc|dense_h_to_4h|up_proj|fc1)|ffn\.up_proj|feed_forward\.w3)", "ffn_up"),
    (r"(mlp\.(c_proj|dense_4h_to_h|down_proj|fc2)|ffn\.down_proj|feed_forward\.w2)", "ffn_down"),
    (r"conv\.(conv|in_proj|out_proj)", r"shortconv.\1"),
    (r"mixer\.(in|x|dt|out)_proj", r"ssm_\1"),
    (r"mixer\.conv1d", "ssm_conv1d"),
    (r"mlp\.gate", "ffn_gate_inp"),
]
LAYER = re.compile(r"(?:model\.layers|backbone\.layers|transformer\.(?:h|blocks)|gpt_neox\.layers)\.(\d+)\.(.+)")
OF_EXPERT = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight")


def file_name(name: str, behind: bool = False) -> str:
    """`blk.0.attn_q.weight`. With `behind` norms stand behind attention and MLP."""
    if match := re.fullmatch(r"backbone\.layers\.(\d+)\.mixer\.(A_log|D)", name):
        return f"blk.{match[1]}.ssm_{match[2][0].lower()}"
    stem, _, kind = name.rpartition(".")
    match = LAYER.fullmatch(stem)
    before, stem, names = ("", stem, NAMES) if match is None else (f"blk.{match[1]}.", match[2], INSIDE)
    for pattern, own in names:
        if found := re.fullmatch(pattern, stem):
            if own == "ffn_norm" and behind and stem == "post_attention_layernorm":
                own = "post_attention_norm"
            return f"{before}{found.expand(own)}.{kind}"
    raise KeyError(name)


def apart(weight: Array, config: dict[str, Any]) -> Array:
    """Queries, keys and values one after the other, of groups of them by KV head."""
    heads = config.get("num_attention_heads") or config["n_head"]
    width = (config.get("hidden_size") or config["n_embd"]) // heads
    kv_heads = heads
    if config["model_type"] == "falcon":
        kv_heads = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    each = heads // kv_heads + 2
    blocks = [weight[at : at + width] for at in range(0, len(weight), width)]
    queries = [block for at, block in enumerate(blocks) if at % each < each - 2]
    keys = [block for at, block in enumerate(blocks) if at % each == each - 2]
    return np.concatenate(queries + keys + [block for at, block in enumerate(blocks) if at % each == each - 1])


def as_stored(name: str, weight: Array, config: dict[str, Any]) -> Array:
    """A tensor as the converter has it."""
    kind = config["model_type"]
    if kind in ("arcee", "olmo") and re.search(r"[qk]_proj", name):
        return heads_in_order(weight, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
    if kind in ("gemma", "nemotron") and name.endswith("norm.weight"):
        return weight + 1
    if kind == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight", name):
        return weight.T
    if name.endswith(("conv.conv.weight", "conv1d.weight")):
        return weight[:, 0]
    if name.endswith("A_log"):
        return -np.exp(weight)
    return apart(weight, config) if "query_key_value" in name else weight


def hub_value(name: str, weight: Array, meant: Array, config: dict[str, Any]) -> Array:
    """What a stored tensor means at the hub: found by sending the numbers of places through the same way."""
    if name.endswith("A_log"):
        return np.log(-meant)
    places = as_stored(name, np.arange(weight.size, dtype=np.float64).reshape(weight.shape), config)
    plus = config["model_type"] in ("gemma", "nemotron") and name.endswith("norm.weight")
    found = np.empty(weight.size, np.float32)
    found[(places - plus).astype(np.int64).reshape(-1)] = (meant - plus).reshape(-1)
    return found.reshape(weight.shape)


def fields_of(architecture: str, config: Any) -> dict[str, Any]:
    """What converters write of a config."""
    if architecture == "mamba":
        return mamba_fields(config)
    heads, hidden = config.num_attention_heads, config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", None) or heads
    if architecture == "falcon" and not config.new_decoder_architecture:
        kv_heads = 1
    if architecture == "starcoder":
        kv_heads = 1
    wide = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * hidden
    found: dict[str, Any] = {
        "context_length": getattr(config, "max_position_embeddings", 512),
        "embedding_length": hidden,
        "feed_forward_length": getattr(config, "ffn_hidden_size", None) or wide,
        "block_count": config.num_hidden_layers,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
    }
    if head_dim * heads != hidden:
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    for name in ("layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon"):
        if getattr(config, name, None) is not None:
            found["attention.layer_norm_epsilon"] = float(getattr(config, name))
    if getattr(config, "rms_norm_eps", None) is not None:
        found["attention.layer_norm_rms_epsilon"] = float(config.rms_norm_eps)
    rope = getattr(config, "rope_parameters", None)
    if rope:
        found["rope.freq_base"] = float(rope["rope_theta"])
        found["rope.dimension_count"] = int(head_dim * rope.get("partial_rotary_factor", 1))
    return found | own_fields(architecture, config)


def lfm2_norms(config: Any) -> dict[str, Any]:
    return {"attention.layer_norm_rms_epsilon": float(config.norm_eps), "feed_forward_length": 256}


def mamba_fields(config: Any) -> dict[str, Any]:
    return {
        "context_length": 1 << 20,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "block_count": config.num_hidden_layers,
        "attention.layer_norm_rms_epsilon": float(config.layer_norm_epsilon),
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.inner_size": config.intermediate_size,
        "ssm.state_size": config.state_size,
        "ssm.time_step_rank": config.time_step_rank,
        "ssm.dt_b_c_rms": False,
    }


def own_fields(architecture: str, config: Any) -> dict[str, Any]:
    if architecture == "bloom":
        return {"attention.max_alibi_bias": 8.0}
    if architecture == "mpt":
        return {"attention.max_alibi_bias": 8.0, "feed_forward_length": 4 * config.hidden_size}
    if architecture == "exaone4":
        pattern = [kind == "sliding_attention" for kind in config.layer_types]
        return {"attention.sliding_window": config.sliding_window, "attention.sliding_window_pattern": pattern}
    if architecture == "lfm2":
        kv_heads = [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types]
        return {"attention.head_count_kv": kv_heads, "shortconv.l_cache": config.conv_L_cache, **lfm2_norms(config)}
    if architecture in ("cohere2", "command-r"):
        window = {"attention.sliding_window": config.sliding_window} if architecture == "cohere2" else {}
        return {"logit_scale": float(config.logit_scale), **window}
    if architecture == "olmo":
        return {"attention.clamp_kqv": float(config.clip_qkv), "attention.layer_norm_epsilon": 1e-5}
    if architecture == "olmoe":
        return {"expert_count": config.num_experts, "expert_used_count": config.num_experts_per_tok}
    if architecture in ("gptneox", "stablelm"):
        return {"use_parallel_residual": config.use_parallel_residual}
    return {}


def source(kind: str, folder: Path, **changes: Any) -> Path:
    """A tiny checkpoint of this kind, with a tokenizer."""
    _, name, fields = KINDS[kind]
    config = shrink(AutoConfig.for_model(name, **fields))
    for field, value in changes.items():
        setattr(config, field, value)
    if kind == "cohere2":
        config.num_hidden_layers = 4
        config.layer_types = ["sliding_attention"] * 3 + ["full_attention"]
    if kind == "mamba":
        config.intermediate_size = config.expand * config.hidden_size
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    verify.randomise(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


Tensors = dict[str, Stored]


def convert(
    kind: str,
    folder: Path,
    path: Path,
    kind_of: Callable[[str], str],
    change: Callable[[Tensors], None] = lambda tensors: None,
) -> dict[str, Array]:
    """The checkpoint as a file; returns what its tensors mean, by their names at the hub. `change` is made last."""
    architecture = KINDS[kind][0]
    values = json.loads((folder / "config.json").read_text())
    config = AutoConfig.from_pretrained(folder)
    tensors: Tensors = {}
    experts: dict[str, dict[int, Stored]] = {}
    means = {}
    for name, weight in each_tensor(folder):
        matrix = weight.ndim == 2 and not re.search(r"[qk]_norm|wpe|A_log|conv\.conv|dt_proj|x_proj", name)
        chosen = kind_of(name) if matrix else "F32"
        tensor = stored(chosen, np.ascontiguousarray(as_stored(name, weight, values)))
        means[name] = hub_value(name, weight, decoded(chosen, tensor), values)
        if match := OF_EXPERT.fullmatch(name):
            experts.setdefault(f"blk.{match[1]}.ffn_{match[3]}_exps.weight", {})[int(match[2])] = tensor
        else:
            tensors[file_name(name, architecture == "exaone4")] = tensor
    for name, parts in experts.items():
        some = [parts[number] for number in sorted(parts)]
        tensors[name] = Stored(some[0].number, (len(some), *some[0].shape), b"".join(part.data for part in some))
    change(tensors)
    fields = {f"{architecture}.{name}": value for name, value in fields_of(architecture, config).items()}
    write(path, {"general.architecture": architecture, **fields, **byte_level_fields(folder, "gpt-2")}, tensors)
    return means
