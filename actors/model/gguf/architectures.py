"""What GGUF files of one architecture say in their own way, in config.json's words."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...options.config import ConfigError
from ..families.family import LAYER_TYPES
from ..values import Values
from .header import GgufHeader
from .names import ARCHITECTURES, RANKING

LARGEST = 1 << 24
LARGEST_FACTOR = 1e9
MOST_SHOWN = 24  # architectures, in an error
NO_MODEL = "a file of a model is needed"
UNKNOWN = (  # fields below the architecture's name that change what is computed, in models that do not read them
    "expert_count",
    "expert_group_used_count",
    "leading_dense_block_count",
    "interleave_moe_layer_step",
    "moe_every_n_layers",
    "nextn_predict_layers",
    "attention.scale",
    "attention.output_scale",
    "attention.value_scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attention.temperature_scale",
    "attention.sliding_window",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "router_logit_softcapping",
    "rope.dimension_sections",
    "rope.scaling.alpha",
    "rope.scaling.yarn_log_multiplier",
)
SOFTMAX = 1  # of expert_gating_func
HYBRID = ("granitehybrid", "jamba", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe")  # without heads have states
BY_KIND = ("gemma4",)  # layers of a kind have heads of their own
WITHOUT_HEADS = ("mamba", "mamba2")
LATENT = (  # keys and values of all heads are made of one latent
    *("deepseek2", "deepseek32", "glm-dsa", "kimi-linear", "minicpm3", "mistral4"),
)


class Fields(Values):
    """The fields of one architecture, by the end of their names."""

    def __init__(self, header: GgufHeader) -> None:
        super().__init__(header.file, header.fields)
        self.architecture = self.text("general.architecture") or ""
        kind = self.text("general.type")
        if kind not in (None, "model"):
            raise ConfigError(f"model: {self.file} is of the type {kind} (general.type); {NO_MODEL}")
        if self.architecture not in ARCHITECTURES:
            known = f"{', '.join(list(ARCHITECTURES)[:MOST_SHOWN])} and {len(ARCHITECTURES) - MOST_SHOWN} more"
            said = f"the architecture {self.architecture}" if self.architecture else "a file without an architecture"
            raise ConfigError(
                f"model: {said} (general.architecture) is not supported in GGUF; these are: {known} ({self.file})"
            )

    def own(self, name: str) -> str:
        """`llama.block_count`."""
        return f"{self.architecture}.{name}"

    def count(self, name: str) -> int | None:
        """A whole number above 0; 0 is as if it was not there."""
        return self.whole(self.own(name), 0, LARGEST) or None

    def counted(self, name: str) -> int:
        """The same of one that must be there."""
        return self.needed(self.own(name), LARGEST)

    def factor(self, name: str) -> float | None:
        """A number above 0; 0 is as if it was not there."""
        return self.real(self.own(name), 0, LARGEST_FACTOR) or None

    def same(self, name: str) -> int | None:
        """A number, or a list of numbers for each layer that are the same."""
        key = self.own(name)
        value = self[key]
        if isinstance(value, list) and value and all(number == value[0] for number in value):
            return Values(self.file, {key: value[0]}).whole(key, 1, LARGEST)
        return self.whole(key, 1, LARGEST)

    def kv_heads(self) -> int:
        """How many heads of keys there are, in layers that attend."""
        if self.architecture in WITHOUT_HEADS:
            return 1
        if self.architecture in LATENT:
            return self.heads()
        key = self.own("attention.head_count_kv")
        value = self[key]
        if self.architecture in BY_KIND and isinstance(value, list) and value:
            return Values(self.file, {key: value[0]}).needed(key, LARGEST)
        if self.architecture in HYBRID and isinstance(value, list) and any(value):
            some = [one for one in value if one]
            return Values(self.file, {key: some[0] if some.count(some[0]) == len(some) else some}).needed(key, LARGEST)
        return self.same("attention.head_count_kv") or self.heads()

    def heads(self) -> int:
        """How many heads of queries there are."""
        return 1 if self.architecture in WITHOUT_HEADS else self.counted("attention.head_count")

    def head_dim(self) -> int:
        """The numbers of a head."""
        if self.architecture in WITHOUT_HEADS:
            return 1
        whole = self.count("attention.key_length_mla") if self.architecture in LATENT else None
        width = whole or self.count("attention.key_length")
        return width or self.counted("embedding_length") // self.counted("attention.head_count")

    def wrong_own(self, name: str, needed: str) -> ConfigError:
        """What is said of a value that cannot be."""
        return self.wrong(self.own(name), needed)


class Rule(NamedTuple):
    """What one architecture has beside what all have."""

    config: Callable[[Fields, GgufHeader], dict[str, Any]]
    reads: tuple[str, ...] = ()  # of UNKNOWN


def _nothing(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return {}


def _llama(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Files of Mistral and Mixtral say that they are Llama; these have experts, and those have windows."""
    window = fields.count("attention.sliding_window")
    if fields.count("expert_count"):
        chosen = chosen_experts(fields, normalised=True)
        kind = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "sliding_window": window}
        return kind | {"num_local_experts": chosen["num_experts"], **chosen}
    if window is None:
        return {}
    return {"sliding_window": window, "architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def _phi3(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return {"sliding_window": fields.count("attention.sliding_window")}


def chosen_experts(fields: Fields, normalised: bool) -> dict[str, Any]:
    """How many experts there are, and how those of a token are chosen; `normalised`: their shares add up to 1."""
    if fields.whole(fields.own("expert_gating_func"), 0, LARGEST) not in (None, 0, SOFTMAX):
        raise fields.wrong_own("expert_gating_func", f"{SOFTMAX}, softmax,")
    if fields.factor("expert_weights_scale") not in (None, 1.0):
        raise fields.wrong_own("expert_weights_scale", "1")
    if fields.flag(fields.own("expert_weights_norm"), absent=normalised) != normalised:
        raise fields.wrong_own("expert_weights_norm", "true" if normalised else "false")
    if (fields.count("expert_group_count") or 1) != 1:
        raise fields.wrong_own("expert_group_count", "1")
    experts, used = fields.counted("expert_count"), fields.counted("expert_used_count")
    if used > experts:
        raise fields.wrong_own("expert_used_count", f"no more than {experts}, which is how many there are,")
    return {"num_experts": experts, "num_experts_per_tok": used}


def _qwen3(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Files of Qwen3-Reranker have the rows of two words as a head, and may lack those of all others."""
    if RANKING not in header.tensors:
        return {}
    key = fields.own("classifier.output_labels")
    if sorted(labels := fields.texts(key)) != ["no", "yes"]:
        raise fields.wrong(key, "yes and no, of a model that judges by its next word,")
    wanted, found = (len(labels), fields.counted("embedding_length")), header.tensors[RANKING].shape
    if found != wanted:
        raise ConfigError(f"model: {header.file} has a {list(found)} {RANKING}; {list(wanted)} is needed")
    return {"is_original_qwen3_reranker": True, "score_tokens": list(labels)}


def _qwen2_moe(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    shared = fields.count("expert_shared_feed_forward_length") or fields.same("feed_forward_length")
    more = {"qkv_bias": "blk.0.attn_q.bias" in header.tensors, "shared_expert_intermediate_size": shared}
    return _qwen_experts(fields, normalised=False) | more


def _qwen3_moe(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return _qwen_experts(fields, normalised=True)


def _qwen_experts(fields: Fields, normalised: bool) -> dict[str, Any]:
    """All layers have experts."""
    chosen = chosen_experts(fields, normalised)
    size = fields.count("expert_feed_forward_length")
    if size is None:  # as the oldest files have it
        size = (fields.same("feed_forward_length") or 0) // chosen["num_experts_per_tok"]
    return {**chosen, "moe_intermediate_size": size, "norm_topk_prob": normalised, "decoder_sparse_step": 1}


def _gemma2(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return _gemma(fields, widest=46) | {
        "sliding_window": fields.count("attention.sliding_window") or 4096,
        "layer_types": layer_types(fields, 2),
        "attn_logit_softcapping": fields.factor("attn_logit_softcapping") or 50.0,
        "final_logit_softcapping": fields.factor("final_logit_softcapping") or 30.0,
    }


def _gemma3(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    window = fields.count("attention.sliding_window")
    local = fields.factor("rope.freq_base_swa") or 10_000.0
    return _gemma(fields, widest=62) | {
        "sliding_window": window,
        "layer_types": layer_types(fields, 1 if window is None else 6),
        "final_logit_softcapping": fields.factor("final_logit_softcapping"),
        "rope_local_base_freq": local,
    }


def _gemma(fields: Fields, widest: int) -> dict[str, Any]:
    """Files do not say how scores are scaled: by a head's width, but in the model of `widest` layers, the 27B, by what
    of the hidden size comes to a head."""
    scalar = fields.head_dim()
    if fields.counted("block_count") == widest:
        scalar = fields.counted("embedding_length") // fields.counted("attention.head_count")
    return {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": scalar}


def _olmo2(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Files of OLMo 3 say that they are OLMo 2, and have windows."""
    window = fields.count("attention.sliding_window")
    if window is None:
        return {}
    kind = {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}
    return kind | {"sliding_window": window, "layer_types": layer_types(fields, 4)}


def layer_types(fields: Fields, every: int) -> list[str]:
    """Each `every`-th layer sees all tokens, unless the file has another number, or a list of those with windows."""
    layers, key = fields.counted("block_count"), fields.own("attention.sliding_window_pattern")
    given = fields[key]
    if isinstance(given, list):
        if len(given) != layers or any(one not in (0, 1) for one in given):
            raise fields.wrong(key, f"a number, or a list of {layers} times true or false,")
        return [LAYER_TYPES[bool(one)] for one in given]
    every = fields.whole(key, 1, LARGEST) or every
    return [LAYER_TYPES[(layer + 1) % every != 0] for layer in range(layers)]


def _granite(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return granite_factors(fields)


def granite_factors(fields: Fields, turns: bool = True) -> dict[str, Any]:
    """Without a scale of its own attention has that of a head's width."""
    if turns and fields.flag(fields.own("rope.scaling.finetuned"), absent=True) is False:
        raise fields.wrong_own("rope.scaling.finetuned", "true, for a model whose queries and keys turn,")
    return {
        "embedding_multiplier": fields.factor("embedding_scale"),
        "residual_multiplier": fields.factor("residual_scale"),
        "attention_multiplier": fields.factor("attention.scale") or fields.head_dim() ** -0.5,
        "logits_scaling": fields.factor("logit_scale"),
    }


def _mistral3(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Where files say nothing of a rotation there is a plain one, and no query grows."""
    if fields.factor("attention.temperature_scale") and fields.text(fields.own("rope.scaling.type")) != "yarn":
        raise fields.wrong_own("rope.scaling.type", "yarn, of a model whose queries grow,")
    return {"rope_parameters": None, "sliding_window": None}


def _smollm3(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Files do not say which layers do not turn: each fourth, as llama.cpp has it."""
    return {"no_rope_layer_interval": 4}


def _seed_oss(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    return {"attention_out_bias": "blk.0.attn_output.bias" in header.tensors}


PLAIN = Rule(_nothing)
RULES = {
    "llama": Rule(_llama, ("expert_count", "attention.sliding_window")),
    "phi3": Rule(_phi3, ("attention.sliding_window",)),
    "qwen3": Rule(_qwen3),
    "qwen2moe": Rule(_qwen2_moe, ("expert_count",)),
    "qwen3moe": Rule(_qwen3_moe, ("expert_count",)),
    "gemma2": Rule(_gemma2, ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping")),
    "gemma3": Rule(_gemma3, ("attention.sliding_window", "final_logit_softcapping")),
    "olmo2": Rule(_olmo2, ("attention.sliding_window",)),
    "granite": Rule(_granite, ("attention.scale", "logit_scale", "residual_scale", "embedding_scale")),
    "mistral3": Rule(_mistral3, ("attention.temperature_scale", "rope.scaling.yarn_log_multiplier")),
    "smollm3": Rule(_smollm3),
    "seed_oss": Rule(_seed_oss),
}


def own_config(fields: Fields, header: GgufHeader, rules: Mapping[str, Rule]) -> dict[str, Any]:
    """What its architecture adds to config.json, or has otherwise. ConfigError names a field that it does not read."""
    rule = rules.get(fields.architecture, PLAIN)
    for name in UNKNOWN:
        if name not in rule.reads and fields[fields.own(name)]:
            raise ConfigError(f"model: {header.file} has {fields.own(name)}, which is not supported")
    return rule.config(fields, header)


def small_tensor(header: GgufHeader, name: str, count: int) -> list[float]:
    """A small tensor of float32."""
    tensor = header.tensors.get(name)
    if tensor is None or tensor.type.name != "F32" or tensor.shape != (count,):
        raise ConfigError(f"model: {header.file}: {count} numbers of float32 are needed as {name}")
    with header.file.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{count}f", file.read(tensor.size)))
