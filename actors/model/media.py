"""Which models take pictures, films or sounds: by config.json's model_type. Plain data, read by the supervisor.

How a family's placeholders become as many as a picture has embeddings: actors/media/expansion.py.
"""

from __future__ import annotations

from typing import Any

from ..protocol.media import IMAGE, VIDEO

MODALITIES: dict[str, tuple[str, ...]] = {
    "qwen2_vl": (IMAGE, VIDEO),
    "qwen2_5_vl": (IMAGE, VIDEO),
    "qwen3_vl": (IMAGE, VIDEO),
    "qwen3_vl_moe": (IMAGE, VIDEO),
    "gemma3": (IMAGE,),
    "llava": (IMAGE,),
    "llava_next": (IMAGE,),
    "mistral3": (IMAGE,),
    "internvl": (IMAGE, VIDEO),
    "idefics3": (IMAGE,),
    "smolvlm": (IMAGE,),
}
WHOLE = "ForConditionalGeneration"  # ends the name of an architecture that has all its parts


def modalities_of(values: dict[str, Any], architecture: str) -> list[str]:
    """What a model takes beside texts, of config.json."""
    if not architecture.endswith(WHOLE):
        return []
    return list(MODALITIES.get(str(values.get("model_type")), ()))
