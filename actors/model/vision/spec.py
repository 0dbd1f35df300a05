"""What sets a model that sees pictures, or hears sounds, apart from one that reads texts alone, as every actor needs to
know it.

Leaf module.
"""

from __future__ import annotations

import msgspec

IMAGE_EMBEDS = "image_embeds"  # the tensor of an item that is embeddings already
PROCESSOR_FILE = "processor_config.json"
SOFT_TOKENS = "max_soft_tokens"  # of Gemma 4's processors: embeddings of a picture, or of a frame, at most


class VisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model."""

    kind: str  # config.json's model_type
    placeholders: tuple[int, ...]  # ids where embeddings go
    hidden: int  # numbers of an embedding
    hears: bool = False  # sounds, not pictures
    deepstack: int = 0  # first layers of the text part that are given further embeddings
    whole_pictures: bool = False  # tokens of one picture see one another: no step cuts it, no cached prefix ends in it
    within_windows: bool = False  # they do so in layers with a window alone, and no further than it reaches
    span: int = 0  # of such a picture the most tokens; 0: not known
    axes: tuple[int, ...] = ()  # which of a token's three positions turns each pair of a head; empty: it has one
