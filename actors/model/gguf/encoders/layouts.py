"""Where the tensors of encoders stand in GGUF files; of BERT there are also those whose files say XLM-R."""

from __future__ import annotations

from ..layout import Layout, Names

BERT: Names = {
    "attn_q": "attention.self.query",
    "attn_k": "attention.self.key",
    "attn_v": "attention.self.value",
    "attn_output": "attention.output.dense",
    "attn_output_norm": "attention.output.LayerNorm",
    "ffn_up": "intermediate.dense",
    "ffn_down": "output.dense",
    "layer_output_norm": "output.LayerNorm",
}
NOMIC: Names = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_output_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "layer_output_norm": "post_mlp_layernorm",
}
AROUND: Names = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
RANKING = {"cls": "pooler.dense", "cls.output": "classifier"}  # of a summary, then scores
ENCODERS = {
    "bert": Layout(
        *("BertModel", "bert", BERT, AROUND | RANKING | {"position_embd": "embeddings.position_embeddings"}),
        "encoder.layer",
        thirds="attn_qkv",
    ),
    "nomic-bert": Layout("NomicBertModel", "nomic_bert", NOMIC, AROUND, "layers", thirds="attn_qkv"),
}
