"""A Llama as InternLM 2 stores it: other names, and q, k and v of each KV head in one tensor, one behind the other."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NAMES = (
    ("model.embed_tokens.", "model.tok_embeddings."),
    ("lm_head.", "output."),
    (".input_layernorm.", ".attention_norm."),
    (".post_attention_layernorm.", ".ffn_norm."),
    (".self_attn.o_proj.", ".attention.wo."),
    (".mlp.gate_proj.", ".feed_forward.w1."),
    (".mlp.up_proj.", ".feed_forward.w3."),
    (".mlp.down_proj.", ".feed_forward.w2."),
)
QKV = ("q_proj", "k_proj", "v_proj")
REWARD = "InternLM2ForRewardModel"


def convert(llama: Path, folder: Path, reward: bool = False) -> None:
    """The files of `llama` in that form; `reward`: with a head of one number in the place of what makes logits."""
    shutil.copytree(llama, folder)
    config = json.loads((folder / "config.json").read_text())
    kind = REWARD if reward else "InternLM2ForCausalLM"
    config |= {"architectures": [kind], "model_type": "internlm2", "bias": config.pop("attention_bias", False)}
    (folder / "config.json").write_text(json.dumps(config))
    found = {}
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if ".q_proj." in name:
            own = [tensors[name.replace("q_proj", own)] for own in QKV]
            found[name.replace("self_attn.q_proj", "attention.wqkv")] = grouped(own, heads, groups)
        elif not any(f".{own}." in name for own in QKV):
            found[renamed(name)] = tensor
    if reward:
        found.pop("output.weight", None)
        made = torch.Generator().manual_seed(3)
        found["v_head.weight"] = torch.randn(1, config["hidden_size"], generator=made) / 6
    save_file(found, folder / "model.safetensors")


def grouped(qkv: Sequence[Tensor], heads: int, groups: int) -> Tensor:
    """Rows of q, k and v by their KV heads."""
    counted = zip(qkv, (heads // groups, 1, 1), strict=True)
    parts = [part.view(groups, count, -1, *part.shape[1:]) for part, count in counted]
    return torch.cat(parts, 1).flatten(0, 2).contiguous()


def write_adapters(llama: Path, folder: Path, adapter: Path) -> None:
    """One of q, k and v for both: in `llama` of three modules with the same A, in `adapter` of the one that is all."""
    config = json.loads((folder / "config.json").read_text())
    hidden, heads, groups = (config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    made, width = torch.Generator().manual_seed(5), hidden // heads
    three: dict[str, Tensor] = {}
    one: dict[str, Tensor] = {}
    for layer in range(config["num_hidden_layers"]):
        head = f"base_model.model.model.layers.{layer}."
        a = torch.randn(4, hidden, generator=made) / 4
        b = [torch.randn(count * width, 4, generator=made) / 4 for count in (heads, groups, groups)]
        for name, rows in zip(QKV, b, strict=True):
            module = f"{head}self_attn.{name}"
            three |= {f"{module}.lora_A.weight": a.clone(), f"{module}.lora_B.weight": rows}
        module = f"{head}attention.wqkv"
        one |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": grouped(b, heads, groups)}
    for place, tensors, modules in ((llama, three, list(QKV)), (adapter, one, ["wqkv"])):
        place.mkdir()
        save_file(tensors, place / "adapter_model.safetensors")
        about = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": modules, "bias": "none"}
        (place / "adapter_config.json").write_text(json.dumps(about))


def renamed(name: str) -> str:
    for own, stored in NAMES:
        name = name.replace(own, stored)
    return name
