"""A tiny model of the same class: what a model does is tried on it, in a second and without its weights.

It is made of the model's own config.json, whose sizes are replaced by small ones, so that all that is no size (kinds of
layers, ways to normalise and to rotate, biases, …) stays. Sizes are told by the names that fields have in configs; what
follows of a relation (heads that share one of keys, or not) stays what it was. Of lists with an entry for each layer
those layers are taken that show every kind there is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

HIDDEN, HEADS, HEAD, EXPERTS = 64, 4, 16, 4
MOST_LAYERS = 8
WINDOW = 8
WORDS = 384
TEXT = 512  # tokens
Fields = dict[str, Any]


def _same(names: str, size: int) -> dict[str, int]:
    return dict.fromkeys(names.split(), size)


LAYERS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers num_encoder_layers "
    "num_blocks num_layers_per_stack depth"
).split()
WIDTHS = ("hidden_size", "n_embd", "d_model")
QUERY_HEADS = (
    "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
    "num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads linear_num_heads"
).split()
KEY_HEADS = (
    "num_key_value_heads n_head_kv num_kv_heads swa_num_key_value_heads num_global_key_value_heads kv_n_heads "
    "multi_query_group_num"
).split()
SMALL = (
    _same("hidden_size d_model n_embd dim emb_dim word_embed_proj_dim embedding_size lru_width", HIDDEN)
    | _same("input_embedding_size output_embedding_size hidden_size_global out_hidden_size embed_dim", HIDDEN)
    | _same("index_kpool", 2)
    | _same("adapter_in_dim adapter_out_dim adapter_input_size", HIDDEN)
    | _same("pronunciation_embed_dim shape_embed_dim attention_head_size", HIDDEN)
    | _same("intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size d_ff dff dim_ff n_inner", 96)
    | _same("intermediate_size_mlp dense_intermediate_size feed_forward_size", 96)
    | _same("moe_intermediate_size shared_expert_intermediate_size moe_shared_expert_intermediate_size", 32)
    | _same("expert_ffn_hidden_size shared_intermediate_size shared_experts_intermediate_size", 32)
    | _same("head_dim global_head_dim swa_head_dim swa_v_head_dim kv_channels dim_head d_kv v_head_dim", HEAD)
    | _same("linear_key_head_dim linear_value_head_dim linear_head_dim qk_nope_head_dim index_head_dim", HEAD)
    | _same("mamba_d_head mamba_head_dim query_pre_attn_scalar indexer_head_dim", HEAD)
    | _same("qk_rope_head_dim rotary_dim", 8)
    | _same("q_lora_rank", 24)
    | _same("kv_lora_rank o_lora_rank d_rel hc_lowrank gated_norm_rank laurel_rank", 16)
    | _same("hidden_size_per_layer_input ple_embed_dim", 16)
    | _same("linear_num_key_heads n_groups mamba_n_groups o_groups n_mamba_heads", 2)
    | _same("indexer_compress_ratio", 2)
    | _same(
        "index_n_heads indexer_n_heads", 16
    )  # of a few most keys' scores would be 0, and which is chosen no matter of the model
    | _same("linear_num_value_heads", HEADS)
    | _same("mamba_n_heads mamba_num_heads", 8)
    | _same("mamba_d_state state_size ssm_state_size", 8)
    | _same("time_step_rank mamba_dt_rank", 4)
    | _same("index_topk index_topk_blocks index_block_size heavily_compressed_attention indexer_budget", WINDOW)
    | _same("chunk_size mamba_chunk_size", WINDOW)
    | _same("sliding_window attention_chunk_size window_size sliding_window_size local_attention", WINDOW)
    | _same("attention_window_size rel_extent keep_window_size attention_window", WINDOW)
    | _same("num_experts num_local_experts n_routed_experts moe_num_experts zero_expert_num", EXPERTS)
    | _same("num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k top_k_experts", 2)
    | _same("n_group num_expert_group", 2)
    | _same("n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace num_dense_layers", 1)
    | _same("topk_group", 1)
    | _same("max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions", TEXT)
    | _same("max_sequence_length model_max_length seq_length log_scaling_n_floor", TEXT)
    | _same("max_encoder_position_embeddings max_decoder_position_embeddings", TEXT)
    | _same("vocab_size decoder_vocab_size vocab_size_per_layer_input unpadded_vocab_size", WORDS)
    | _same("task_type_vocab_size pronunciation_vocab_size shape_vocab_size ngram_vocab_size_base", WORDS)
)
LISTS_OF_HEADS = ("num_attention_heads", "num_attention_heads_per_layer", "num_key_value_heads")
BY_LAYER = ("per_layer_config",)
LAYER_INDICES = "attn_layer_indices mlp_only_layers full_attn_idxs cross_attention_layers hybrid_layer_ids".split()
FROM_ONE = ("ple_layer_ids",)  # the same, counted from 1
SOURCES = "kv_source_layers"  # for each layer the one whose keys it reads, which may be itself
PATTERNS = ("block_types", "attn_layers")
PERIODS = {
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "layer_group_size": 2,
    "full_attention_interval": 2,
    "global_attn_every_n_layers": 2,
    "n_layers_per_attn_res_block": 2,
}
OF_PAIRS = ("short_factor", "long_factor")  # lists with a number for each pair that is rotated
OF_HIDDEN = ("attention_hidden_size", "attention_head_dim", "d_head")


def shrink(config: Any, words: int = WORDS) -> Any:
    """A config of the same class with small sizes."""
    fields = config.to_dict()
    kept = type(config)
    return kept.from_dict(shrink_fields(fields, words))


def shrink_fields(fields: Fields, words: int = WORDS) -> Fields:
    """The same for what stands in config.json."""
    small = copy.deepcopy(fields)
    _shrink(small, words)
    return small


def _shrink(fields: Fields, words: int) -> None:
    for value in fields.values():
        if isinstance(value, dict) and value.get("model_type"):
            _shrink(value, words)
    before = dict(fields)
    _cut_layers(fields)
    _shrink_sizes(fields, words)
    for one in _overrides(fields).values():
        heads = {name: before[name] for name in QUERY_HEADS if name in before}
        joined, large = _is_of_parts({**before, **one}), dict(one)
        _shrink_sizes(one, words, heads)
        _keep_apart(one, large, fields, before)
        if joined:
            own = {**fields, **one}
            one["head_dim"] = own["qk_nope_head_dim"] + own["qk_rope_head_dim"]
    _fit(fields, before)


def _keep_apart(one: Fields, large: Fields, fields: Fields, before: Fields) -> None:
    """What was larger or smaller in some layers than in the rest still is."""
    for name, size in large.items():
        rest = before.get(name)
        if _whole(size) and _whole(rest) and size != rest and one[name] == fields[name]:
            one[name] = 2 * fields[name] if size > rest else max(1, fields[name] // 2)


def _is_of_parts(fields: Fields) -> bool:
    """Is a head of latent attention as wide as its two parts, of which one is turned?"""
    parts: list[Any] = [fields.get(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    return all(map(_whole, parts)) and sum(parts) == fields.get("head_dim")


def _shrink_sizes(fields: Fields, words: int, beside: Fields | None = None) -> None:
    heads = _first({**(beside or {}), **fields}, QUERY_HEADS)
    for name, value in fields.items():
        if isinstance(value, dict) and not value.get("model_type") and name not in BY_LAYER:
            _shrink_sizes(value, words)
        elif isinstance(value, list) and value and all(map(_whole, value)) and name in LISTS_OF_HEADS:
            fields[name] = (
                _heads_of_layers(value) if name != "num_key_value_heads" else [min(x, HEADS // 2) for x in value]
            )
        elif isinstance(value, list) and value and all(map(_whole, value)) and name in SMALL:
            fields[name] = [min(one, SMALL[name]) for one in value]
        elif isinstance(value, list) and name.endswith("token_id"):
            fields[name] = [min(one, words - 1) if _whole(one) else one for one in value]
        elif not _whole(value):
            continue
        elif name in QUERY_HEADS:
            fields[name] = min(value, HEADS)
        elif name in KEY_HEADS:
            fields[name] = min(value, HEADS if value == heads else 1 if value == 1 else HEADS // 2)
        elif name in SMALL:
            fields[name] = min(value, words if SMALL[name] == WORDS else SMALL[name])
        elif name.endswith(("token_id", "token_index")) and value >= words:
            fields[name] = words - 1


def _heads_of_layers(counts: list[int]) -> list[int]:
    """Of queries: those of layers that have more than others are twice as many."""
    fewest = min((count for count in counts if count), default=0)
    return [min(count, HEADS if count <= fewest else 2 * HEADS) for count in counts]


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first(fields: Fields, names: Iterable[str]) -> int | None:
    return next((int(fields[name]) for name in names if _whole(fields.get(name))), None)


def _overrides(fields: Fields) -> dict[Any, Fields]:
    """What some layers have otherwise than the rest, by the layer: 5, or "05" as configs are written."""
    return next((fields[name] for name in BY_LAYER if isinstance(fields.get(name), dict)), {})


def _cut_layers(fields: Fields) -> None:
    """Keep of the layers two of each kind."""
    count = _first(fields, LAYERS)
    if count is None:
        return
    for name, least in PERIODS.items():
        if _whole(fields.get(name)):
            fields[name] = min(fields[name], least)
    by_layer = [name for name, value in fields.items() if isinstance(value, list | tuple) and len(value) == count > 2]
    counted = [name for name in (*LAYER_INDICES, *FROM_ONE) if isinstance(fields.get(name), list)]
    indices = {name: int(name in FROM_ONE) for name in counted if name not in by_layer}
    overrides = {int(layer): one for layer, one in _overrides(fields).items()}
    if not by_layer and not indices and not overrides:
        kept = list(range(min(count, max(2, _longest(fields)))))
    else:
        kinds: dict[str, list[int]] = {}
        for layer in range(count):
            kind = [fields[name][layer] == layer if name == SOURCES else fields[name][layer] for name in by_layer]
            kind += [layer + first in fields[name] for name, first in indices.items()]
            kinds.setdefault(repr([kind, overrides.get(layer)]), []).append(layer)
        kept = _kept(fields, kinds, count)
    if SOURCES in by_layer:
        kept = sorted({*kept, *(fields[SOURCES][layer] for layer in kept)})
    place = {layer: index for index, layer in enumerate(kept)}
    for name in by_layer:
        own = (fields[name][layer] for layer in kept)
        fields[name] = type(fields[name])(place[one] for one in own) if name == SOURCES else type(fields[name])(own)
    for name, first in indices.items():
        fields[name] = [place[layer - first] + first for layer in fields[name] if layer - first in place]
    for name in BY_LAYER:
        if isinstance(fields.get(name), dict):
            fields[name] = {place[int(layer)]: one for layer, one in fields[name].items() if int(layer) in place}
    for name in LAYERS:
        if _whole(fields.get(name)):
            fields[name] = min(fields[name], len(kept))


def _longest(fields: Fields) -> int:
    """How many layers show all that comes again and again."""
    lists = (len(fields[name]) for name in PATTERNS if isinstance(fields.get(name), list))
    periods: list[int] = [fields[name] for name in PERIODS if _whole(fields.get(name))]
    return max([*periods, *lists, 0]) + 1


def _kept(fields: Fields, kinds: dict[str, list[int]], count: int) -> list[int]:
    """Two layers of each kind, or as many as there shall be; of shared keys one that has them and one that reads."""
    shared = fields.get("num_kv_shared_layers")
    if not _whole(shared) or not shared:
        firsts = [layers[0] for layers in kinds.values()]
        seconds = [layers[1] for layers in kinds.values() if len(layers) > 1]
        return sorted({*firsts, *seconds[: max(0, MOST_LAYERS - len(firsts))]})
    own, others = range(count - shared), range(count - shared, count)
    kept = sorted({some[-1] for part in (own, others) for some in _within(kinds, part)})
    fields["num_kv_shared_layers"] = sum(layer in others for layer in kept)
    return kept


def _within(kinds: dict[str, list[int]], layers: range) -> list[list[int]]:
    found = ([layer for layer in some if layer in layers] for some in kinds.values())
    return [some for some in found if some]


def _fit(fields: Fields, before: Fields) -> None:
    """What follows of other sizes."""
    heads, hidden = _first(before, QUERY_HEADS), _first(before, WIDTHS)
    _fit_turned(fields, before, _first(before, ("head_dim",)) or (hidden or 0) // (heads or 1))
    small = _first(fields, WIDTHS)
    if hidden and small:
        for name in OF_HIDDEN:  # some times the width of the model
            if _whole(before.get(name)) and before[name] % hidden == 0:
                fields[name] = before[name] // hidden * small
            elif _whole(before.get(name)) and heads and before[name] * heads % hidden == 0:
                fields[name] = before[name] * heads // hidden * small // min(heads, HEADS)
    _fit_states(fields)
    if _whole(fields.get("num_layers_per_stack")):
        fields["num_hidden_layers"] = (
            before["num_hidden_layers"] // before["num_layers_per_stack"] * len(range(fields["num_layers_per_stack"]))
        )


def _fit_turned(fields: Fields, before: Fields, width: int) -> None:
    """Which numbers of a head, of which there were `width`, turn."""
    for value in (fields, *(value for value in fields.values() if isinstance(value, dict))):
        for name in OF_PAIRS:
            if isinstance(value.get(name), list) and width > HEAD:
                value[name] = value[name][: max(1, len(value[name]) * HEAD // width)]
        if isinstance(value.get("mrope_section"), list) and width > HEAD:
            value["mrope_section"] = [2, 3, 3] if sum(value["mrope_section"]) * 2 == width else [1, 1, 0]
    if _whole(fields.get("qk_rope_head_dim")):
        rotated = fields["qk_rope_head_dim"]
        if fields.get("head_dim") is not None and before["head_dim"] == before["qk_rope_head_dim"]:
            fields["head_dim"] = rotated
        if fields.get("qk_head_dim") is not None and _whole(fields.get("qk_nope_head_dim")):
            fields["qk_head_dim"] = fields["qk_nope_head_dim"] + rotated


def _fit_states(fields: Fields) -> None:
    """Heads of states, which are as wide as the model says beside them."""
    expand = _first(fields, ("expand", "mamba_expand"))
    if (
        expand
        and _whole(fields.get("state_size"))
        and _whole(fields.get("num_heads"))
        and _whole(fields.get("head_dim"))
    ):
        fields["num_heads"] = expand * HIDDEN // fields["head_dim"]
    heads = _first(fields, ("n_mamba_heads", "mamba_n_heads", "mamba_num_heads"))
    if expand and heads and _whole(fields.get("mamba_headdim")):
        fields["mamba_headdim"] = expand * HIDDEN // heads
    if _whole(fields.get("mamba_d_ssm")):
        fields["mamba_d_ssm"] = fields["mamba_n_heads"] * fields["mamba_d_head"]
