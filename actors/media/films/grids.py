"""What Qwen-VL's video processors make of frames: their size, and patches of two frames each.

In numpy, since transformers' own want torchvision.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..refused import MediaRefused

STEEPEST = 200  # one side of a frame to the other
OPENAI_MEAN = [0.48145466, 0.4578275, 0.40821073]
OPENAI_STD = [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]
ABSENT: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        **{"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "max_video_tokens": 128_000},
        **{"size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768}},
        **{"image_mean": OPENAI_MEAN, "image_std": OPENAI_STD, "resample": 3, "rescale_factor": 1 / 255},
    },
    "qwen3_vl": {
        **{"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "max_video_tokens": 768},
        **{"size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}},
        **{"image_mean": HALF, "image_std": HALF, "resample": 3, "rescale_factor": 1 / 255},
    },
}


class Grid(NamedTuple):
    """Of one film's frames."""

    frames: int  # in whole patches
    height: int
    width: int

    def patches(self, settings: dict[str, Any]) -> tuple[int, int, int]:
        """Of time, height and width."""
        patch = settings["patch_size"]
        return self.frames // settings["temporal_patch_size"], self.height // patch, self.width // patch


def grid_of(frames: int, height: int, width: int, settings: dict[str, Any], by_film: bool) -> Grid:
    """The size that frames are given; `by_film`: bounds are of all of its pixels, and not of each frame's."""
    factor, time = settings["patch_size"] * settings["merge_size"], settings["temporal_patch_size"]
    whole = frames + -frames % time
    least, most = settings["size"]["shortest_edge"], settings["size"]["longest_edge"]
    if settings.get("cap_pixels_per_frame"):
        most = _capped(max(frames, 1), factor, settings, by_film)
    if by_film and (height < factor or width < factor):
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) / min(height, width) > STEEPEST:
        raise MediaRefused(f"one side of its frames is more than {STEEPEST} times the other.")
    times = max(frames, time) if by_film else 1
    found = _within(height, width, factor, least, most, times, round(times / time) * time if by_film else 1)
    return Grid(whole, *found)


def _within(
    height: int, width: int, factor: int, least: int, most: int, times: int, whole_times: int
) -> tuple[int, int]:
    """In whole patches, with as many pixels as the bounds say."""
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if whole_times * high * wide > most:
        beta = math.sqrt(times * height * width / most)
        high = max(factor, math.floor(height / beta / factor) * factor)
        wide = max(factor, math.floor(width / beta / factor) * factor)
    elif whole_times * high * wide < least:
        beta = math.sqrt(least / (times * height * width))
        high, wide = math.ceil(height * beta / factor) * factor, math.ceil(width * beta / factor) * factor
    return high, wide


def _capped(frames: int, factor: int, settings: dict[str, Any], by_film: bool) -> int:
    least, most = int(settings["size"]["shortest_edge"] * 1.05), settings["size"]["longest_edge"]
    pixels = settings["max_video_tokens"] * factor * factor
    if by_film:
        return int(max(min(pixels, most // frames), least) * frames)
    return int(max(min(most, int(pixels * 0.9) * settings["temporal_patch_size"] // frames), least))


def frame_numbers(picture: Any, grid: Grid, settings: dict[str, Any]) -> np.ndarray:
    """[colours, height, width] of a frame of Pillow's, as the model takes it."""
    sized = picture.resize((grid.width, grid.height), resample=settings["resample"])
    values: np.ndarray = np.asarray(sized, np.float32) * np.float32(settings["rescale_factor"])
    values -= np.asarray(settings["image_mean"], np.float32)
    values /= np.asarray(settings["image_std"], np.float32)
    return values.transpose(2, 0, 1)


def patches_of(frames: np.ndarray, settings: dict[str, Any]) -> np.ndarray:
    """[patches, numbers of each] of [frames, colours, height, width]."""
    patch, merge, time = (settings[name] for name in ("patch_size", "merge_size", "temporal_patch_size"))
    count, colours, height, width = frames.shape
    sizes = count // time, time, colours, height // patch // merge, merge, patch, width // patch // merge, merge, patch
    found = frames.reshape(sizes).transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return np.ascontiguousarray(found).reshape(-1, colours * time * patch * patch)
