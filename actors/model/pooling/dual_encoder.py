"""Models of two encoders, one of texts and one of pictures, whose vectors are compared: CLIP, SigLIP and SigLIP 2.

A prompt is a text, or one picture. A picture's prompt has as many tokens as it has patches, so that a step's budget
counts what it costs; their ids are none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..config_json import LARGEST, architecture_name
from ..values import Values, read_json
from .spec import DualEncoderSpec

NO_TOKEN = 0  # the id in the places of a picture
PUNCTUATION_LEFT_OUT = "SiglipTokenizer"  # whose class does it, whatever tokenizer.json says
SMALL_LETTERS = "Siglip2Tokenizer"


class _Kind(NamedTuple):
    """An architecture; what config.json leaves out is as transformers has it."""

    text: dict[str, Any]
    vision: dict[str, Any]
    fixed: bool  # texts are padded to their greatest length, as they were when the model was trained


_CLIP = {"vocab_size": 49408, "hidden_size": 512, "max_position_embeddings": 77}
_SIGLIP = {"vocab_size": 32000, "hidden_size": 768, "max_position_embeddings": 64}
KINDS = {
    "CLIPModel": _Kind(_CLIP, {"image_size": 224, "patch_size": 32}, False),
    "SiglipModel": _Kind(_SIGLIP, {"image_size": 224, "patch_size": 16}, True),
    "Siglip2Model": _Kind(_SIGLIP, {"num_patches": 256}, True),
}


def text_part(whole: Values) -> Values | None:
    """The part of config.json that is of texts; None: it is no such model."""
    kind = KINDS.get(architecture_name(whole))
    return None if kind is None else _part(whole, "text_config", kind.text)


def read_dual_encoder(whole: Values, wanted: int | None, folder: Path) -> tuple[DualEncoderSpec, int] | None:
    """(what it is, how many numbers a vector has); None: it is no such model. `wanted`: --max-model-len."""
    name = architecture_name(whole)
    if (kind := KINDS.get(name)) is None:
        return None
    text = _part(whole, "text_config", kind.text)
    own = text.needed("max_position_embeddings", LARGEST)
    tokenizer = Values(folder / "tokenizer_config.json", read_json(folder / "tokenizer_config.json", missing_ok=True))
    named = (tokenizer.text("tokenizer_class") or "").removesuffix("Fast")
    spec = DualEncoderSpec(
        longest=min(wanted or own, own),
        padded=own if kind.fixed else 0,
        picture=_patches(whole, name, _part(whole, "vision_config", kind.vision), folder),
        lower_case=kind.fixed and tokenizer.flag("do_lower_case", named in (PUNCTUATION_LEFT_OUT, SMALL_LETTERS)),
        without_punctuation=named == PUNCTUATION_LEFT_OUT,
    )
    if name == "CLIPModel":
        return spec, whole.whole("projection_dim", 1, LARGEST) or 512
    return spec, text.whole("projection_size", 1, LARGEST) or text.needed("hidden_size", LARGEST)


def _part(whole: Values, name: str, absent: dict[str, Any]) -> Values:
    given = whole.object(name)
    return Values(whole.file, {**absent, **({} if given is None else given.values)})


def _patches(whole: Values, name: str, vision: Values, folder: Path) -> int:
    """Of a picture, at most."""
    if name == "Siglip2Model":
        file = folder / "preprocessor_config.json"
        told = Values(file, read_json(file, missing_ok=True)).whole("max_num_patches", 1, LARGEST)
        return told or vision.needed("num_patches", LARGEST)
    side = vision.needed("image_size", LARGEST) // vision.needed("patch_size", LARGEST)
    return max(1, side * side) + (name == "CLIPModel")
