"""Names of tensors in GGUF files of models whose layers have states: Mamba and its kin, linear attention, and both of
these beside attention."""

from __future__ import annotations

from ..layout import AROUND, LLAMA, PARTS, Change, Changes, Layout, Names

ATTENTION: Names = {name: hub for name, hub in LLAMA.items() if name.startswith("attn_")}
MIXER: Names = {f"attn_{part}": f"mixer.{part}_proj" for part in "qkv"} | {"attn_output": "mixer.o_proj"}
LINEAR: Names = {  # attention of Qwen3-Next and Qwen 3.5
    **ATTENTION,
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    "ssm_in": "linear_attn.in_proj_qkvz",  # of old files
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
}
LINEAR_WHOLE: Names = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}
QWEN_EXPERTS: Names = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{part}_exps": f"mlp.experts.{{expert}}.{part}_proj" for part in PARTS},
    **{f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in PARTS},
}
MLP: Names = {f"ffn_{part}": f"mlp.{part}_proj" for part in PARTS}
GROUPED: Changes = {  # heads of values stand in turn, where the hub has those of a key's together
    "linear_attn.in_proj_qkv.weight": (Change.VALUE_ROWS,),
    "linear_attn.in_proj_z.weight": (Change.VALUE_ROWS,),
    "linear_attn.in_proj_a.weight": (Change.VALUE_ROWS,),
    "linear_attn.in_proj_b.weight": (Change.VALUE_ROWS,),
    "linear_attn.dt_bias": (Change.VALUE_ROWS,),
    "linear_attn.A_log": (Change.LOGARITHM, Change.VALUE_ROWS),
    "linear_attn.conv1d.weight": (Change.VALUE_ROWS, Change.CHANNELS),
    "linear_attn.out_proj.weight": (Change.VALUE_COLUMNS,),
}


def mamba2(place: str) -> Names:
    """Of Mamba-2."""
    return {
        "ssm_in": f"{place}.in_proj",
        "ssm_conv1d": f"{place}.conv1d",
        "ssm_norm": f"{place}.norm",
        "ssm_out": f"{place}.out_proj",
    }


def mamba2_whole(place: str) -> Names:
    return {"ssm_a": f"{place}.A_log", "ssm_d": f"{place}.D", "ssm_dt.bias": f"{place}.dt_bias"}


def mamba2_changes(place: str) -> Changes:
    return {
        f"{place}.A_log": (Change.FLAT, Change.LOGARITHM),
        f"{place}.D": (Change.FLAT,),
        f"{place}.norm.weight": (Change.FLAT,),
        f"{place}.conv1d.weight": (Change.CHANNELS,),
    }


BACKBONE: Names = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"}
FINAL: Names = AROUND | {"output_norm": "model.final_layernorm"}
JAMBA: Names = ATTENTION | {
    "ssm_in": "mamba.in_proj",
    "ssm_conv1d": "mamba.conv1d",
    "ssm_x": "mamba.x_proj",
    "ssm_dt": "mamba.dt_proj",
    "ssm_out": "mamba.out_proj",
    "ssm_dt_norm": "mamba.dt_layernorm",
    "ssm_b_norm": "mamba.b_layernorm",
    "ssm_c_norm": "mamba.c_layernorm",
    "ffn_norm": "pre_ff_layernorm",
    "ffn_gate_inp": "feed_forward.router",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in PARTS},
    **{f"ffn_{part}_exps": f"feed_forward.experts.{{expert}}.{part}_proj" for part in PARTS},
}
GRANITE: Names = {
    **ATTENTION,
    **mamba2("mamba"),
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.gate_linear",  # joined.py has what these two are
    "ffn_up_exps": "block_sparse_moe.up_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    **{f"ffn_gate{end}": "shared_mlp.gate_linear" for end in ("", "_shexp")},
    **{f"ffn_up{end}": "shared_mlp.up_linear" for end in ("", "_shexp")},
    **{f"ffn_down{end}": "shared_mlp.output_linear" for end in ("", "_shexp")},
}
NEMOTRON: Names = {
    **MIXER,
    **mamba2("mixer"),
    "attn_norm": "norm",
    "ffn_up": "mixer.up_proj",
    "ffn_down": "mixer.down_proj",
    "ffn_gate_inp": "mixer.gate",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
    **{f"ffn_{part}_exps": f"mixer.experts.{{expert}}.{part}_proj" for part in ("up", "down")},
    **{f"ffn_{part}_shexp": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
}
KIMI: Names = {
    **ATTENTION,
    **MLP,
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in ("q_a", "q_b", "kv_b", "k_b", "v_b")},
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    **{f"ssm_conv1d_{part}": f"self_attn.{part}_conv1d" for part in "qkv"},
    **{f"ssm_{part}": f"self_attn.{part}_proj" for part in ("f_a", "f_b", "g_a", "g_b")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
    "ffn_gate_inp": "block_sparse_moe.gate",
    **{
        f"ffn_{part}_exps": f"block_sparse_moe.experts.{{expert}}.w{own}"
        for part, own in zip(PARTS, "132", strict=True)
    },
    **{f"ffn_{part}_shexp": f"block_sparse_moe.shared_experts.{part}_proj" for part in PARTS},
}
NEMOTRON_H = Layout(
    *("NemotronHForCausalLM", "nemotron_h", NEMOTRON, BACKBONE, "backbone.layers"),
    paired=True,
    whole=mamba2_whole("mixer") | {"exp_probs_b.bias": "mixer.gate.e_score_correction_bias"},
    changes=mamba2_changes("mixer"),
)
STATES = {
    "falcon-h1": Layout(
        "FalconH1ForCausalLM",
        "falcon_h1",
        {
            **ATTENTION,
            **mamba2("mamba"),
            "ffn_norm": "pre_ff_layernorm",
            **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in PARTS},
        },
        FINAL,
        whole=mamba2_whole("mamba"),
        changes=mamba2_changes("mamba"),
    ),
    "granitehybrid": Layout(
        *("GraniteMoeHybridForCausalLM", "granitemoehybrid", GRANITE),
        paired=True,
        whole=mamba2_whole("mamba"),
        changes=mamba2_changes("mamba"),
    ),
    "jamba": Layout(
        *("JambaForCausalLM", "jamba", JAMBA, FINAL),
        whole={"ssm_a": "mamba.A_log", "ssm_d": "mamba.D"},
        changes={"mamba.A_log": (Change.LOGARITHM,), "mamba.conv1d.weight": (Change.CHANNELS,)},
    ),
    "kimi-linear": Layout(
        *("KimiLinearForCausalLM", "kimi_linear", KIMI),
        whole={
            "ssm_a": "self_attn.A_log",
            "ssm_dt.bias": "self_attn.dt_bias",
            "exp_probs_b.bias": "block_sparse_moe.gate.e_score_correction_bias",
        },
        changes={"A_log": (Change.LOGARITHM, Change.BY_HEAD), "_conv1d.weight": (Change.CHANNELS,)},
    ),
    "mamba2": Layout(
        *("Mamba2ForCausalLM", "mamba2", {"attn_norm": "norm", **mamba2("mixer")}, BACKBONE, "backbone.layers"),
        whole=mamba2_whole("mixer"),
        changes=mamba2_changes("mixer"),
    ),
    "nemotron_h": NEMOTRON_H,
    "nemotron_h_moe": NEMOTRON_H,
    "qwen3next": Layout(
        *("Qwen3NextForCausalLM", "qwen3_next", LINEAR | QWEN_EXPERTS),
        shifted=True,
        unshifted="linear_attn.norm.weight",
        whole=LINEAR_WHOLE,
        changes={"linear_attn.conv1d.weight": (Change.CHANNELS,), "linear_attn.A_log": (Change.LOGARITHM,)},
    ),
    "qwen35": Layout(
        *("Qwen3_5ForCausalLM", "qwen3_5_text", LINEAR | MLP),
        shifted=True,
        unshifted="linear_attn.norm.weight",
        whole=LINEAR_WHOLE,
        changes=GROUPED,
    ),
    "qwen35moe": Layout(
        *("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", LINEAR | QWEN_EXPERTS),
        shifted=True,
        unshifted="linear_attn.norm.weight",
        whole=LINEAR_WHOLE,
        changes=GROUPED,
    ),
}
