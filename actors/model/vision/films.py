"""What a model's files say of films."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..values import read_json
from .spec import PROCESSOR_FILE, SOFT_TOKENS

FILES = ("video_preprocessor_config.json", "preprocessor_config.json")
NESTED = "video_processor"  # of processor_config.json
FRAME_TOKENS = 70  # of Gemma 4's frames at most, where its files do not say


def film_values(folder: Path, files: Sequence[str] = FILES[:1]) -> dict[str, Any]:
    """What the first of the model's files that knows of films says of them."""
    given: dict[str, Any] = read_json(folder / PROCESSOR_FILE, missing_ok=True).get(NESTED) or {}
    for name in files:
        given = given or read_json(folder / name, missing_ok=True)
    return given


def most_frame_tokens(folder: Path) -> int:
    """Of a frame at most, of Gemma 4."""
    said = film_values(folder).get(SOFT_TOKENS)
    return FRAME_TOKENS if said is None else int(said)
