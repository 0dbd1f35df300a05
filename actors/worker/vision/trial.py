"""A picture, and a sound, of nobody's request: what a worker's tower is tried with before there are any.

Of pictures the model's own processor makes the tensors, so that they are those of requests.
"""

from __future__ import annotations

from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...model.info import ModelInfo, read_json
from ...model.vision.processing import image_arguments, load_image_processor
from ...model.vision.spec import PROCESSOR_FILE
from ...options.config import Config
from ...options.objects.media import media_limits, processor_kwargs
from ...protocol.media import AUDIO, IMAGE
from ...sound.sizes import EXTRACTOR_FILE, NESTED, SoundSizes
from ...sound.universal import MOST_S, UniversalMel

SMALL = 1 << 12  # pixels
LARGE = 1 << 24  # the same where no bound follows from the processor: it divides or shrinks what is larger
SHAPES = ((1, 1), (4, 3))  # of pictures: into more parts one is divided that is not square
MODALITIES = {IMAGE: "a picture", AUDIO: "a sound"}


class Trial(NamedTuple):
    """One item."""

    modality: str
    words: str  # how large it is
    arrays: dict[str, np.ndarray[Any, Any]]  # as of a MediaItem


def make_trials(config: Config, info: ModelInfo, large: bool) -> list[Trial]:
    """The least, or the most that one request's picture and sound may be, as the options and the model's files are; of
    what requests may have."""
    wanted = {modality == AUDIO for modality in info.media if media_limits(config).most(modality)}
    return [_sound(info, large) if hears else _picture(config, info, large) for hears in sorted(wanted)]


def _sound(info: ModelInfo, large: bool) -> Trial:
    folder = Path(info.folder)
    config, processor, extractor = (
        read_json(folder / name, missing_ok=True) for name in ("config.json", PROCESSOR_FILE, EXTRACTOR_FILE)
    )
    if config["model_type"] == "gemma4":
        return _universal_sound(UniversalMel(processor.get(NESTED) or extractor), MOST_S if large else 1.0)
    sizes = SoundSizes.read(config, processor, extractor)
    windows = sizes.most_windows(info.max_model_len) if large else 1
    arrays: dict[str, Any] = {"input_features": np.zeros((windows, sizes.mels, sizes.frames), np.float32)}
    if sizes.one_window:
        arrays["feature_attention_mask"] = np.ones((1, sizes.frames), np.int64)
    return Trial(AUDIO, f"{MODALITIES[AUDIO]} of {windows * sizes.frames * sizes.hop // sizes.rate} s", arrays)


def _universal_sound(mel: UniversalMel, seconds: float) -> Trial:
    """As long as it is."""
    frames = mel.frames(int(seconds * mel.rate))
    arrays = {"input_features": np.zeros((1, frames, mel.mels), np.float32)}
    arrays["input_features_mask"] = np.ones((1, frames), np.int64)
    return Trial(AUDIO, f"{MODALITIES[AUDIO]} of {seconds:.0f} s", arrays)


def _picture(config: Config, info: ModelInfo, large: bool) -> Trial:
    folder = Path(info.folder)
    process = load_image_processor(folder, processor_kwargs(config))
    told = image_arguments(read_json(folder / "config.json"), read_json(folder / PROCESSOR_FILE, missing_ok=True))
    pixels = min(config.max_media_pixels, _most_pixels(process, info) if large else SMALL)
    made = [_processed(process, told, pixels, *shape) for shape in (SHAPES if large else SHAPES[:1])]
    return max(made, key=lambda trial: trial.arrays["pixel_values"].size)


def _most_pixels(process: Any, info: ModelInfo) -> int:
    """Where tokens follow from a picture's size there are fewer of them than the model's length."""
    merged, longest = getattr(process, "merge_size", None), dict(process.size or {}).get("longest_edge")
    if not merged or not longest:
        return LARGE
    return min(int(longest), info.max_model_len * (int(merged) * int(process.patch_size)) ** 2)


def _processed(process: Any, told: dict[str, Any], pixels: int, wide: int, high: int) -> Trial:
    from PIL import Image

    unit = max(1, isqrt(pixels // (wide * high)))
    picture = Image.new("RGB", (wide * unit, high * unit))
    outputs = process(images=[picture], return_tensors="np", **told)
    arrays = {name: np.asarray(value) for name, value in outputs.items() if isinstance(value, np.ndarray)}
    return Trial(IMAGE, "{} of {} times {} pixels".format(MODALITIES[IMAGE], *picture.size), arrays)
