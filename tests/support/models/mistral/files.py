"""A checkpoint of transformers as Mistral publishes its own: params.json, and weights in consolidated.safetensors.

In rows of queries and keys numbers that turn together are neighbours.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

NAMES = (  # of the hub, and of this form
    (r"vision_tower\.", "vision_encoder."),
    (r"attention\.([qkvo])_proj", r"attention.w\1"),
    (r"feed_forward\.gate_proj", "feed_forward.w1"),
    (r"feed_forward\.down_proj", "feed_forward.w2"),
    (r"feed_forward\.up_proj", "feed_forward.w3"),
    (r"multi_modal_projector\.linear_1", "vision_language_adapter.w_in"),
    (r"multi_modal_projector\.linear_2", "vision_language_adapter.w_out"),
    (r"multi_modal_projector\.patch_merger\.", "patch_merger."),
    (r"multi_modal_projector\.norm", "pre_mm_projector_norm"),
    (r"^language_model\.", ""),
    (r"model\.layers\.", "layers."),
    (r"model\.embed_tokens\.", "tok_embeddings."),
    (r"model\.norm\.", "norm."),
    (r"lm_head\.", "output."),
    (r"self_attn\.([qkvo])_proj", r"attention.w\1"),
    (r"mlp\.gate_proj", "feed_forward.w1"),
    (r"mlp\.down_proj", "feed_forward.w2"),
    (r"mlp\.up_proj", "feed_forward.w3"),
    (r"input_layernorm", "attention_norm"),
    (r"post_attention_layernorm", "ffn_norm"),
    (r"(block_sparse_moe|mlp)\.experts\.", "feed_forward.experts."),
    (r"(block_sparse_moe|mlp)\.gate\.", "feed_forward.gate."),
)
OF_LATENTS = (
    (r"self_attn\.q_([ab])_proj", r"attention.wq_\1"),
    (r"self_attn\.q_a_layernorm", "attention.q_a_norm"),
    (r"self_attn\.kv_a_proj_with_mqa", "attention.wkv_a_with_mqa"),
    (r"self_attn\.kv_a_layernorm", "attention.kv_a_norm"),
    (r"self_attn\.kv_b_proj", "attention.wkv_b"),
    (r"mlp\.(shared_experts|experts\.\d+)\.gate_proj", r"\1.w1"),
    (r"mlp\.(shared_experts|experts\.\d+)\.down_proj", r"\1.w2"),
    (r"mlp\.(shared_experts|experts\.\d+)\.up_proj", r"\1.w3"),
    (r"mlp\.gate\.", "gate."),
)
WHISPER = "mm_whisper_embeddings.whisper_encoder."
OF_SOUNDS = (
    (r"multi_modal_projector\.linear_1", "mm_whisper_embeddings.audio_language_projection.0"),
    (r"multi_modal_projector\.linear_2", "mm_whisper_embeddings.audio_language_projection.2"),
    (r"audio_tower\.conv1", f"{WHISPER}conv_layers.0"),
    (r"audio_tower\.conv2", f"{WHISPER}conv_layers.1"),
    (r"audio_tower\.layer_norm", f"{WHISPER}transformer.norm"),
    (r"audio_tower\.layers\.", f"{WHISPER}transformer.layers."),
    (r"self_attn\.out_proj", "attention.wo"),
    (r"self_attn_layer_norm", "attention_norm"),
    (r"final_layer_norm", "ffn_norm"),
    (r"\.fc([12])\.", r".feed_forward.w\1."),
    (r"language_model\.model\.embed_tokens", "mm_whisper_embeddings.tok_embeddings"),
)
SINES = "audio_tower.embed_positions.weight"  # which this form leaves out
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def convert(folder: Path, into: Path, parts: int = 1, tokenizer: bool = True, **params: Any) -> Path:
    """`into`, with the model of `folder` in so many files; of several there is an index. `params` are added."""
    config = json.loads((folder / "config.json").read_text())
    into.mkdir(parents=True, exist_ok=True)
    (into / "params.json").write_text(json.dumps(params_of(config) | params))
    write_tensors(into, tensors_of(folder, config), parts)
    for name in TOKENIZER if tokenizer else ():
        shutil.copy(folder / name, into / name)
    return into


def params_of(config: dict[str, Any]) -> dict[str, Any]:
    """params.json of a config.json."""
    if "text_config" in config:
        part = {"vision_encoder": _seeing(config)} if "vision_config" in config else {"multimodal": _hearing(config)}
        return params_of(config["text_config"]) | part
    rope, heads = config.get("rope_parameters") or {}, config["num_attention_heads"]
    found: dict[str, Any] = {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "hidden_dim": config["intermediate_size"],
        "n_heads": heads,
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "tied_embeddings": config["tie_word_embeddings"],
        "rope_theta": rope["rope_theta"],
        "max_seq_len": config["max_position_embeddings"],
        "sliding_window": config.get("sliding_window"),
    }
    if "kv_lora_rank" in config:
        found |= _latent(config)
    elif config.get("num_local_experts"):
        names = {"num_experts": "num_local_experts", "num_experts_per_tok": "num_experts_per_tok"}
        found["moe"] = {name: config[own] for name, own in names.items()}
    if rope.get("rope_type") == "yarn":
        length = {"original_max_position_embeddings": rope["original_max_position_embeddings"]}
        scaled = found.get("moe", {}).get("expert_hidden_dim") is not None and "attention_factor" not in rope
        found["yarn"] = {**length, "factor": rope["factor"], "apply_scale": scaled, "beta": 32, "alpha": 1}
        found["llama_4_scaling"] = {**length, "beta": rope["llama_4_scaling_beta"]}
    return found


def _latent(config: dict[str, Any]) -> dict[str, Any]:
    """What sizes attention over latents has, and experts beside it."""
    names = "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim".split()
    experts = {
        **{"num_experts": "n_routed_experts", "num_experts_per_tok": "num_experts_per_tok"},
        **{"expert_hidden_dim": "moe_intermediate_size", "num_shared_experts": "n_shared_experts"},
        **{"num_expert_groups": "n_group", "num_expert_groups_per_tok": "topk_group"},
        **{"first_k_dense_replace": "first_k_dense_replace", "routed_scale": "routed_scaling_factor"},
    }
    moe = {"route_every_n": 1, **{name: config[own] for name, own in experts.items()}}
    return {name: config[name] for name in names} | {"moe": moe}


def _seeing(config: dict[str, Any]) -> dict[str, Any]:
    """What a model sees by."""
    vision, merge = config["vision_config"], config.get("spatial_merge_size")
    names = "hidden_size num_channels image_size patch_size intermediate_size num_hidden_layers num_attention_heads"
    found = {name: vision[name] for name in names.split()}
    found |= {"rope_theta": vision["rope_parameters"]["rope_theta"], "image_token_id": config["image_token_index"]}
    found |= {"adapter_bias": config["multimodal_projector_bias"]}
    merged = {"mm_projector_id": "patch_merge", "spatial_merge_size": merge, "add_pre_mm_projector_layer_norm": True}
    return found | (merged if merge else {})


def _hearing(config: dict[str, Any]) -> dict[str, Any]:
    """What a model hears by."""
    audio = config["audio_config"]
    spectrum = {"sampling_rate": 16_000, "hop_length": 160, "window_size": 400, "num_mel_bins": audio["num_mel_bins"]}
    encoder = {
        **{"dim": audio["hidden_size"], "n_layers": audio["num_hidden_layers"], "vocab_size": audio["vocab_size"]},
        **{"hidden_dim": audio["intermediate_size"], "n_heads": audio["num_attention_heads"]},
        **{"max_source_positions": audio["max_source_positions"], "audio_encoding_args": spectrum},
    }
    factor = audio["intermediate_size"] // audio["hidden_size"]
    return {"whisper_model_args": {"encoder_args": encoder, "downsample_args": {"downsample_factor": factor}}}


def tensors_of(folder: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """All of a checkpoint, with this form's names and rows."""
    text = config.get("text_config", config)
    heads = {"layers": text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]}
    if (vision := config.get("vision_config")) is not None:
        heads["vision_encoder"] = vision["hidden_size"] // vision["num_attention_heads"]
    if latent := "kv_lora_rank" in text:
        del heads["layers"]
    names = (*(OF_SOUNDS if "audio_config" in config else ()), *(OF_LATENTS if latent else ()), *NAMES)
    found = {}
    for file in folder.glob("*.safetensors"):
        for hub, tensor in _by_expert(load_file(file)).items():
            name = hub
            for pattern, own in names:
                name = re.sub(pattern, own, name)
            turns = re.search(r"attention\.w[qk]\.", name) and name.partition(".")[0] in heads
            if hub != SINES:
                found[name] = paired(tensor, heads[name.partition(".")[0]]) if turns else tensor
    return found


def _by_expert(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same, with those of all experts of a layer taken apart."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if not stem.endswith(".experts"):
            found[name] = tensor
            continue
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else (part,)
        for number, expert in enumerate(tensor):
            for own, rows in zip(parts, expert.chunk(len(parts)), strict=True):
                found[f"{stem}.{number}.{own}.weight"] = rows.contiguous()
    return found


def paired(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads as this form has them: both numbers of a pair are neighbours."""
    order = torch.arange(head_dim).view(2, head_dim // 2).t().flatten()
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    return heads[:, order].reshape(rows.shape).contiguous()


def write_tensors(into: Path, tensors: dict[str, Tensor], parts: int = 1) -> None:
    """Of several files as many as there are parts."""
    if parts == 1:
        save_file(tensors, into / "consolidated.safetensors")
        return
    places: dict[str, str] = {}
    for number in range(parts):
        file = f"consolidated-{number + 1:05}-of-{parts:05}.safetensors"
        own = dict(list(tensors.items())[number::parts])
        save_file(own, into / file)
        places |= dict.fromkeys(own, file)
    (into / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
