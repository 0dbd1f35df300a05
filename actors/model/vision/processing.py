"""The processor of a model's folder that makes tensors of pictures, and what it is asked for beside the picture: by who
prepares pictures of requests, and by who tries one at the start.

Pixels by transformers' image processors on Pillow and numpy, which need no torch: where it is installed it is hidden
from them while they are imported, and with it most of their memory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from ...options.objects.media import PROCESSING

Settings = Mapping[str, Any]


def load_image_processor(folder: Path, changes: dict[str, Any]) -> Any:
    """transformers' processor of the model's folder, on Pillow. ConfigError says why there is none."""
    with without_torch():
        from transformers import AutoImageProcessor

        try:
            return AutoImageProcessor.from_pretrained(str(folder), backend="pil", local_files_only=True, **changes)
        except (OSError, ValueError, TypeError, KeyError, ImportError, AttributeError) as error:
            about = f"{PROCESSING}: " if changes else ""
            raise ConfigError(f"{about}model: {folder} has no processor of pictures that can be had: {error}") from None


@contextmanager
def without_torch() -> Iterator[None]:
    """Whoever is imported meanwhile finds no torch, if nobody has imported it yet."""
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would say that there is none
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torch"]


def image_arguments(config: Settings, processor: Settings) -> dict[str, Any]:
    """With which a model's processor is called, by its config.json and processor_config.json."""
    kind = config["model_type"]
    if kind in ("mistral3", "mistral_large4") or (kind == "llava" and has_pixtral(config)):
        return {"patch_size": pixtral_patch(config, processor)}
    if kind == "internvl":
        return {"crop_to_patches": True}
    return {"return_row_col_info": True} if kind in ("idefics3", "smolvlm") else {}


def has_pixtral(config: Settings) -> bool:
    """Is the vision tower Pixtral's?"""
    return (config.get("vision_config") or {}).get("model_type") == "pixtral"


def patch_size(config: Settings, processor: Settings) -> int:
    """Of the vision tower."""
    vision = config.get("vision_config") or {}
    return int(processor.get("patch_size") or vision.get("patch_size") or 14)


def pixtral_patch(config: Settings, processor: Settings) -> int:
    """What becomes one embedding, in pixels."""
    merged = int(processor.get("spatial_merge_size") or config.get("spatial_merge_size") or 1)
    return patch_size(config, processor) * merged
