"""config.json of GGUF files whose models layers of transformers compute: what these want to know, by architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .architectures import Fields, Rule, layer_types
from .encoders.layouts import ENCODERS
from .experts.config import OWN as EXPERTS
from .gemma.config import OWN as GEMMA
from .header import GgufHeader
from .layouts import LAYOUTS
from .sparse import SIGMOID, routed_experts, scores_by
from .states.config import LINEAR_ATTENTION
from .states.config import OWN as STATES

OTHER_NAMES = {  # of config.json, where they are not those of most
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
    },
    "bloom": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "max_position_embeddings": "seq_length"},
    "falcon": {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
}
OTHER_NAMES["starcoder"] = OTHER_NAMES["gpt2"]
OTHER_NAMES["mpt"] = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}
OTHER_NAMES["dbrx"] = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
}
# numbers of a head may stay as they are
PARTIAL = ("bailingmoe2", "glm4moe", "gptneox", "minimax-m2", "nemotron", "phi2", "stablelm", *LINEAR_ATTENTION)
NEMOTRON_H = ("nemotron_h", "nemotron_h_moe")
UNTURNED = (
    "bloom",
    "gemma3n",
    "gemma4",
    "gpt2",
    "granitehybrid",
    "jamba",
    "kimi-linear",
    "mamba",
    "mamba2",
    "mpt",
    "starcoder",
    *NEMOTRON_H,
)


class Norms(NamedTuple):
    """What keeps norms from dividing by 0: the field, and its name in config.json."""

    field: str
    name: str


LAYER = "attention.layer_norm_epsilon"
RMS = "attention.layer_norm_rms_epsilon"
NORMS = {
    **dict.fromkeys(
        ("arcee", "ernie4_5", "exaone4", "gemma", "gemma3n", "gemma4", "hunyuan-dense"),
        Norms(RMS, "rms_norm_eps"),
    ),
    "apertus": Norms(RMS, "rms_norm_eps"),
    **dict.fromkeys((name for name in EXPERTS if name != "dbrx"), Norms(RMS, "rms_norm_eps")),
    **dict.fromkeys(("bloom", "falcon", "gpt2", "mpt", "starcoder"), Norms(LAYER, "layer_norm_epsilon")),
    **dict.fromkeys(("cohere2", "command-r", "gptneox", "phi2", "stablelm"), Norms(LAYER, "layer_norm_eps")),
    **dict.fromkeys(("lfm2", "lfm2moe"), Norms(RMS, "norm_eps")),
    **dict.fromkeys(("mamba", "mamba2", *NEMOTRON_H), Norms(RMS, "layer_norm_epsilon")),
    **dict.fromkeys(
        ("falcon-h1", "granitehybrid", "jamba", "kimi-linear", *LINEAR_ATTENTION), Norms(RMS, "rms_norm_eps")
    ),
    "nemotron": Norms(LAYER, "norm_eps"),
    "starcoder2": Norms(LAYER, "norm_epsilon"),
}
Config = dict[str, Any]


def _apertus(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_act": "xielu", "attention_bias": False, "mlp_bias": False}


def _arcee(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}


def _bloom(fields: Fields, header: GgufHeader) -> Config:
    """Positions are slopes, which follow from the number of heads."""
    _four_times(fields)
    return {"apply_residual_connection_post_layernorm": False}


def _four_times(fields: Fields) -> None:
    wanted = 4 * fields.counted("embedding_length")
    if fields.counted("feed_forward_length") != wanted:
        raise fields.wrong_own("feed_forward_length", f"{wanted}, four times the hidden size,")


def _cohere(fields: Fields, header: GgufHeader) -> Config:
    return {"logit_scale": fields.factor("logit_scale"), "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors}


def _cohere2(fields: Fields, header: GgufHeader) -> Config:
    """Each fourth layer sees all, and does not turn."""
    return {
        "logit_scale": fields.factor("logit_scale"),
        "sliding_window": fields.counted("attention.sliding_window"),
        "layer_types": layer_types(fields, 4),
    }


def _ernie(fields: Fields, header: GgufHeader) -> Config:
    return {"use_bias": False}


def _exaone4(fields: Fields, header: GgufHeader) -> Config:
    """With windows each fourth layer sees all, and does not turn."""
    window = fields.count("attention.sliding_window")
    return {"sliding_window": window, "layer_types": layer_types(fields, 1 if window is None else 4)}


def _falcon(fields: Fields, header: GgufHeader) -> Config:
    two = "blk.0.attn_norm_2.weight" in header.tensors
    kv_heads = fields.same("attention.head_count_kv") or fields.counted("attention.head_count")
    return {
        "new_decoder_architecture": kv_heads != 1,
        "multi_query": kv_heads == 1,
        "num_ln_in_parallel_attn": 2 if two else 1,
        "parallel_attn": True,
        "bias": False,
        "alibi": False,
    }


def _gemma(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "gelu_pytorch_tanh"}


def _gpt2(fields: Fields, header: GgufHeader) -> Config:
    return {"activation_function": "gelu_new"}


def _gpt_neox(fields: Fields, header: GgufHeader) -> Config:
    parallel = fields.flag(fields.own("use_parallel_residual"), absent=True)
    return {"use_parallel_residual": parallel, "hidden_act": "gelu", "attention_bias": True}


def _lfm2(fields: Fields, header: GgufHeader) -> Config:
    """Layers without heads of keys are convolutions."""
    layers, key = fields.counted("block_count"), fields.own("attention.head_count_kv")
    heads = fields[key]
    if not isinstance(heads, list) or len(heads) != layers:
        raise fields.wrong(key, f"a list of {layers} numbers")
    return {
        "layer_types": ["full_attention" if one else "conv" for one in heads],
        "conv_L_cache": fields.counted("shortconv.l_cache"),
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(fields: Fields, header: GgufHeader) -> Config:
    """Shares of a token's experts add up to 1."""
    scores_by(fields, (SIGMOID,))
    found = routed_experts(fields)
    return _lfm2(fields, header) | {
        "num_experts": found["n_routed_experts"],
        "num_experts_per_tok": found["num_experts_per_tok"],
        "moe_intermediate_size": found["moe_intermediate_size"],
        "num_dense_layers": found["first_k_dense_replace"],
        "routed_scaling_factor": found["routed_scaling_factor"],
        "norm_topk_prob": True,
        "use_expert_bias": any(name.endswith("exp_probs_b.bias") for name in header.tensors),
    }


def _hunyuan(fields: Fields, header: GgufHeader) -> Config:
    """Files have the base by which positions turn as it is when it was stretched."""
    return {"hidden_act": "silu", "attention_bias": False}


def _mamba(fields: Fields, header: GgufHeader) -> Config:
    normed = fields.flag(fields.own("ssm.dt_b_c_rms"), absent=False)
    kind = {"architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba"} if normed else {}
    hidden, inner = fields.counted("embedding_length"), fields.counted("ssm.inner_size")
    if inner % hidden:
        raise fields.wrong_own("ssm.inner_size", f"a multiple of the hidden size, {hidden},")
    return kind | {
        "expand": inner // hidden,
        "conv_kernel": fields.counted("ssm.conv_kernel"),
        "state_size": fields.counted("ssm.state_size"),
        "time_step_rank": fields.counted("ssm.time_step_rank"),
        "use_bias": False,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in header.tensors,
        "hidden_act": "silu",
    }


def _mpt(fields: Fields, header: GgufHeader) -> Config:
    """Positions are slopes."""
    _four_times(fields)
    if fields.kv_heads() != fields.heads():
        raise fields.wrong_own("attention.head_count_kv", f"{fields.heads()}, as many as of queries,")
    slope = fields.factor("attention.max_alibi_bias")
    if slope is None or not slope.is_integer():
        raise fields.wrong_own("attention.max_alibi_bias", "a whole number above 0")
    attention = {"alibi": True, "alibi_bias_max": int(slope), "clip_qkv": fields.factor("attention.clamp_kqv")}
    return {"attn_config": attention, "no_bias": True, "expansion_ratio": 4}


def _nemotron(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_act": "relu2", "attention_bias": False, "mlp_bias": False}


def _olmo(fields: Fields, header: GgufHeader) -> Config:
    return {"clip_qkv": fields.factor("attention.clamp_kqv"), "hidden_act": "silu"}


def _phi(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_act": "gelu_new", "qk_layernorm": False}


def _stablelm(fields: Fields, header: GgufHeader) -> Config:
    return {
        "use_parallel_residual": fields.flag(fields.own("use_parallel_residual")),
        "use_qkv_bias": "blk.0.attn_q.bias" in header.tensors,
        "qk_layernorm": False,
        "hidden_act": "silu",
    }


def _starcoder(fields: Fields, header: GgufHeader) -> Config:
    kv_heads, heads = fields.same("attention.head_count_kv") or 1, fields.counted("attention.head_count")
    if kv_heads not in (1, heads):
        raise fields.wrong_own("attention.head_count_kv", f"1 or {heads}")
    return {"activation_function": "gelu_pytorch_tanh", "multi_query": kv_heads == 1}


def _starcoder2(fields: Fields, header: GgufHeader) -> Config:
    return {"hidden_act": "gelu_pytorch_tanh", "use_bias": True, "sliding_window": None}


ROUTED = ("expert_count", "expert_group_used_count", "leading_dense_block_count")
Own = Callable[[Fields, GgufHeader], Config]
OWN: dict[str, tuple[Own, tuple[str, ...]]] = {  # and the fields that it reads beside those of all
    "apertus": (_apertus, ()),
    "arcee": (_arcee, ()),
    "bloom": (_bloom, ("attention.max_alibi_bias",)),
    "cohere2": (_cohere2, ("logit_scale", "attention.sliding_window")),
    "command-r": (_cohere, ("logit_scale",)),
    "ernie4_5": (_ernie, ()),
    "exaone4": (_exaone4, ("attention.sliding_window",)),
    "falcon": (_falcon, ()),
    "gemma": (_gemma, ()),
    "gpt2": (_gpt2, ()),
    "gptneox": (_gpt_neox, ()),
    "hunyuan-dense": (_hunyuan, ()),
    "lfm2": (_lfm2, ()),
    "lfm2moe": (_lfm2_moe, ROUTED),
    "mamba": (_mamba, ()),
    "mpt": (_mpt, ("attention.max_alibi_bias", "attention.clamp_kqv")),
    "nemotron": (_nemotron, ()),
    "olmo": (_olmo, ("attention.clamp_kqv",)),
    "phi2": (_phi, ()),
    "stablelm": (_stablelm, ()),
    "starcoder": (_starcoder, ()),
    "starcoder2": (_starcoder2, ()),
    **EXPERTS,
    **GEMMA,
    **STATES,
}
RULES = {name: Rule(*OWN[name]) for name in LAYOUTS if name not in ENCODERS}


def adapt(fields: Fields, config: Config) -> Config:
    """A config of what all architectures have, as this one's class at the hub wants it."""
    layout = LAYOUTS[fields.architecture]
    names = OTHER_NAMES.get(fields.architecture, {})
    left_out = ("head_dim",) if fields.architecture == "falcon" else ()  # whose class follows it from the others
    if left_out and config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise fields.wrong_own("attention.key_length", "what of the hidden size comes to a head")
    found = {names.get(name, name): value for name, value in config.items() if name not in left_out}
    found["model_type"] = layout.model_type
    if (norms := NORMS.get(fields.architecture)) is not None:
        epsilon = fields.real(fields.own(norms.field), 0, 1)
        if epsilon is None:
            raise fields.wrong_own(norms.field, "a number")
        found[norms.name] = epsilon
    return found
