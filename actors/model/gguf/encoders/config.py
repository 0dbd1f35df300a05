"""config.json of a GGUF file whose model makes vectors: all of a text sees all of it; and how vectors are pooled."""

from __future__ import annotations

from typing import Any

from ....options.config import ConfigError
from ...pooling.sentence_transformers import MODULES
from ..architectures import Fields, own_config
from ..header import GgufHeader
from .layouts import ENCODERS

POOLING = "pooling_type"
METHODS = {1: "mean", 2: "cls", 3: "lasttoken"}  # others are none, and that of a head which ranks
RANK = 4
HEAD = ("cls.weight", "cls.bias", "cls.output.weight", "cls.output.bias")
RANKS = "BertForSequenceClassification"  # of XLM-R, too: its head is what BERT has as two parts
TYPES = "token_types.weight"
PLACE = "1_Pooling"


def encoder_config(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """Weights are decoded, whatever they are stored in."""
    own_config(fields, header, {})
    layout, words = ENCODERS[fields.architecture], header.tensors.get("token_embd.weight")
    types, epsilon = header.tensors.get(TYPES), fields.real(fields.own("attention.layer_norm_epsilon"), 0, 1)
    if words is None or types is None:
        lacking = "token_embd.weight" if words is None else TYPES
        raise ConfigError(f"model: {header.file} has no {lacking}; a file of a model that makes vectors is needed")
    if epsilon is None:
        raise fields.wrong_own("attention.layer_norm_epsilon", "a number")
    ranks = fields[fields.own(POOLING)] == RANK
    if fields[fields.own(POOLING)] not in (None, 0, RANK, *METHODS):
        raise fields.wrong_own(POOLING, f"one of {', '.join(map(str, (*METHODS, RANK)))}")
    if ranks:
        _check_head(fields, header, layout.hub)
    found: dict[str, Any] = {
        "architectures": [RANKS if ranks else layout.hub],
        "model_type": layout.model_type,
        "vocab_size": words.shape[0],
        "type_vocab_size": types.shape[0] if len(types.shape) > 1 else 1,
        "hidden_size": fields.counted("embedding_length"),
        "intermediate_size": fields.counted("feed_forward_length"),
        "num_hidden_layers": fields.counted("block_count"),
        "num_attention_heads": fields.counted("attention.head_count"),
        "max_position_embeddings": fields.counted("context_length"),
        "layer_norm_eps": epsilon,
        "dtype": "float32",
    } | (_labels(fields, header) if ranks else {})
    if "ffn_gate" in layout.inside:
        theta = fields.real(fields.own("rope.freq_base"), 0, 1e15, above=True) or 10_000.0
        return found | {"hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    return found | {"hidden_act": "gelu"}


def _check_head(fields: Fields, header: GgufHeader, hub: str) -> None:
    lacking = [name for name in HEAD if name not in header.tensors]
    if lacking or hub != "BertModel":
        what = f"{', '.join(lacking)} is not there" if lacking else f"a head of {hub} is not read"
        raise ConfigError(f"model: {header.file} ranks ({fields.own(POOLING)}), and {what}")


def _labels(fields: Fields, header: GgufHeader) -> dict[str, Any]:
    """One score, or one of each label."""
    weight = header.tensors["cls.output.weight"]
    count = weight.shape[0] if len(weight.shape) > 1 else 1
    named = fields.texts(fields.own("classifier.output_labels"))
    names = named if len(named) == count else tuple(f"LABEL_{number}" for number in range(count))
    return {"id2label": {str(number): name for number, name in enumerate(names)}}


def pooling_files(fields: Fields) -> dict[str, Any]:
    """sentence-transformers' files, where a file says how its model pools: a decoder then makes vectors, too."""
    method = METHODS.get(fields.whole(fields.own(POOLING), 0, 4) or 0)
    if method is None:
        return {}
    modules = [("Transformer", ""), ("Pooling", PLACE), ("Normalize", "2_Normalize")]
    named = [{"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
             for at, (kind, path) in enumerate(modules)]  # fmt: skip
    return {MODULES: named, f"{PLACE}/config.json": {"pooling_mode": method}}
