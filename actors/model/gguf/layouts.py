"""Names of tensors in GGUF files of models that layers of transformers compute, and those at the hub.

Another architecture is a record here, and its config in adapted.py. What of it lies otherwise than at the hub is told
by `Layout`, too; llama.cpp's converter makes it so, and worker/models/gguf_tensors.py undoes it.
"""

from __future__ import annotations

from typing import NamedTuple

Names = dict[str, str]
LLAMA: Names = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GPT: Names = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
MEGATRON: Names = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
AROUND: Names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
AROUND_GPT: Names = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
AROUND_MEGATRON: Names = {
    "token_embd": "transformer.word_embeddings",
    "token_embd_norm": "transformer.word_embeddings_layernorm",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}


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
MAMBA: Names = {
    "attn_norm": "norm",
    "ssm_in": "mixer.in_proj",
    "ssm_conv1d": "mixer.conv1d",
    "ssm_x": "mixer.x_proj",
    "ssm_dt": "mixer.dt_proj",
    "ssm_a": "mixer.A_log",
    "ssm_d": "mixer.D",
    "ssm_out": "mixer.out_proj",
}


class Layout(NamedTuple):
    """Where tensors are."""

    hub: str  # the class at the hub
    model_type: str
    inside: Names = LLAMA  # of a layer
    outside: Names = AROUND
    layers: str = "model.layers"
    paired: bool = False  # rows of queries and keys that turn together are neighbours
    shifted: bool = False  # gains of norms have the 1 in them that norms add to what the hub has
    transposed: tuple[str, ...] = ()  # weights that the hub has as [inputs, outputs]
    grouped: str = ""  # queries, keys and values lie by KV head at the hub, and each after the other here
    squeezed: str = ""  # weights of convolutions, that the hub has as [channels, 1, width]
    negated: str = ""  # -exp(x) of what the hub has
    thirds: str = ""  # of old files: queries, keys and values in one tensor, which are apart at the hub


LAYOUTS = {
    "arcee": Layout("ArceeForCausalLM", "arcee", paired=True),
    "bloom": Layout(
        "BloomForCausalLM",
        "bloom",
        MEGATRON | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        AROUND_MEGATRON,
        "transformer.h",
        grouped="query_key_value",
    ),
    "cohere2": Layout("Cohere2ForCausalLM", "cohere2"),
    "command-r": Layout("CohereForCausalLM", "cohere"),
    "ernie4_5": Layout("Ernie4_5ForCausalLM", "ernie4_5"),
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
        grouped="query_key_value",
    ),
    "gemma": Layout("GemmaForCausalLM", "gemma", shifted=True),
    "gpt2": Layout(
        *("GPT2LMHeadModel", "gpt2", GPT, AROUND_GPT, "transformer.h"),
        transposed=("c_attn.weight", "c_proj.weight", "c_fc.weight"),
    ),
    "gptneox": Layout(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        {name: hub.replace("self_attention", "attention") for name, hub in MEGATRON.items()}
        | {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
        "gpt_neox.layers",
        grouped="query_key_value",
    ),
    "lfm2": Layout(
        *("Lfm2ForCausalLM", "lfm2", LFM2, AROUND | {"token_embd_norm": "model.embedding_norm"}),
        squeezed="conv.conv.weight",
    ),
    "mamba": Layout(
        "MambaForCausalLM",
        "mamba",
        MAMBA,
        {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
        "backbone.layers",
        squeezed="conv1d.weight",
        negated="A_log",
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
}
# of the larger Falcons, which have two norms before a layer
TWO_NORMS = {"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn"}
