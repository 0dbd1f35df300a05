"""Which models take pictures, films or sounds: by config.json's model_type, and where that leaves it open by their
tokenizer. Plain data, read by the supervisor.

How a family's placeholders become as many as a picture has embeddings: actors/media/expansion.py.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from ..protocol.media import AUDIO, IMAGE, VIDEO

MODALITIES: dict[str, tuple[str, ...]] = {
    "qwen2_vl": (IMAGE, VIDEO),
    "qwen2_5_vl": (IMAGE, VIDEO),
    "qwen3_vl": (IMAGE, VIDEO),
    "qwen3_vl_moe": (IMAGE, VIDEO),
    "gemma3": (IMAGE,),
    "gemma4": (IMAGE, VIDEO, AUDIO),
    "llava": (IMAGE,),
    "llava_next": (IMAGE,),
    **dict.fromkeys(("mistral3", "mistral_large4"), (IMAGE,)),
    "glm5_next": (IMAGE,),
    "internvl": (IMAGE, VIDEO),
    "idefics3": (IMAGE,),
    "smolvlm": (IMAGE, VIDEO),
    "qwen2_audio": (AUDIO,),
    "voxtral": (AUDIO,),
    **dict.fromkeys(("clip", "siglip", "siglip2"), (IMAGE,)),
}
GEMMA4 = {  # its tokens in whose places embeddings go, and the names by which its files may say others
    IMAGE: ("<|image|>", "image_token"),
    VIDEO: ("<|video|>", "video_token"),
    AUDIO: ("<|audio|>", "audio_token"),
}
MAY_LACK: dict[str, dict[str, tuple[str, str]]] = {  # modalities of which a tokenizer may have no token
    "gemma4": {modality: GEMMA4[modality] for modality in (VIDEO, AUDIO)},
}
OF_FILMS = ("fps", "num_frames")
IN_PIXELS = ("size", "min_pixels", "max_pixels", *OF_FILMS)
CHANGES: dict[str, tuple[str, ...]] = {  # what a request may change of how its pictures are processed
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe"), IN_PIXELS),
    "gemma4": OF_FILMS,
    "gemma3": ("do_pan_and_scan", "pan_and_scan_max_num_crops"),
    "internvl": ("crop_to_patches", "min_patches", "max_patches", *OF_FILMS),
    "idefics3": ("do_image_splitting",),
    "smolvlm": ("do_image_splitting", *OF_FILMS),
}
WHOLE = ("ForConditionalGeneration", "CLIPModel", "SiglipModel", "Siglip2Model")  # end names of what has all its parts


def changes_of(values: dict[str, Any]) -> list[str]:
    """Fields of `mm_processor_kwargs` that requests may have."""
    return list(CHANGES.get(str(values.get("model_type")), ()))


def modalities_of(values: dict[str, Any], architecture: str) -> list[str]:
    """What a model takes beside texts, of config.json."""
    if not architecture.endswith(WHOLE):
        return []
    found = MODALITIES.get(str(values.get("model_type")), ())
    deaf = IMAGE in found and not isinstance(values.get("audio_config"), dict)
    return [one for one in found if one != AUDIO or not deaf]


def with_tokens(media: list[str], kind: str, named: Mapping[str, str], known: Container[str]) -> list[str]:
    """Those of which the tokenizer knows the token. `kind`: config.json's model_type, `named`: what the model's files
    name.
    """
    found = MAY_LACK.get(kind, {})
    return [one for one in media if one not in found or named.get(found[one][1], found[one][0]) in known]
