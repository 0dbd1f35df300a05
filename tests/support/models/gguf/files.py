"""GGUF files for tests: a writer, and checkpoints turned into such files."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tools.bench.other_servers.gguf_file import gguf_name

from .formats import KINDS, PLAIN, Array, meaning, pack_q4_0, pack_q4_k, pack_q6_k, pack_q8_0

U32, I32, F32, BOOL, TEXT, ARRAY = 4, 5, 6, 7, 8, 9
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


PACKERS = {"Q8_0": pack_q8_0, "Q4_0": pack_q4_0, "Q4_K": pack_q4_k, "Q6_K": pack_q6_k}


class Stored(NamedTuple):
    """A tensor as it stands in a file."""

    number: int  # of its type
    shape: tuple[int, ...]
    data: bytes


def stored(kind: str, weight: Array) -> Stored:
    """A weight in a type."""
    if kind in PLAIN:
        number, dtype = PLAIN[kind]
        return Stored(number, weight.shape, weight.astype(dtype).tobytes())
    return Stored(KINDS[kind].number, weight.shape, PACKERS[kind](weight))


def decoded(kind: str, tensor: Stored) -> Array:
    """What it means, in float32."""
    if kind in PLAIN:
        return np.frombuffer(tensor.data, PLAIN[kind][1]).reshape(tensor.shape).astype(np.float32)
    return meaning(kind, tensor.data).reshape(tensor.shape).astype(np.float32)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value(given: Any) -> bytes:
    """A value with its type: numbers are u32 or float32, in lists int32 or float32."""
    if isinstance(given, list):
        kind = TEXT if isinstance(given[0], str) else F32 if isinstance(given[0], float) else I32
        if kind == TEXT:
            return struct.pack("<IIQ", ARRAY, kind, len(given)) + b"".join(map(text, given))
        return struct.pack(f"<IIQ{len(given)}{'f' if kind == F32 else 'i'}", ARRAY, kind, len(given), *given)
    if isinstance(given, bool):
        return struct.pack("<I?", BOOL, given)
    if isinstance(given, str):
        return struct.pack("<I", TEXT) + text(given)
    return struct.pack("<If", F32, given) if isinstance(given, float) else struct.pack("<II", U32, given)


def write(path: Path, fields: dict[str, Any], tensors: dict[str, Stored], version: int = 3) -> Path:
    """A file."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    head += b"".join(text(key) + value(given) for key, given in fields.items())
    data = b""
    for name, tensor in tensors.items():
        sizes = tensor.shape[::-1]
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, tensor.number, len(data))
        data += tensor.data + b"\0" * (-len(tensor.data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)
    return path


# --- models ---------------------------------------------------------------------------------------------------------


def heads_in_order(weight: Array, heads: int, back: bool = False) -> Array:
    """Of each head x0 y0 x1 y1 … of x0 x1 … y0 y1 …, or `back`."""
    halves = weight.reshape(heads, *((-1, 2) if back else (2, weight.shape[0] // heads // 2)), *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


PAIRED = ("llama", "mistral3", "granite", "smollm3")  # numbers of heads that turn together are neighbours
WINDOWED = ("llama", "phi3", "gemma2", "gemma3", "olmo2")
EXPERT_FIELDS = {"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok"}
QWEN_FIELDS = {
    **EXPERT_FIELDS,
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
OWN_FIELDS = {  # of an architecture, and what config.json calls them
    "llama": EXPERT_FIELDS,
    "qwen2moe": QWEN_FIELDS,
    "qwen3moe": QWEN_FIELDS,
    "gemma2": {
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
    },
    "mistral3": {
        "attention.temperature_scale": "llama_4_scaling_beta",
        "rope.scaling.yarn_log_multiplier": "mscale_all_dim",
    },
    "granite": {
        "attention.scale": "attention_multiplier",
        "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier",
        "logit_scale": "logits_scaling",
    },
}
GGUF_NAMES = {  # by architecture where names of the hub mean something else than in a Llama
    "gemma": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    "glm4": {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"},
    "olmo2": {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"},
    "seed_oss": {"post_attention_layernorm": "post_attention_norm"},
}
GGUF_NAMES |= dict.fromkeys(("gemma2", "gemma3"), GGUF_NAMES["gemma"])
EXPERT_NAMES = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
OF_EXPERT = re.compile(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
EXPERT_PARTS = {"w1": "gate", "w2": "down", "w3": "up", "gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "olmo3": "olmo2"}
ARCHITECTURES |= {"ministral3": "mistral3"}
ARCHITECTURES |= {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}


def file_name(architecture: str, name: str) -> str:
    """As the file has it."""
    part = name.removeprefix("model.layers.").partition(".")[2].rpartition(".")[0]
    own = {**EXPERT_NAMES, **GGUF_NAMES.get(architecture, {})}.get(part) if name.startswith("model.layers.") else None
    return f"blk.{name.split('.')[2]}.{own}.{name.rpartition('.')[2]}" if own else gguf_name(name)


def stack_experts(tensors: dict[str, Stored], experts: dict[str, dict[int, Stored]]) -> None:
    """Those of a layer in one tensor, as llama.cpp has them."""
    for name, parts in experts.items():
        each = [parts[number] for number in range(len(parts))]
        data = b"".join(one.data for one in each)
        tensors[name] = Stored(each[0].number, (len(each), *each[0].shape), data)


def shape_fields(config: dict[str, Any], architecture: str) -> dict[str, Any]:
    """What config.json says, as llama.cpp's converter writes it."""
    rope = config.get("rope_parameters") or {}
    local = rope.get("sliding_attention", {}).get("rope_theta")
    rope = rope.get("full_attention", rope)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    found: dict[str, Any] = {
        "general.architecture": architecture,
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        f"{architecture}.attention.key_length": head_dim,
        f"{architecture}.attention.value_length": head_dim,
        f"{architecture}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{architecture}.rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1)),
        f"{architecture}.rope.freq_base": float(rope.get("rope_theta", 10_000.0)),
    }
    if rope.get("rope_type") == "linear":
        found |= {f"{architecture}.rope.scaling.type": "linear", f"{architecture}.rope.scaling.factor": rope["factor"]}
    if rope.get("rope_type") == "yarn":
        longer = {"type": "yarn", "factor": rope["factor"], "attn_factor": rope.get("attention_factor", 1.0)}
        found |= {f"{architecture}.rope.scaling.{name}": number for name, number in longer.items()}
        found[f"{architecture}.rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    known = {"num_experts": config.get("num_local_experts")} | rope | config
    own = {name: known.get(ours) for name, ours in OWN_FIELDS.get(architecture, {}).items()}
    found |= {f"{architecture}.{name}": number for name, number in own.items() if number is not None}
    if architecture == "gemma3":
        found[f"{architecture}.rope.freq_base_swa"] = local
    if config.get("sliding_window") and architecture in WINDOWED:
        found[f"{architecture}.attention.sliding_window"] = config["sliding_window"]
    if rope.get("rope_type") == "longrope":
        found[f"{architecture}.rope.scaling.original_context_length"] = config["original_max_position_embeddings"]
        found[f"{architecture}.rope.scaling.attn_factor"] = rope["attention_factor"]
    return found


def rope_tensors(config: dict[str, Any]) -> dict[str, Stored]:
    """Factors of each pair's angle, which llama.cpp has in tensors."""
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") == "longrope":
        factors = {which: np.array(rope[f"{which}_factor"]) for which in ("long", "short")}
        return {f"rope_factors_{which}.weight": stored("F32", numbers) for which, numbers in factors.items()}
    if rope.get("rope_type") != "llama3":
        return {}
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    each = []
    for at in range(0, dim, 2):
        length = 2 * np.pi * rope["rope_theta"] ** (at / dim)
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        original = rope["original_max_position_embeddings"]
        share = (original / length - low) / (high - low)
        plain = length < original / high
        each.append(
            1.0 if plain else rope["factor"] if length > original / low else 1 / ((1 - share) / rope["factor"] + share)
        )
    return {"rope_freqs.weight": stored("F32", np.array(each))}


def byte_level_fields(folder: Path, pre: str) -> dict[str, Any]:
    """The tokenizer of a checkpoint of tests."""
    made = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = made["model"]["vocab"]
    special = {token["content"]: token["id"] for token in made["added_tokens"] if token["special"]}
    defined = {token["content"]: token["id"] for token in made["added_tokens"] if not token["special"]}
    tokens = {number: word for word, number in (vocabulary | special | defined).items()}
    kinds = [CONTROL if tokens[at] in special else USER_DEFINED if tokens[at] in defined else NORMAL for at in tokens]
    ids = sorted(tokens)
    by_id = dict(zip(tokens, kinds, strict=True))
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in made["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokens[at] for at in ids],
        "tokenizer.ggml.token_type": [by_id[at] for at in ids],
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": 0,
    }


def each_tensor(folder: Path) -> Iterator[tuple[str, Array]]:
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def parts_of(folder: Path, kind_of: Callable[[str], str]) -> tuple[dict[str, Any], dict[str, Stored], dict[str, Array]]:
    """(fields, tensors, what these mean by their names at the hub) of a checkpoint of tests."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES.get(config["model_type"], config["model_type"])
    tensors, means = rope_tensors(config), {}
    experts: dict[str, dict[int, Stored]] = {}
    for name, weight in each_tensor(folder):
        one_row = name.endswith("shared_expert_gate.weight")
        kind = kind_of(name) if weight.ndim == 2 and not one_row else "F32"
        turned = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        heads = config[turned] if turned and architecture in PAIRED else None
        plus = architecture in ("gemma2", "gemma3") and name.endswith("norm.weight")
        tensor = stored(kind, heads_in_order(weight, heads) if heads else weight + 1 if plus else weight)
        means[name] = decoded(kind, tensor) - plus
        if heads:
            means[name] = heads_in_order(means[name], heads, back=True)
        if match := OF_EXPERT.fullmatch(name):
            experts.setdefault(f"blk.{match[1]}.ffn_{EXPERT_PARTS[match[3]]}_exps.weight", {})[int(match[2])] = tensor
            continue
        tensors[file_name(architecture, name)] = tensor._replace(shape=tensor.shape[1:]) if one_row else tensor
    stack_experts(tensors, experts)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = {"tokenizer.chat_template": settings["chat_template"]}
    return shape_fields(config, architecture) | byte_level_fields(folder, "gpt-2") | template, tensors, means


def convert(folder: Path, path: Path, kind_of: Callable[[str], str], **fields: Any) -> dict[str, Array]:
    """A checkpoint of tests as a file; returns what its tensors mean, by their names at the hub."""
    known, tensors, means = parts_of(folder, kind_of)
    write(path, known | fields, tensors)
    return means


def split(folder: Path, stem: Path, count: int) -> None:
    """The same in float32 in so many files, of which the first has all fields, as llama.cpp cuts them."""
    fields, tensors, _ = parts_of(folder, lambda name: "F32")
    names = list(tensors)
    for number in range(count):
        own = {name: tensors[name] for name in names[number::count]}
        about = {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        known = fields if number == 0 else {}
        write(stem.with_name(f"{stem.name}-{number + 1:05}-of-{count:05}.gguf"), known | about, own)


# --- a model of nothing --------------------------------------------------------------------------------------------


def tiny_fields(others: dict[str, Any] | None = None) -> dict[str, Any]:
    """A model of one layer of 32, with eight tokens."""
    architecture = (others or {}).get("general.architecture") or "llama"
    shape = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    vocabulary = {
        "model": "gpt2",
        "pre": "llama-bpe",
        "tokens": ["a", "b", "ab", "<s>", "</s>", "<|eot_id|>", "<x>", "[PAD]"],
        "token_type": [NORMAL] * 3 + [CONTROL] * 3 + [USER_DEFINED, UNUSED],
        "merges": ["a b"],
        "bos_token_id": 3,
        "eos_token_id": 4,
    }
    found: dict[str, Any] = {"general.architecture": architecture, "general.alignment": 32}
    found |= {f"{architecture}.{name}": value for name, value in shape.items()}
    found |= {f"tokenizer.ggml.{name}": value for name, value in vocabulary.items()}
    found |= {"tokenizer.chat_template": "{{ messages }}"} | (others or {})
    return {name: value for name, value in found.items() if value is not None}


def tiny_tensors(words: int = 8) -> dict[str, Stored]:
    weight = stored("F16", np.zeros((32, 32)))
    gain = stored("F32", np.ones(32))
    found = dict.fromkeys(("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"), gain)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    found |= {f"blk.0.{name}.weight": weight for name in names}
    return found | {"token_embd.weight": stored("F16", np.zeros((words, 32)))}


def tiny_model(folder: Path, others: dict[str, Any] | None = None, words: int = 8) -> Path:
    return write(folder / "m.gguf", tiny_fields(others), tiny_tensors(words))
