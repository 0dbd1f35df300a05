"""Names of tensors in GGUF files of models with experts, and of MiniCPM 3, whose keys and values are latents."""

from __future__ import annotations

from ..layout import LLAMA, MLA, PARTS, Layout, Names


def experts(gate: str, place: str, shared: str = "") -> Names:
    """A router, experts, and an MLP of the same parts for all tokens, if there is one."""
    each = {f"ffn_{part}_exps": f"{place}.{{expert}}.{part}_proj" for part in PARTS}
    return {"ffn_gate_inp": gate, **each} | (
        {f"ffn_{part}_shexp": f"{shared}.{part}_proj" for part in PARTS} if shared else {}
    )


DEEPSEEK: Names = LLAMA | experts("mlp.gate", "mlp.experts", "mlp.shared_experts")
EXPERTS = {
    "bailingmoe": Layout(*("BailingMoeForCausalLM", "bailing_moe", DEEPSEEK), paired=True),
    "bailingmoe2": Layout(
        *("BailingMoeV2ForCausalLM", "bailing_moe"),
        {name: hub for name, hub in DEEPSEEK.items() if name not in ("attn_q", "attn_k", "attn_v")}
        | {
            "attn_qkv": "attention.query_key_value",
            "attn_q_norm": "attention.query_layernorm",
            "attn_k_norm": "attention.key_layernorm",
            "attn_output": "attention.dense",
        },
        whole={"exp_probs_b.bias": "mlp.gate.expert_bias"},
    ),
    "dots1": Layout(
        *("Dots1ForCausalLM", "dots1", DEEPSEEK),
        whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    ),
    "exaone-moe": Layout(
        *("ExaoneMoeForCausalLM", "exaone_moe", DEEPSEEK),
        whole={"exp_probs_b.bias": "mlp.e_score_correction_bias"},
    ),
    "hunyuan-moe": Layout(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        LLAMA
        | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
        | experts("mlp.gate.wg", "mlp.experts", "mlp.shared_mlp"),
    ),
    "minicpm3": Layout("MiniCPM3ForCausalLM", "minicpm3", LLAMA | MLA),
    "phimoe": Layout(
        "PhimoeForCausalLM",
        "phimoe",
        LLAMA
        | {
            "ffn_gate_inp": "block_sparse_moe.gate",
            "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
            "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
            "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
        },
    ),
}
