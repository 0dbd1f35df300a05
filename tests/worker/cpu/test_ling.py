"""Ling and Ring (BailingMoe), which transformers does not have: equal to models of it with other names of tensors."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from actorserve.actors.model.config_json import find_architecture
from actorserve.actors.model.info import read_json
from tests.support.compiler import cache_with_kernels
from tests.support.models.gguf.files import Stored, byte_level_fields, heads_in_order, stored, write
from tests.support.models.greedy import assert_greedy, reference

from ..driver import Driver, Sequence, config_for, make_runner
from ..models.read_back import read_both
from .test_executor import prompts

Folders = Callable[..., Path]
NAMES = (
    (r"embed_tokens", "word_embeddings"),
    (r"self_attn\.o_proj", "attention.dense"),
    (r"self_attn\.q_norm", "attention.query_layernorm"),
    (r"self_attn\.k_norm", "attention.key_layernorm"),
    (r"e_score_correction_bias", "expert_bias"),
    (r"block_sparse_moe", "mlp"),
    (r"(experts\.\d+)\.w1", r"\1.gate_proj"),
    (r"(experts\.\d+)\.w3", r"\1.up_proj"),
    (r"(experts\.\d+)\.w2", r"\1.down_proj"),
)
IN_FILES = (  # of GGUF
    (r"model\.word_embeddings", "token_embd"),
    (r"model\.norm", "output_norm"),
    (r"lm_head", "output"),
    (r"model\.layers\.", "blk."),
    (r"input_layernorm", "attn_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"attention\.query_key_value", "attn_qkv"),
    (r"attention\.dense", "attn_output"),
    (r"attention\.query_layernorm", "attn_q_norm"),
    (r"attention\.key_layernorm", "attn_k_norm"),
    (r"mlp\.gate\.expert_bias", "exp_probs_b.bias"),
    (r"mlp\.gate\.", "ffn_gate_inp."),
    (r"mlp\.shared_experts\.(\w+)_proj", r"ffn_\1_shexp"),
    (r"mlp\.(\w+)_proj", r"ffn_\1"),
)


def renamed(name: str, names: tuple[tuple[str, str], ...]) -> str:
    for pattern, other in names:
        name = re.sub(pattern, other, name)
    return name


def published(source: Path, folder: Path, architecture: str, **fields: Any) -> Path:
    """The same weights as Ling has them: queries, keys and values are one."""
    shutil.copytree(source, folder)
    tensors = load_file(source / "model.safetensors")
    joined: dict[str, Tensor] = {}
    for name in [name for name in tensors if "q_proj" in name]:
        parts = [tensors.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        joined[name.replace("self_attn.q_proj", "attention.query_key_value")] = torch.cat(parts)
    found = {renamed(name, NAMES): tensor for name, tensor in (tensors | joined).items()}
    save_file(found, folder / "model.safetensors", {"format": "pt"})
    values = json.loads((source / "config.json").read_text())
    own = {"architectures": [architecture], "model_type": "bailing_moe", **fields}
    (folder / "config.json").write_text(json.dumps(values | own))
    return folder


def second(checkpoints: Folders, folder: Path) -> tuple[Path, Path]:
    source = checkpoints("glm4_moe")
    values = read_json(source / "config.json")
    own = {"num_experts": values["n_routed_experts"], "num_shared_experts": 1, "use_qkv_bias": True}
    return source, published(source, folder / "ling", "BailingMoeV2ForCausalLM", **own)


def first(checkpoints: Folders, folder: Path) -> tuple[Path, Path]:
    source = checkpoints("mixtral")
    sizes = {"num_experts": 5, "num_shared_experts": 0, "moe_intermediate_size": 96, "norm_topk_prob": True}
    return source, published(source, folder / "ling", "BailingMoeForCausalLM", **sizes)


@pytest.mark.parametrize("make", [first, second])
def test_answers_are_those_of_the_same_weights(
    make: Callable[..., tuple[Path, Path]], checkpoints: Folders, tmp_path: Path
) -> None:
    source, folder = make(checkpoints, tmp_path)
    texts = prompts((1, 40, 17, 5))
    found = Driver(make_runner(config_for(folder)), budget=32, preempt=0.1).run([Sequence(text, 12) for text in texts])
    assert_greedy(reference(source), texts, found, 12)


def in_file(folder: Path, names: tuple[tuple[str, str], ...]) -> dict[str, Stored]:
    """A checkpoint's tensors by the names of a GGUF file, those of all experts in one."""
    tensors: dict[str, Stored] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if of := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight", name):
            experts.setdefault(f"blk.{of[1]}.ffn_{of[3]}_exps.weight", {})[int(of[2])] = weight
        else:
            tensors[renamed(name, names)] = stored("F32", weight.numpy())
    for name, parts in experts.items():
        tensors[name] = stored("F32", torch.stack([parts[number] for number in sorted(parts)]).numpy())
    return tensors


def write_file(folder: Path, path: Path, architecture: str, fields: dict[str, Any], tensors: dict[str, Stored]) -> None:
    named = {f"{architecture}.{name}": value for name, value in fields.items()}
    write(path, {"general.architecture": architecture, **named, **byte_level_fields(folder, "gpt-2")}, tensors)


def test_a_gguf_file(checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As its checkpoint, with a layer behind the others that drafts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _, folder = second(checkpoints, tmp_path)
    values, tensors = read_json(folder / "config.json"), in_file(folder, IN_FILES)
    tensors |= {
        f"blk.3.{own}": stored("F32", torch.ones(8).numpy()) for own in ("nextn.eh_proj.weight", "attn_q.weight")
    }
    fields = {
        **{"block_count": 4, "nextn_predict_layers": 1, "context_length": 2048, "embedding_length": 64},
        **{"feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2},
        **{"attention.key_length": 32, "attention.value_length": 32, "rope.dimension_count": 16},
        **{"attention.layer_norm_rms_epsilon": values["rms_norm_eps"], "rope.freq_base": 10000.0},
        **{"expert_count": 12, "expert_used_count": 3, "expert_feed_forward_length": 48, "expert_gating_func": 2},
        **{"expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5},
        **{"expert_group_count": 4, "expert_group_used_count": 2, "leading_dense_block_count": 1},
    }
    write_file(folder, tmp_path / "model.gguf", "bailingmoe2", fields, tensors)
    wanted, found, _ = read_both(folder, tmp_path / "model.gguf")
    for name, weight in wanted.items():
        assert torch.equal(found[name], weight), name


def test_a_gguf_file_of_the_first(checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and values are apart there, and numbers of queries and keys that turn together neighbours."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))
    source, folder = first(checkpoints, tmp_path)
    values, heads = read_json(folder / "config.json"), {"q": 4, "k": 2, "v": 0}
    tensors, joined = in_file(folder, IN_FILES), load_file(folder / "model.safetensors")
    width = values["hidden_size"] // heads["q"]
    for layer in range(values["num_hidden_layers"]):
        del tensors[f"blk.{layer}.attn_qkv.weight"]
        whole = joined[f"model.layers.{layer}.attention.query_key_value.weight"]
        for part, rows in zip(heads, whole.split([heads["q"] * width, 2 * width, 2 * width]), strict=True):
            turned = heads_in_order(rows.numpy(), heads[part]) if heads[part] else rows.numpy()
            tensors[f"blk.{layer}.attn_{part}.weight"] = stored("F32", turned)
    fields = {
        **{"block_count": values["num_hidden_layers"], "context_length": 2048, "embedding_length": 4 * width},
        **{"feed_forward_length": 96, "attention.head_count": 4, "attention.head_count_kv": 2},
        **{"rope.dimension_count": width, "rope.scaling.type": "none"},
        **{"rope.freq_base": float(values["rope_parameters"]["rope_theta"])},
        **{"attention.layer_norm_rms_epsilon": values["rms_norm_eps"], "leading_dense_block_count": 0},
        **{"expert_count": 5, "expert_used_count": values["num_experts_per_tok"], "expert_shared_count": 0},
        **{"expert_feed_forward_length": 96, "expert_weights_scale": 1.0, "expert_weights_norm": True},
    }
    write_file(folder, tmp_path / "model.gguf", "bailingmoe", fields, tensors)
    texts = prompts((1, 40, 17, 5))
    runner = make_runner(config_for(tmp_path / "model.gguf"))
    assert_greedy(reference(source), texts, Driver(runner, budget=32).run([Sequence(text, 12) for text in texts]), 12)


def test_what_the_layers_do_not_have() -> None:
    """By transformers' layers it is, and they do not know it: the reason is theirs."""
    values = {"architectures": ["BailingMoeForCausalLM"], "norm_head": True, "num_experts": 4, "hidden_size": 64}
    values |= {"num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 64, "intermediate_size": 96}
    assert find_architecture(values, "auto") is None
