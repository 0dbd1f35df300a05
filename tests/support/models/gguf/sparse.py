"""GGUF files of gpt-oss, Llama 4 and DeepSeek as llama.cpp writes them: experts in stacks, latents in halves.

What it puts in another order is done here by loops over rows and heads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .files import Stored, byte_level_fields, each_tensor, shape_fields, stored, write
from .formats import Array

NAMES = {
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.indexer.wq_b": "indexer.attn_q_b",
    "self_attn.indexer.wk": "indexer.attn_k",
    "self_attn.indexer.k_norm": "indexer.k_norm",
    "self_attn.indexer.weights_proj": "indexer.proj",
    "input_layernorm": "attn_norm",
}
ARCHITECTURES = {
    **{"gpt_oss": "gpt-oss", "llama4_text": "llama4", "mistral4": "mistral4"},
    **{"deepseek_v32": "deepseek32", "glm_moe_dsa": "glm-dsa"},
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
OF_EXPERT = re.compile(r"layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")
ONE_KEY = 1  # as newer files have it: all heads see what is kept as one


def parts(name: str, weight: Array, config: dict[str, Any], halves: bool) -> Iterator[tuple[str, Array]]:
    """What stands in a file of one tensor of the hub; `halves`: what makes keys and values stands apart."""
    match = LAYER.fullmatch(name)
    if match is None:
        stem, _, kind = name.rpartition(".")
        yield f"{OUTSIDE[stem]}.{kind}", weight
        return
    blk, own = f"blk.{match[1]}.", match[2]
    oss = config["model_type"] == "gpt_oss"
    norm = "post_attention_norm" if oss else "ffn_norm"
    own = own.replace("feed_forward.", "mlp.").replace(".shared_expert.", ".shared_experts.")
    known = {**NAMES, "post_attention_layernorm": norm}
    stem, _, kind = own.rpartition(".")
    if own in known:
        yield blk + known[own], weight
    elif own == "self_attn.kv_b_proj.weight":
        yield from ((blk + part, each) for part, each in of_latent(weight, config, halves))
    elif config["model_type"] == "mistral4" and own.startswith("mlp.experts."):
        yield f"{blk}{'ffn_gate_up_exps' if 'gate_up' in own else 'ffn_down_exps'}.weight", weight
    elif own.startswith("mlp.experts.gate_up_proj"):
        by_row = weight if own.endswith("bias") else np.swapaxes(weight, 1, 2)
        end = "bias" if own.endswith("bias") else "weight"
        half = by_row.shape[1] // 2
        yield f"{blk}ffn_gate_exps.{end}", by_row[:, 0::2] if oss else by_row[:, :half]
        yield f"{blk}ffn_up_exps.{end}", by_row[:, 1::2] if oss else by_row[:, half:]
    elif own.startswith("mlp.experts.down_proj"):
        bias = own.endswith("bias")
        yield f"{blk}ffn_down_exps.{'bias' if bias else 'weight'}", weight if bias else np.swapaxes(weight, 1, 2)
    else:
        yield f"{blk}{known[stem]}.{kind}", weight


def of_latent(weight: Array, config: dict[str, Any], halves: bool) -> Iterator[tuple[str, Array]]:
    if not halves:
        yield "attn_kv_b.weight", weight
        return
    keys, values, plain = [], [], config["qk_nope_head_dim"]
    each = plain + config["v_head_dim"]
    for first in range(0, len(weight), each):
        keys.append(weight[first : first + plain].T)
        values.append(weight[first + plain : first + each])
    yield "attn_k_b.weight", np.stack(keys)
    yield "attn_v_b.weight", np.stack(values)


def latent_fields(config: dict[str, Any], halves: bool) -> dict[str, Any]:
    """Of DeepSeek; older files have the width of a head where newer ones have that of what is kept."""
    rope, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    width, values = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    sigmoid = config["model_type"] in ("deepseek_v3", "deepseek_v32", "glm_moe_dsa")
    old = {"attention.key_length": width, "attention.value_length": values}
    new = {
        **{"attention.key_length": rank + rope, "attention.value_length": rank},
        **{"attention.key_length_mla": width, "attention.value_length_mla": values},
        "attention.head_count_kv": ONE_KEY,
    }
    found = {
        **(new if halves else old),
        "attention.kv_lora_rank": rank,
        "rope.dimension_count": rope,
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_gating_func": 2 if sigmoid else 1,
        "expert_weights_scale": float(config["routed_scaling_factor"]),
    }
    if config.get("q_lora_rank"):
        found["attention.q_lora_rank"] = config["q_lora_rank"]
    if sigmoid or config.get("topk_method") == "group_limited_greedy":
        found |= {"expert_group_count": config["n_group"], "expert_group_used_count": config["topk_group"]}
    if config["model_type"] == "mistral4":
        del found["expert_gating_func"]  # which its converter does not write
    if "index_topk" in config:
        found |= {
            "attention.indexer.head_count": config["index_n_heads"],
            "attention.indexer.key_length": config["index_head_dim"],
            "attention.indexer.top_k": config["index_topk"],
        }
        kinds = config.get("indexer_types") or []
        found["attention.indexer.types"] = [kind == "full" for kind in kinds] or None
    return found | ({"expert_weights_norm": True} if config["norm_topk_prob"] else {})


def yarn_fields(rope: dict[str, Any]) -> dict[str, Any]:
    if rope.get("rope_type") != "yarn":
        return {}
    found = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": float(rope["factor"]),
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.attn_factor": None,
    }
    if "mscale_all_dim" in rope:
        found["rope.scaling.yarn_log_multiplier"] = 0.1 * rope["mscale_all_dim"]
    if "llama_4_scaling_beta" in rope:
        found["attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    return found


def convert(
    folder: Path,
    path: Path,
    kind_of: Callable[[str], str],
    halves: bool = True,
    change: Callable[[str, Stored], Stored] = lambda name, tensor: tensor,
) -> None:
    """A checkpoint of tests as a file. `change` is made of each tensor last."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"], "deepseek2")
    found: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, weight in each_tensor(folder):
        if match := OF_EXPERT.search(name):
            experts.setdefault(f"blk.{match[1]}.ffn_{match[3]}_exps.weight", {})[int(match[2])] = weight
        else:
            found |= dict(parts(name, weight, config, halves))
    found |= {own: np.stack([some[number] for number in range(len(some))]) for own, some in experts.items()}
    tensors = {}
    for own, weight in found.items():
        matrix = weight.ndim > 1 and own.endswith("weight") and weight.shape[-1] % 32 == 0
        kind = kind_of(own) if matrix else "F32"
        tensors[own] = change(own, stored(kind, np.ascontiguousarray(weight)))
    rope = config.get("rope_parameters") or {}
    plain = {key: value for key, value in config.items() if key != "rope_parameters"}
    own_rope = {"rope_parameters": {"rope_theta": rope.get("rope_theta", 10_000.0)}}
    fields_of = {"gpt-oss": oss_fields, "llama4": llama4_fields}.get(architecture)
    more = {**yarn_fields(rope), **(latent_fields(config, halves) if fields_of is None else fields_of(config))}
    fields = shape_fields(plain | own_rope, architecture)
    fields |= {f"{architecture}.{name}": value for name, value in more.items()}
    is_oss = fields_of is not None
    fields |= byte_level_fields(folder, "gpt-4o" if is_oss else "deepseek-v3")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    fields["tokenizer.chat_template"] = settings["chat_template"]
    write(path, {name: value for name, value in fields.items() if value is not None}, tensors)


def oss_fields(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
    }


def llama4_fields(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }
