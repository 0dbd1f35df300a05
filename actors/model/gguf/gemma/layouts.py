"""Names of tensors in GGUF files of Gemma 3n and Gemma 4."""

from __future__ import annotations

from ..layout import AROUND, LLAMA, Layout, Names

INSIDE: Names = LLAMA | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
OUTSIDE: Names = AROUND | {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
GEMMA = {
    "gemma3n": Layout(
        "Gemma3nForCausalLM",
        "gemma3n_text",
        INSIDE
        | {
            "altup_correct_coef": "altup.correction_coefs",
            "altup_predict_coef": "altup.prediction_coefs",
            "altup_router": "altup.modality_router",
            "altup_router_norm": "altup.router_norm",
            "laurel_l": "laurel.linear_left",
            "laurel_r": "laurel.linear_right",
            "laurel_post_norm": "laurel.post_laurel_norm",
        },
        OUTSIDE
        | {
            "altup_proj": "model.altup_projections.{expert}",
            "altup_unembd_proj": "model.altup_unembed_projections.{expert}",
        },
        whole={"altup_correct_scale.weight": "altup.correct_output_scale"},
    ),
    "gemma4": Layout(
        "Gemma4ForCausalLM",
        "gemma4_text",
        INSIDE
        | {
            "ffn_gate_inp": "router.proj",
            "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
            "post_ffw_norm_1": "post_feedforward_layernorm_1",
            "post_ffw_norm_2": "post_feedforward_layernorm_2",
        },
        OUTSIDE,
        whole={
            "layer_output_scale.weight": "layer_scalar",
            "ffn_gate_inp.scale": "router.scale",
            "ffn_down_exps.scale": "router.per_expert_scale",
            "ffn_gate_up_exps.weight": "experts.gate_up_proj",
            "ffn_down_exps.weight": "experts.down_proj",
        },
    ),
}
