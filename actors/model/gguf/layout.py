"""Where the tensors of one architecture stand in GGUF files, and how they lie there."""

from __future__ import annotations

import enum
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
MLA: Names = {  # of attention that keeps latents
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
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
PARTS = ("gate", "up", "down")  # of an MLP


class Change(enum.Enum):
    """What is done to a tensor of a file so that it lies as at the hub (worker/models/gguf_changes.py)."""

    TRANSPOSED = "transposed"  # the hub has it as [inputs, outputs]
    CHANNELS = "channels"  # a convolution, which the hub has as [channels, 1, width]
    LOGARITHM = "logarithm"  # -exp(x) of what the hub has
    FLAT = "flat"  # of one dimension at the hub
    BY_HEAD = "by head"  # a number for each head, which the hub has as [1, 1, heads, 1]
    STACKED = "stacked"  # experts, whose rows the hub has one behind the other
    TURNED_STACKED = "turned and stacked"  # the same of [inputs, outputs]
    BY_KV_HEAD = "by KV head"  # queries, keys and values lie by KV head at the hub, and each after the other here
    VALUE_ROWS = "value rows"  # the last rows are those of heads of values, each group's first ones before the second
    VALUE_COLUMNS = "value columns"  # columns likewise


Changes = dict[str, tuple[Change, ...]]


class Layout(NamedTuple):
    """One architecture."""

    hub: str  # the class at the hub
    model_type: str
    inside: Names = LLAMA  # of a layer
    outside: Names = AROUND
    layers: str = "model.layers"
    paired: bool = False  # rows of queries and keys that turn together are neighbours
    shifted: bool = False  # gains of norms have the 1 in them that norms add to what the hub has
    unshifted: str = ""  # but those of this name
    changes: Changes = {}  # by ends of names at the hub
    whole: Names = {}  # parts of layers whose names do not end with weight or bias in both
    given: dict[str, tuple[str, tuple[int, ...]]] = {}  # of a layer: fields with a number for each, and their shape
    thirds: str = ""  # of some files: queries, keys and values in one tensor, which are apart at the hub

    def changes_of(self, name: str) -> tuple[Change, ...]:
        """Those of a tensor by its name at the hub."""
        return next((changes for end, changes in self.changes.items() if name.endswith(end)), ())
