"""A checkpoint as GGUF, the form that llama.cpp reads: float32, for Llama and Qwen3. Needs the package `gguf`.

Names of tensors and keys are those of the `gguf` package. llama.cpp turns neighbouring elements of a Llama's queries
and keys (the two halves of a head in the hub's form), so that their rows are put in that order; Qwen3's stay.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

LLAMA, QWEN3 = "llama", "qwen3"
NORMAL, USER_DEFINED, UNUSED = 1, 4, 5  # kinds of words
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(folder: Path, path: Path) -> None:
    """Convert a folder in the hub's form."""
    try:
        gguf: Any = importlib.import_module("gguf")
    except ImportError:
        raise SystemExit("tools/bench/peers: llama.cpp's file needs the package gguf: pip install gguf") from None
    from safetensors import safe_open

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(path, config["model_type"])
    _write_shape(writer, config)
    _write_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config["vocab_size"])
    with safe_open(folder / "model.safetensors", "numpy") as tensors:
        for name in tensors.keys():
            tensor = tensors.get_tensor(name).astype(np.float32, copy=False)
            writer.add_tensor(gguf_name(name), in_order(name, tensor, config))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_file_type(0)  # all float32
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tokenizer(writer: Any, tokenizer: dict[str, Any], size: int) -> None:
    """Words by their ids; those without a word are named and never drawn. Special ones have names for texts."""
    words = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    added = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["model"]["merges"]]
    missing = range(len(words), size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(
        [in_text(word) if word in added else word for word in words] + [f"[unused{number}]" for number in missing]
    )
    kinds = [USER_DEFINED if word in added else NORMAL for word in words]
    writer.add_token_types(kinds + [UNUSED] * len(missing))
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)


def in_text(text: str) -> str:
    """A text as the file's tokenizer has it: llama.cpp finds no `<|im_end|>` in texts that it reads of files."""
    return text.replace("<|", "<~").replace("|>", "~>")


def gguf_name(name: str) -> str:
    """`blk.3.attn_q.weight` of `model.layers.3.self_attn.q_proj.weight`."""
    stem, _, kind = name.rpartition(".")
    if stem in OTHER_NAMES:
        return f"{OTHER_NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def in_order(name: str, tensor: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Rows of a Llama's queries and keys: x0, y0, x1, y1, … where the hub has x0, x1, … y0, y1, …"""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if heads is None or config["model_type"] != LLAMA:
        return tensor
    rows, columns = tensor.shape
    halves = tensor.reshape(config[heads], 2, rows // config[heads] // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)
