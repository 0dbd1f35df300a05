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
from . import experts as moe
from . import gemma, states
from .fields import fields_of
from .files import Stored, byte_level_fields, decoded, each_tensor, heads_in_order, rope_tensors, stored, write
from .formats import Array

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {  # by a name: the file's architecture, transformers' kind, fields
    "apertus": ("apertus", "apertus", {}),
    "arcee": ("arcee", "arcee", {}),
    "bloom": ("bloom", "bloom", {}),
    "cohere": ("command-r", "cohere", {"use_qk_norm": True}),
    "cohere2": ("cohere2", "cohere2", {}),
    "ernie4_5": ("ernie4_5", "ernie4_5", {}),
    "ernie4_5_moe": ("ernie4_5-moe", "ernie4_5_moe", {"moe_layer_start_index": 1, "tie_word_embeddings": True}),
    "exaone4": ("exaone4", "exaone4", {}),
    "falcon": ("falcon", "falcon", {"multi_query": True, "new_decoder_architecture": False}),
    "falcon_40b": ("falcon", "falcon", {"new_decoder_architecture": True, "num_kv_heads": 8}),
    "falcon_mamba": ("mamba", "falcon_mamba", {"hidden_size": 64, "expand": 2}),
    "gemma": ("gemma", "gemma", {}),
    "glm4_moe": ("glm4moe", "glm4_moe", {"attention_bias": True, "use_qk_norm": True, "first_k_dense_replace": 1}),
    "gpt2": ("gpt2", "gpt2", {}),
    "gpt_neox": ("gptneox", "gpt_neox", {}),
    "granitemoe": ("granitemoe", "granitemoe", {"attention_multiplier": 0.3, "logits_scaling": 4.0}),
    "granitemoeshared": (
        "granitemoe",
        "granitemoeshared",
        {"shared_intermediate_size": 96, "residual_multiplier": 0.5},
    ),
    "hunyuan_v1_dense": ("hunyuan-dense", "hunyuan_v1_dense", {"head_dim": 16}),
    "lfm2": ("lfm2", "lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}),
    "lfm2_moe": (
        *("lfm2moe", "lfm2_moe"),
        {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    ),
    "mamba": ("mamba", "mamba", {"hidden_size": 64, "expand": 2}),
    "minimax_m2": ("minimax-m2", "minimax_m2", {}),
    "mpt": ("mpt", "mpt", {}),
    "nemotron": ("nemotron", "nemotron", {"num_key_value_heads": 8}),
    "olmo": ("olmo", "olmo", {"clip_qkv": 4.0}),
    "olmoe": ("olmoe", "olmoe", {}),
    "phi": ("phi2", "phi", {}),
    "stablelm": ("stablelm", "stablelm", {"use_qkv_bias": True, "use_parallel_residual": True}),
    "starcoder": ("starcoder", "gpt_bigcode", {}),
    "starcoder2": ("starcoder2", "starcoder2", {"sliding_window": None}),
    **gemma.KINDS,
    **moe.KINDS,
    **states.KINDS,
}
NAMES = [
    *gemma.NAMES,
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
    (r"(input_layernorm|attention_layernorm|ln_1|ln_mlp|norm_1|norm|operator_norm)", "attn_norm"),
    (r"ln_attn", "attn_norm_2"),
    (r"(attn\.c_attn|attn\.Wqkv|self_attention\.query_key_value|attention\.query_key_value)", "attn_qkv"),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.([qk])_(?:layer)?norm", r"attn_\1_norm"),
    (r"self_attn\.query_layernorm", "attn_q_norm"),
    (r"self_attn\.key_layernorm", "attn_k_norm"),
    (
        r"(attn\.c_proj|attn\.out_proj|self_attn\.out_proj|self_attention\.dense|attention\.dense|self_attn\.o_proj|self_attn\.dense)",
        "attn_output",
    ),
    (r"post_feedforward_layernorm", "post_ffw_norm"),
    (r"(post_attention_layernorm|feedforward_layernorm|ln_2|norm_2|ffn_norm|pre_ff_layernorm)", "ffn_norm"),
    (r"(mlp\.gate_proj|feed_forward\.w1|feed_forward\.gate_proj)", "ffn_gate"),
    (
        r"(mlp\.(c_fc|dense_h_to_4h|up_proj|fc1)|ffn\.up_proj|feed_forward\.w3|feed_forward\.up_proj|mixer\.up_proj)",
        "ffn_up",
    ),
    (
        r"(mlp\.(c_proj|dense_4h_to_h|down_proj|fc2)|ffn\.down_proj|feed_forward\.w2|feed_forward\.down_proj|mixer\.down_proj)",
        "ffn_down",
    ),
    (r"conv\.(conv|in_proj|out_proj)", r"shortconv.\1"),
    (r"(?:mixer|mamba)\.(in|x|dt|out)_proj", r"ssm_\1"),
    (r"(?:mixer|mamba|linear_attn)\.conv1d", "ssm_conv1d"),
    (r"(?:mixer|mamba|linear_attn)\.norm", "ssm_norm"),
    *states.INSIDE,
    *gemma.INSIDE,
    *moe.INSIDE,
    (
        r"(mlp\.gate|mixer\.gate|feed_forward\.router|block_sparse_moe\.gate|block_sparse_moe\.router\.layer|feed_forward\.gate)",
        "ffn_gate_inp",
    ),
    (r"(?:mlp\.shared_experts?|mixer\.shared_experts)\.(gate|up|down)_proj", r"ffn_\1_shexp"),
    (r"block_sparse_moe\.output_linear", "ffn_down_exps"),
    (r"shared_mlp\.output_linear", "ffn_down_shexp"),
]
LAYER = re.compile(r"(?:model\.layers|backbone\.layers|transformer\.(?:h|blocks)|gpt_neox\.layers)\.(\d+)\.(.+)")
OF_EXPERT = re.compile(
    r"(?:model|backbone)\.layers\.(\d+)\.(?:mlp|block_sparse_moe|feed_forward|mixer)\.experts\.(\d+)\.(\w+)\.weight"
)
EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down", "w1": "gate", "w3": "up", "w2": "down"}
HALVES = {"block_sparse_moe.input_linear": "_exps", "shared_mlp.input_linear": "_shexp"}  # gate, then up
# no weights of products
PLAIN = re.compile(r"[qk]_norm|wpe|A_log|conv\.conv|conv1d|moe_statics|dt_proj|x_proj|shared_expert_gate")
SHIFTED = ("gemma", "nemotron", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
BEHIND = ("exaone4", "glm4moe", *gemma.ARCHITECTURES, *states.BEHIND)  # norms stand behind attention, or are called so


def file_name(name: str, behind: bool = False) -> str:
    """`blk.0.attn_q.weight`. With `behind` norms stand behind attention and MLP."""
    if (own := states.file_name(name) or gemma.file_name(name) or moe.file_name(name)) is not None:
        return own
    if name.endswith(("e_score_correction_bias", "expert_bias")):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
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


def in_order(name: str, weight: Array, config: dict[str, Any]) -> Array:
    """The numbers of a tensor where the converter has them."""
    kind = config["model_type"]
    own = states.in_order(name, weight, config)
    if own is None:
        own = moe.in_order(name, weight, config)
    if own is not None:
        return own
    if kind in ("arcee", "olmo", "granitemoe", "granitemoeshared") and re.search(r"[qk]_proj", name):
        return heads_in_order(weight, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])
    if kind == "gpt2" and re.search(r"c_(attn|proj|fc)\.weight", name):
        return weight.T
    if name.endswith(("conv.conv.weight", "conv1d.weight")):
        return weight[:, 0]
    if "moe_statics" in name:
        return weight.reshape(-1)
    return apart(weight, config) if "query_key_value" in name else weight


def is_shifted(name: str, config: dict[str, Any]) -> bool:
    return config["model_type"] in SHIFTED and name.endswith("norm.weight") and "linear_attn.norm" not in name


def as_stored(name: str, weight: Array, config: dict[str, Any]) -> Array:
    """A tensor as the converter has it."""
    numbers = -np.exp(weight) if name.endswith("A_log") else weight + is_shifted(name, config)
    return in_order(name, numbers, config)


def hub_value(name: str, weight: Array, meant: Array, config: dict[str, Any]) -> Array:
    """What a stored tensor means at the hub: found by sending the numbers of places through the same way."""
    places = in_order(name, np.arange(weight.size, dtype=np.float64).reshape(weight.shape), config)
    numbers = np.log(-meant) if name.endswith("A_log") else meant - is_shifted(name, config)
    found = np.empty(weight.size, np.float32)
    found[places.astype(np.int64).reshape(-1)] = numbers.reshape(-1)
    return found.reshape(weight.shape)


def source(kind: str, folder: Path, **changes: Any) -> Path:
    """A tiny checkpoint of this kind, with a tokenizer."""
    _, name, fields = KINDS[kind]
    config = shrink(AutoConfig.for_model(name, **fields))
    for field, value in changes.items():
        setattr(config, field, value)
    if kind == "cohere2":
        config.num_hidden_layers = 4
        config.layer_types = ["sliding_attention"] * 3 + ["full_attention"]
    if kind.endswith("mamba") and kind != "mamba2":
        config.intermediate_size = config.expand * config.hidden_size
    if KINDS[kind][0] == "gemma4":
        config = gemma.widened(config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).float()
    verify.randomise(model)
    if KINDS[kind][0] == "gemma4":
        gemma.make_scalars(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


Tensors = dict[str, Stored]


def halved(name: str, end: str, weight: Array, kind_of: Callable[[str], str], tensors: Tensors, experts: bool) -> Array:
    """Gate and up, which files have apart; returns what they mean as one."""
    rows, found = weight.shape[-2] // 2, []
    for number, part in enumerate(("gate", "up")):
        own = np.ascontiguousarray(weight[..., number * rows : (number + 1) * rows, :])
        tensor = stored(kind_of(name), own)
        name_of_half = f"blk.{name.split('.')[2]}.ffn_{part}{HALVES[end] if experts else ''}.weight"
        tensors[name_of_half] = tensor
        found.append(decoded(kind_of(name), tensor))
    return np.concatenate(found, -2)


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
    xielu: dict[str, dict[int, float]] = {}
    for name, weight in each_tensor(folder):
        if ".act_fn." in name:
            xielu.setdefault(f"xielu.{name.rpartition('.')[2]}", {})[int(name.split(".")[2])] = float(
                weight.reshape(-1)[0]
            )
            means[name] = weight
            continue
        if (cut := states.apart(name, weight, values)) is not None:
            types = {file: kind_of(name) if part.shape[-1] % 32 == 0 else "F32" for file, part in cut.items()}
            made = {file: stored(types[file], np.ascontiguousarray(part)) for file, part in cut.items()}
            tensors |= made
            means[name] = states.together([decoded(types[file], one) for file, one in made.items()], values)
            continue
        if (half := next((end for end in HALVES if f".{end}." in name), None)) is not None:
            means[name] = halved(name, half, weight, kind_of, tensors, bool(config.num_local_experts))
            continue
        matrix = weight.ndim in (2, 3) and weight.shape[-1] % 32 == 0 and not PLAIN.search(name)
        chosen = kind_of(name) if matrix else "F32"
        tensor = stored(chosen, np.ascontiguousarray(as_stored(name, states.multiplied(name, weight, values), values)))
        means[name] = hub_value(name, weight, decoded(chosen, tensor), values)
        if (place := gemma.stacked_name(name)) is not None:
            experts.setdefault(place[0], {})[place[1]] = tensor
        elif match := OF_EXPERT.fullmatch(name):
            experts.setdefault(f"blk.{match[1]}.ffn_{EXPERT_PARTS[match[3]]}_exps.weight", {})[int(match[2])] = tensor
        else:
            tensors[file_name(name, architecture in BEHIND)] = tensor
    for name, parts in experts.items():
        some = [parts[number] for number in sorted(parts)]
        tensors[name] = Stored(some[0].number, (len(some), *some[0].shape), b"".join(part.data for part in some))
    if architecture == "glm4moe":  # which drafts: nobody reads it
        behind = f"blk.{config.num_hidden_layers}"
        tensors |= {f"{behind}.{own}": stored("F32", np.ones(8)) for own in ("nextn.eh_proj.weight", "attn_q.weight")}
    if architecture == "gemma4":
        tensors["rope_freqs.weight"] = stored("F32", gemma.rope_factors(config))
    change(tensors)
    given = {field: [numbers[layer] for layer in sorted(numbers)] for field, numbers in xielu.items()}
    tensors |= rope_tensors(values) if architecture == "apertus" else {}
    fields = given | {f"{architecture}.{name}": value for name, value in fields_of(architecture, config).items()}
    write(path, {"general.architecture": architecture, **fields, **byte_level_fields(folder, "gpt-2")}, tensors)
    return means
