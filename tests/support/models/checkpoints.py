"""Tiny random checkpoints as transformers writes them, with a tokenizer and a chat template: models for tests.

Greedy text of a random model must vary and its best two logits must lie apart, or a comparison says nothing: hence the
wide initialisation. Kinds: see KINDS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXT = """The quick brown fox jumps over the lazy dog. What is the capital of France? The capital of France is Paris.
How do I set an API key? Start the server with --api-key and send it in the Authorization header. Hello, how are you?
I am fine, thank you. One and one is two; two and two is four; four and four is eight. Grüße aus Köln: ÄÖ äö ß é 你 🙂.
def main(context): return {"name": "value", "list": [1, 2, 3]}  # a comment, <b>bold</b> and \\n a new line."""
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY = 384
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.3,
    "eos_token_id": 0,
    "bos_token_id": None,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MINISTRAL3_ROPE = {  # queries grow within texts of tests
    **{**YARN_ROPE, "factor": 8.0, "original_max_position_embeddings": 16},
    **{"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.4},
}
MLA_ROPE = {**YARN_ROPE, "mscale": 0.7, "mscale_all_dim": 1.3}
MLA: dict[str, Any] = {
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 48,
    "n_routed_experts": 12,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
INDEX: dict[str, Any] = {"index_topk": 24, "index_n_heads": 8, "index_head_dim": 20}  # within texts of tests
GEMMA: dict[str, Any] = {
    "head_dim": 32,
    "query_pre_attn_scalar": 24,
    "pad_token_id": 0,
    "initializer_range": 0.1,
    "tie_word_embeddings": True,
}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 100_000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
}
GRANITE4: dict[str, Any] = {
    **{"layer_types": ["full_attention"] * 3, "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_heads": 4},
    **{"shared_intermediate_size": 80, "embedding_multiplier": 3.0, "residual_multiplier": 0.6},
    **{"attention_multiplier": 0.11, "logits_scaling": 0.7, "tie_word_embeddings": True},
}
OLMO3: dict[str, Any] = {"pad_token_id": 0, "rope_scaling": YARN_ROPE, "rope_theta": 10_000.0}
PHI4_MINI: dict[str, Any] = {
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "longrope",
        "partial_rotary_factor": 0.75,
        "attention_factor": 1.2,
        "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7, 2.0],
        "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    },
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # kind: (transformers' model type, what differs from BASE)
    "llama": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama_linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}}),
    "llama_biased": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama_tied": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2_windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("qwen3", {"head_dim": 32, "num_attention_heads": 6}),
    "qwen3_moe": (
        "qwen3_moe",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "qwen2_moe": (
        "qwen2_moe",
        {
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 72,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 3,
        },
    ),
    "deepseek_v2": ("deepseek_v2", {**MLA, "q_lora_rank": None, "topk_method": "greedy", "n_shared_experts": 2}),
    "deepseek_v2_groups": (
        "deepseek_v2",
        {**MLA, "topk_method": "group_limited_greedy", "routed_scaling_factor": 3.0, "rope_parameters": MLA_ROPE},
    ),
    "deepseek_v3": ("deepseek_v3", {**MLA, "n_shared_experts": 1, "num_mtp_layers": 0, "rope_parameters": MLA_ROPE}),
    "deepseek_v32": (
        "deepseek_v32",
        {**MLA, **INDEX, "n_shared_experts": 1, "num_mtp_layers": 0, "rope_parameters": {**MLA_ROPE}},
    ),
    "glm_moe_dsa": (
        "glm_moe_dsa",
        {
            **{**MLA, **INDEX, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_mtp_layers": 0},
            **{"indexer_types": ["full", "shared", "full"], "pad_token_id": 0},
        },
    ),
    "mistral4": (
        "mistral4",
        {
            **{**MLA, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "pad_token_id": 0},
            "rope_parameters": {**MINISTRAL3_ROPE},  # to which the config adds
        },
    ),
    "llama4": (
        "llama4_text",
        {
            **{
                "head_dim": 32,
                "num_hidden_layers": 4,
                "num_local_experts": 5,
                "intermediate_size": 48,
                "pad_token_id": 0,
            },
            **{"intermediate_size_mlp": 96, "interleave_moe_layer_step": 2, "attention_chunk_size": 24},
            **{"floor_scale": 16, "attn_scale": 0.4, "no_rope_layer_interval": 3, "num_experts_per_tok": 1},
        },
    ),
    "llama4_plain": (
        "llama4_text",
        {
            **{
                "head_dim": 32,
                "num_hidden_layers": 3,
                "num_local_experts": 5,
                "intermediate_size": 48,
                "pad_token_id": 0,
            },
            **{"intermediate_size_mlp": 96, "attention_chunk_size": 40, "num_experts_per_tok": 2},
            **{"use_qk_norm": False, "attn_temperature_tuning": False, "rope_parameters": LLAMA3_ROPE},
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            "head_dim": 32,
            "num_hidden_layers": 4,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "sliding_window": 24,
            "swiglu_limit": 1.5,
            "rope_parameters": {**YARN_ROPE, "truncate": False},
            "rms_norm_eps": 1e-5,
        },
    ),
    "mixtral": ("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "ministral3": ("ministral3", {"head_dim": 32, "pad_token_id": 0, "rope_parameters": MINISTRAL3_ROPE}),
    "phi3": ("phi3", {"sliding_window": 24, "pad_token_id": 0}),
    "phi3_short": ("phi3", {**PHI4_MINI, "original_max_position_embeddings": 1024}),  # longer than texts of tests
    "phi3_long": ("phi3", {**PHI4_MINI, "original_max_position_embeddings": 1}),  # all texts are long
    "llama_yarn": ("llama", {"rope_parameters": YARN_ROPE}),
    "gemma2": ("gemma2", {**GEMMA, "sliding_window": 24}),
    "gemma3": (
        "gemma3_text",
        {**GEMMA, "num_hidden_layers": 6, "sliding_window": 24, "rope_parameters": GEMMA3_ROPES},
    ),
    "glm4": ("glm4", {"head_dim": 16, "pad_token_id": 0, "attention_bias": True}),
    "glm4_moe": (
        "glm4_moe",
        {
            **{name: MLA[name] for name in ("moe_intermediate_size", "n_routed_experts", "n_group", "topk_group")},
            **{"head_dim": 32, "use_qk_norm": True, "num_experts_per_tok": 3, "attention_bias": True},
            **{"routed_scaling_factor": 2.5, "num_mtp_layers": 0, "pad_token_id": 0},
        },
    ),
    "glm4_moe_lite": (
        "glm4_moe_lite",
        {
            **{**MLA, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "routed_scaling_factor": 1.8},
            **{"mlp_layer_types": ["dense", "sparse", "sparse"], "pad_token_id": 0},
        },
    ),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.6,
            "attention_multiplier": 0.11,
            "logits_scaling": 0.7,
            "tie_word_embeddings": True,
        },
    ),
    "granite4": ("granitemoehybrid", {**GRANITE4, "position_embedding_type": "rope"}),
    "granite4_unturned": ("granitemoehybrid", GRANITE4),
    "olmo2": ("olmo2", {"pad_token_id": 0}),
    "olmo3": ("olmo3", {**OLMO3, "num_hidden_layers": 4, "sliding_window": 24}),
    "seed_oss": ("seed_oss", {"head_dim": 32, "attention_bias": True, "attention_out_bias": True, "pad_token_id": 0}),
    "smollm3": (
        "smollm3",
        {"pad_token_id": 0, "no_rope_layer_interval": 3, "use_sliding_window": True, "sliding_window": 24},
    ),
}


OTHER_CLASSES = {"mistral4": "Mistral4ForCausalLM"}  # those that transformers' table of decoders lacks


def decoders() -> Any:
    """That table, with these."""
    import transformers

    for model_type, name in OTHER_CLASSES.items():
        config = type(transformers.AutoConfig.for_model(model_type))
        transformers.AutoModelForCausalLM.register(config, getattr(transformers, name), exist_ok=True)
    return transformers.AutoModelForCausalLM


def checkpoint(kind: str, root: Path, **changes: Any) -> Path:
    """The folder of a checkpoint of this kind below `root`; written at the first call."""
    folder = root / "-".join([kind, *(f"{key}={value}" for key, value in sorted(changes.items()))])
    if not (folder / "config.json").exists():
        write_model(kind, folder, **changes)
        write_tokenizer(folder)
    return folder


def write_shape(folder: Path) -> tuple[str, ...]:
    """What a launch looks at before it starts actors, for those that are fake; returns the options that go with it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 64,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return str(folder), "--load-format", "dummy"


def write_model(kind: str, folder: Path, shard: str | None = None, seed: int = 0, **changes: Any) -> None:
    """Weights in float32 and config.json; `shard` is the largest size of one file, e.g. "100KB"."""
    import torch
    from transformers import AutoConfig

    model_type, differences = KINDS[kind]
    config = AutoConfig.for_model(model_type, **{**BASE, **differences, **changes})
    torch.manual_seed(seed)
    model = decoders().from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():  # transformers starts these at 0 and 1
            if name.endswith(("bias", "sinks")):
                parameter.normal_(0, 0.3)
            elif name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.3)
    model.generation_config.eos_token_id = SPECIAL.index("<|endoftext|>")
    model.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE tokenizer of VOCABULARY words or fewer, trained on TEXT, and its chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
