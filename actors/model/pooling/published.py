"""Models that are published with code of their own, and that transformers has by now under another name.

GTE of Alibaba ("NewModel", model_type "new"): its config.json is said in transformers' words here, and its weights are
renamed by transformers, which knows both names of each. What that cannot compute is refused by the field's name.
"""

from __future__ import annotations

from typing import Any

from ..values import MOST, Values

NEW, GTE = "new", "gte"
NAMES = {
    "NewModel": "GteModel",
    "NewForMaskedLM": "GteForMaskedLM",
    "NewForSequenceClassification": "GteForSequenceClassification",
    "NewForTokenClassification": "GteForTokenClassification",
}
MUST_BE: dict[str, tuple[Any, ...]] = {  # None: left out
    "position_embedding_type": ("rope",),
    "layer_norm_type": ("layer_norm", None),
    "logn_attention_scale": (False, None),
    "pack_qkv": (True, None),
}
SAME = (
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act max_position_embeddings "
    "type_vocab_size layer_norm_eps pad_token_id problem_type"
).split()


def class_name(architecture: str) -> str:
    """By which transformers has it."""
    return NAMES.get(architecture, architecture)


def said_as_gte(whole: Values) -> dict[str, Any] | None:
    """What GteConfig is made of; None if it is no such model. ConfigError names what is not computed."""
    if whole["model_type"] != NEW:
        return None
    for name, allowed in MUST_BE.items():
        if whole[name] not in allowed:
            raise whole.wrong(name, f"{allowed[0]}: nothing else is computed for this architecture")
    found = {name: value for name in SAME if (value := whole[name]) is not None}
    labels = whole["id2label"]
    if isinstance(labels, dict):
        found["id2label"] = {int(index): label for index, label in labels.items()}
    return found | {"rope_parameters": _rope(whole)}


def _rope(whole: Values) -> dict[str, Any]:
    """Scaled by NTK it has a larger base, and all frequencies are a little lower: as if scaled linearly by that."""
    theta = whole.real("rope_theta", 0, MOST, above=True) or 10_000.0
    scaling = whole.object("rope_scaling")
    if scaling is None:
        return {"rope_type": "default", "rope_theta": theta}
    if scaling["type"] != "ntk" or scaling["mixed_b"] is not None:
        raise whole.wrong("rope_scaling", 'of type "ntk" without mixed_b: nothing else is computed')
    factor = scaling.real("factor", 1, MOST) or 1.0
    lower = factor ** (2 * whole.needed("num_attention_heads") / whole.needed("hidden_size"))
    return {"rope_type": "linear", "rope_theta": theta * factor, "factor": lower}
