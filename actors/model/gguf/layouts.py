"""Names of tensors in GGUF files of models that layers of transformers compute, and those at the hub.

Another architecture is a record here, and its config in adapted.py. What of it lies otherwise than at the hub is told
by `Layout`, too; llama.cpp's converter makes it so, and worker/models/gguf_changes.py undoes it.
"""

from __future__ import annotations

from .encoders.layouts import ENCODERS
from .experts.layouts import EXPERTS
from .gemma.layouts import GEMMA
from .layout import AROUND, AROUND_GPT, AROUND_MEGATRON, GPT, LLAMA, MEGATRON, PARTS, Change, Changes, Layout, Names
from .states.layouts import STATES

LFM2: Names = {
    "attn_norm": "operator_norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
}
MPT: Names = {
    "attn_norm": "norm_1",
    "attn_qkv": "attn.Wqkv",
    "attn_output": "attn.out_proj",
    "ffn_norm": "norm_2",
    "ffn_up": "ffn.up_proj",
    "ffn_down": "ffn.down_proj",
}
DBRX: Names = {
    "attn_norm": "norm_attn_norm.norm_1",
    "attn_qkv": "norm_attn_norm.attn.Wqkv",
    "attn_output": "norm_attn_norm.attn.out_proj",
    "attn_output_norm": "norm_attn_norm.norm_2",
    "ffn_gate_inp": "ffn.router.layer",
}
MAMBA: Names = {
    "attn_norm": "norm",
    "ssm_in": "mixer.in_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj",
    "ssm_out": "mixer.out_proj",
}
GRANITE_MOE: Names = LLAMA | {
    "ffn_gate_inp": "block_sparse_moe.router.layer",
    "ffn_gate_exps": "block_sparse_moe.gate_linear",  # joined.py has what these two are
    "ffn_up_exps": "block_sparse_moe.up_linear",
    "ffn_down_exps": "block_sparse_moe.output_linear",
    "ffn_gate_shexp": "shared_mlp.gate_linear",
    "ffn_up_shexp": "shared_mlp.up_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}
GLM4_MOE: Names = {name: hub for name, hub in LLAMA.items() if name != "ffn_norm"} | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{part}_exps": f"mlp.experts.{{expert}}.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")},
}
LFM2_MOE: Names = LFM2 | {
    "ffn_gate_inp": "feed_forward.gate",
    "ffn_gate_exps": "feed_forward.experts.{expert}.w1",
    "ffn_up_exps": "feed_forward.experts.{expert}.w3",
    "ffn_down_exps": "feed_forward.experts.{expert}.w2",
}
ERNIE_MOE: Names = GLM4_MOE | {"ffn_norm": "post_attention_layernorm"}
HUNYUAN: Names = LLAMA | {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"}
MINIMAX_M2: Names = LLAMA | {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}
DBRX_EXPERTS = ("w1", "v1", "w2")
BY_KV_HEAD: Changes = dict.fromkeys(("query_key_value.weight", "query_key_value.bias"), (Change.BY_KV_HEAD,))
TRANSPOSED: Changes = dict.fromkeys(("c_attn.weight", "c_proj.weight", "c_fc.weight"), (Change.TRANSPOSED,))


XIELU = {
    "mlp.act_fn.alpha_p": ("xielu.alpha_p", (1,)),
    "mlp.act_fn.alpha_n": ("xielu.alpha_n", (1,)),
    "mlp.act_fn.beta": ("xielu.beta", ()),
    "mlp.act_fn.eps": ("xielu.eps", ()),
}
LAYOUTS = {
    **ENCODERS,
    "apertus": Layout(
        *("ApertusForCausalLM", "apertus"),
        LLAMA | {"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
        given=XIELU,
    ),
    "arcee": Layout("ArceeForCausalLM", "arcee", paired=True),
    "bloom": Layout(
        "BloomForCausalLM",
        "bloom",
        MEGATRON | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        AROUND_MEGATRON,
        "transformer.h",
        changes=BY_KV_HEAD,
    ),
    "cohere2": Layout("Cohere2ForCausalLM", "cohere2"),
    "command-r": Layout("CohereForCausalLM", "cohere"),
    "dbrx": Layout(
        *("DbrxForCausalLM", "dbrx", DBRX, AROUND_GPT | {"output_norm": "transformer.norm_f"}, "transformer.blocks"),
        whole={
            f"ffn_{part}_exps.weight": f"ffn.experts.mlp.{own}" for part, own in zip(PARTS, DBRX_EXPERTS, strict=True)
        },
        changes=dict(zip(DBRX_EXPERTS, ((Change.STACKED,), (Change.STACKED,), (Change.TURNED_STACKED,)), strict=True)),
    ),
    "ernie4_5": Layout("Ernie4_5ForCausalLM", "ernie4_5"),
    "ernie4_5-moe": Layout(
        *("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", ERNIE_MOE),
        whole={"exp_probs_b.bias": "mlp.moe_statics.e_score_correction_bias"},
    ),
    "exaone4": Layout(
        "Exaone4ForCausalLM",
        "exaone4",
        {name: hub for name, hub in LLAMA.items() if not name.endswith("n_norm")}
        | {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"},
    ),
    "falcon": Layout(
        "FalconForCausalLM",
        "falcon",
        MEGATRON | {"attn_norm": "input_layernorm"},
        AROUND_MEGATRON,
        "transformer.h",
        changes=BY_KV_HEAD,
    ),
    "gemma": Layout("GemmaForCausalLM", "gemma", shifted=True),
    "glm4moe": Layout(
        *("Glm4MoeForCausalLM", "glm4_moe", GLM4_MOE),
        whole={"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"},
    ),
    "gpt2": Layout(
        *("GPT2LMHeadModel", "gpt2", GPT, AROUND_GPT, "transformer.h"),
        changes=TRANSPOSED,
    ),
    "gptneox": Layout(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        {name: hub.replace("self_attention", "attention") for name, hub in MEGATRON.items()}
        | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
        "gpt_neox.layers",
        changes=BY_KV_HEAD,
    ),
    "granitemoe": Layout("GraniteMoeForCausalLM", "granitemoe", GRANITE_MOE, paired=True),
    "hunyuan-dense": Layout("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", HUNYUAN),
    "lfm2": Layout(
        *("Lfm2ForCausalLM", "lfm2", LFM2, AROUND | {"token_embd_norm": "model.embedding_norm"}),
        changes={"conv.conv.weight": (Change.CHANNELS,)},
    ),
    "lfm2moe": Layout(
        *("Lfm2MoeForCausalLM", "lfm2_moe", LFM2_MOE, AROUND | {"token_embd_norm": "model.embedding_norm"}),
        changes={"conv.conv.weight": (Change.CHANNELS,)},
        whole={"exp_probs_b.bias": "feed_forward.expert_bias"},
    ),
    "mamba": Layout(
        "MambaForCausalLM",
        "mamba",
        MAMBA,
        {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
        "backbone.layers",
        changes={"conv1d.weight": (Change.CHANNELS,), "A_log": (Change.LOGARITHM,)},
        whole={"ssm_a": "mixer.A_log", "ssm_d": "mixer.D"},
    ),
    "minimax-m2": Layout(
        *("MiniMaxM2ForCausalLM", "minimax_m2", MINIMAX_M2),
        whole={"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
    ),
    "mpt": Layout(
        *("MptForCausalLM", "mpt", MPT, AROUND_GPT | {"output_norm": "transformer.norm_f"}, "transformer.blocks")
    ),
    "nemotron": Layout("NemotronForCausalLM", "nemotron", shifted=True),
    "olmo": Layout("OlmoForCausalLM", "olmo", paired=True),
    "olmoe": Layout(
        "OlmoeForCausalLM",
        "olmoe",
        LLAMA
        | {
            "ffn_gate_inp": "mlp.gate",
            "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
            "ffn_up_exps": "mlp.experts.{expert}.up_proj",
            "ffn_down_exps": "mlp.experts.{expert}.down_proj",
        },
    ),
    "phi2": Layout(
        "PhiForCausalLM",
        "phi",
        LLAMA | {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        AROUND | {"output_norm": "model.final_layernorm"},
        thirds="attn_qkv",
    ),
    "stablelm": Layout("StableLmForCausalLM", "stablelm"),
    "starcoder": Layout("GPTBigCodeForCausalLM", "gpt_bigcode", GPT, AROUND_GPT, "transformer.h"),
    "starcoder2": Layout(
        "Starcoder2ForCausalLM", "starcoder2", LLAMA | {"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}
    ),
    **EXPERTS,
    **GEMMA,
    **STATES,
}
# of the larger Falcons, which have two norms before a layer
TWO_NORMS = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
