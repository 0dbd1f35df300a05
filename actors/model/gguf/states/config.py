"""config.json of GGUF files of models whose layers have states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..architectures import LARGEST, Fields, chosen_experts, granite_factors
from ..header import GgufHeader
from ..sparse import latent_sizes, routed_experts, scored_by_sigmoid, without_drafting

Config = dict[str, Any]
FULL, LINEAR = "full_attention", "linear_attention"
LINEAR_ATTENTION = ("qwen3next", "qwen35", "qwen35moe")


def heads_of_states(fields: Fields) -> tuple[int, int]:
    """(how many heads states have, the numbers of one)."""
    heads, inner = fields.counted("ssm.time_step_rank"), fields.counted("ssm.inner_size")
    if inner % heads:
        raise fields.wrong_own("ssm.inner_size", f"a multiple of ssm.time_step_rank, {heads},")
    return heads, inner // heads


def value_heads(fields: Fields) -> dict[str, int]:
    """Of linear attention: how many heads of keys and of values there are, and how wide they are."""
    heads, width = heads_of_states(fields)
    keys = fields.counted("ssm.group_count")
    if heads % keys:
        raise fields.wrong_own("ssm.time_step_rank", f"a multiple of ssm.group_count, {keys},")
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": fields.counted("ssm.state_size"),
        "linear_value_head_dim": width,
    }


def attending(fields: Fields) -> list[bool]:
    """Which layers have heads of keys: where they have none, they have states."""
    layers, key = fields.counted("block_count"), fields.own("attention.head_count_kv")
    heads = fields[key]
    if not isinstance(heads, list) or len(heads) != layers:
        raise fields.wrong(key, f"a list of {layers} numbers")
    return [bool(one) for one in heads]


def _mamba2(fields: Fields, header: GgufHeader) -> Config:
    heads, width = heads_of_states(fields)
    hidden = fields.counted("embedding_length")
    return {
        "num_heads": heads,
        "head_dim": width,
        "expand": _expand(fields, hidden),
        "conv_kernel": fields.counted("ssm.conv_kernel"),
        "state_size": fields.counted("ssm.state_size"),
        "n_groups": fields.counted("ssm.group_count"),
        "use_bias": "blk.0.ssm_in.bias" in header.tensors,
        "use_conv_bias": "blk.0.ssm_conv1d.bias" in header.tensors,
        "hidden_act": "silu",
    }


def _expand(fields: Fields, hidden: int) -> int:
    inner = fields.counted("ssm.inner_size")
    if inner % hidden:
        raise fields.wrong_own("ssm.inner_size", f"a multiple of the hidden size, {hidden},")
    return inner // hidden


def _any(header: GgufHeader, end: str) -> bool:
    return any(name.endswith(end) for name in header.tensors)


def _mamba2_in(fields: Fields, header: GgufHeader) -> Config:
    """Mamba-2 beside attention, as most configs have it."""
    heads, width = heads_of_states(fields)
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": width,
        "mamba_n_groups": fields.counted("ssm.group_count"),
        "mamba_d_state": fields.counted("ssm.state_size"),
        "mamba_d_conv": fields.counted("ssm.conv_kernel"),
        "mamba_conv_bias": _any(header, ".ssm_conv1d.bias"),
        "mamba_proj_bias": _any(header, ".ssm_in.bias"),
    }


def _falcon_h1(fields: Fields, header: GgufHeader) -> Config:
    """What configs multiply by is in the weights."""
    heads, width = heads_of_states(fields)
    return _mamba2_in(fields, header) | {
        "mamba_d_ssm": heads * width,
        "mamba_rms_norm": _any(header, ".ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _any(header, ".ssm_out.bias"),
        "attention_bias": _any(header, ".attn_q.bias"),
        "mlp_bias": _any(header, ".ffn_up.bias"),
        "hidden_act": "silu",
        **dict.fromkeys(("embedding_multiplier", "lm_head_multiplier", "key_multiplier"), 1.0),
        **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier"), 1.0),
        **dict.fromkeys(("ssm_in_multiplier", "ssm_out_multiplier"), 1.0),
        "mlp_multipliers": [1.0] * 2,
        "ssm_multipliers": [1.0] * 5,
    }


def _granite_hybrid(fields: Fields, header: GgufHeader) -> Config:
    """Queries and keys do not turn; with experts, or without."""
    if fields.flag(fields.own("rope.scaling.finetuned"), absent=False):
        raise fields.wrong_own("rope.scaling.finetuned", "false, for Granite's models with states (Bamba is not read),")
    hidden = fields.counted("embedding_length")
    found = _mamba2_in(fields, header) | granite_factors(fields, turns=False)
    experts: Config = {"num_local_experts": 0, "num_experts_per_tok": 0}
    if fields.count("expert_count"):
        chosen = chosen_experts(fields, normalised=True)
        experts = {"num_local_experts": chosen["num_experts"], "num_experts_per_tok": chosen["num_experts_per_tok"]}
    shared = fields.count("expert_shared_feed_forward_length") or fields.same("feed_forward_length")
    return {
        **found,
        **experts,
        "mamba_expand": _expand(fields, hidden),
        "shared_intermediate_size": shared,
        "layer_types": [FULL if one else LINEAR for one in attending(fields)],
        "position_embedding_type": None,
        "hidden_act": "silu",
        "attention_bias": False,
    }


def _jamba(fields: Fields, header: GgufHeader) -> Config:
    """Which layers attend, and which have experts, is a period in config.json; experts' shares are softmax's own."""
    layers = fields.counted("block_count")
    routed = [f"blk.{layer}.ffn_gate_inp.weight" in header.tensors for layer in range(layers)]
    attention = _period(fields, attending(fields), fields.own("attention.head_count_kv"))
    experts = _period(fields, routed, "the layers with blk.….ffn_gate_inp") if any(routed) else (1, 0)
    chosen = {"num_experts": 1, "num_experts_per_tok": 1}
    return {
        **(chosen_experts(fields, normalised=False) if any(routed) else chosen),
        **dict(zip(("attn_layer_period", "attn_layer_offset"), attention, strict=True)),
        **dict(zip(("expert_layer_period", "expert_layer_offset"), experts, strict=True)),
        "mamba_d_state": fields.counted("ssm.state_size"),
        "mamba_d_conv": fields.counted("ssm.conv_kernel"),
        "mamba_expand": _expand(fields, fields.counted("embedding_length")),
        "mamba_dt_rank": fields.counted("ssm.time_step_rank"),
        "mamba_conv_bias": _any(header, ".ssm_conv1d.bias"),
        "mamba_proj_bias": _any(header, ".ssm_in.bias"),
        "hidden_act": "silu",
    }


def _period(fields: Fields, there: list[bool], what: str) -> tuple[int, int]:
    """(period, offset) of the layers that are such."""
    places = [layer for layer, one in enumerate(there) if one]
    offset = places[0] if places else 0
    period = places[1] - offset if len(places) > 1 else len(there)
    if not places or offset >= period or there != [layer % period == offset for layer in range(len(there))]:
        raise fields.wrong(what, "one layer of each so many, of which Jamba's config.json has a period,")
    return period, offset


def _nemotron_h(fields: Fields, header: GgufHeader) -> Config:
    """Each layer is one part: attention where it has heads, an MLP or experts where it has a size, else states."""
    layers, key = fields.counted("block_count"), fields.own("feed_forward_length")
    sizes = fields[key]
    if not isinstance(sizes, list) or len(sizes) != layers or not all(isinstance(one, int) for one in sizes):
        raise fields.wrong(key, f"a list of {layers} numbers")
    routed = fields.architecture == "nemotron_h_moe"
    wide = "moe" if routed else "mlp"
    kinds = [FULL if heads else wide if size else LINEAR for heads, size in zip(attending(fields), sizes, strict=True)]
    kinds = kinds[: without_drafting(fields)]
    heads, width = heads_of_states(fields)
    return {
        "num_hidden_layers": len(kinds),
        "layers_block_type": kinds,
        "intermediate_size": max(*sizes, 1),
        "mamba_num_heads": heads,
        "mamba_head_dim": width,
        "n_groups": fields.counted("ssm.group_count"),
        "ssm_state_size": fields.counted("ssm.state_size"),
        "conv_kernel": fields.counted("ssm.conv_kernel"),
        "use_conv_bias": _any(header, ".ssm_conv1d.bias"),
        "mamba_proj_bias": _any(header, ".ssm_in.bias"),
        "attention_bias": False,
        "mlp_bias": False,
        "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu",
        **(_nemotron_experts(fields) if routed else {}),
    }


def _nemotron_experts(fields: Fields) -> Config:
    scored_by_sigmoid(fields)
    found = routed_experts(fields)
    del found["first_k_dense_replace"], found["num_nextn_predict_layers"]
    return found | {
        "moe_shared_expert_intermediate_size": fields.counted("expert_shared_feed_forward_length"),
        "moe_latent_size": fields.count("moe_latent_size"),
    }


def _linear(fields: Fields, header: GgufHeader) -> Config:
    """Of Qwen3-Next and Qwen 3.5."""
    kinds = [LINEAR if one else FULL for one in _recurrent(fields, without_drafting(fields))]
    return {
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "linear_conv_kernel_dim": fields.counted("ssm.conv_kernel"),
        "attention_bias": False,
        "hidden_act": "silu",
        **value_heads(fields),
    }


def _recurrent(fields: Fields, layers: int) -> list[bool]:
    """Which layers have states: those of a list, whose last may be of layers that draft, or all but each so-many-th."""
    key = fields.own("attention.recurrent_layers")
    given = fields[key]
    if given is None:
        every = fields.whole(fields.own("full_attention_interval"), 1, LARGEST) or 4
        return [bool((layer + 1) % every) for layer in range(layers)]
    if not isinstance(given, list) or len(given) < layers or any(one not in (0, 1) for one in given):
        raise fields.wrong(key, f"a list of {layers} times true or false")
    return [bool(one) for one in given[:layers]]


def _linear_experts(fields: Fields, header: GgufHeader) -> Config:
    chosen = chosen_experts(fields, normalised=True)
    size = fields.counted("expert_feed_forward_length")
    return _linear(fields, header) | {
        **chosen,
        "moe_intermediate_size": size,
        "shared_expert_intermediate_size": fields.count("expert_shared_feed_forward_length") or size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _kimi_linear(fields: Fields, header: GgufHeader) -> Config:
    """Layers without heads of keys are linear attention; the others keep latents, and nothing turns. Converters write
    neither how many groups of experts there are nor that chosen ones are normed, which they are in any case."""
    scored_by_sigmoid(fields)
    found = routed_experts(fields)
    dense, kept = found.pop("first_k_dense_replace"), latent_sizes(fields)
    kinds = [FULL if one else LINEAR for one in attending(fields)]
    return {
        **{
            name: value for name, value in found.items() if name not in ("n_routed_experts", "num_nextn_predict_layers")
        },
        **kept,
        "n_group": fields.count("expert_group_count") or 1,
        "topk_group": fields.count("expert_group_used_count") or 1,
        "norm_topk_prob": True,
        "num_local_experts": found["n_routed_experts"],
        "layer_types": kinds,
        "mlp_layer_types": ["dense" if layer < dense else "sparse" for layer in range(len(kinds))],
        "linear_head_dim": fields.counted("kda.head_dim"),
        "linear_num_heads": fields.heads(),
        "linear_conv_kernel_dim": fields.counted("ssm.conv_kernel"),
        "pad_token_id": None,
        "hidden_act": "silu",
        "attention_bias": False,
    }


DRAFTS = ("nextn_predict_layers", "rope.dimension_sections")
GRANITE = ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")
OWN: dict[str, tuple[Callable[[Fields, GgufHeader], Config], tuple[str, ...]]] = {
    "falcon-h1": (_falcon_h1, ()),
    "granitehybrid": (_granite_hybrid, ("expert_count", *GRANITE)),
    "jamba": (_jamba, ("expert_count",)),
    "kimi-linear": (_kimi_linear, ("expert_count", "expert_group_used_count", "leading_dense_block_count")),
    "mamba2": (_mamba2, ()),
    "nemotron_h": (_nemotron_h, ()),
    "nemotron_h_moe": (_nemotron_h, ("expert_count", "expert_group_used_count", "nextn_predict_layers")),
    "qwen35": (_linear, DRAFTS),
    "qwen35moe": (_linear_experts, ("expert_count", *DRAFTS)),
    "qwen3next": (_linear_experts, ("expert_count", *DRAFTS)),
}
