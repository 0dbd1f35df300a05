"""What is written for a film in a prompt, by family: as many tokens as there are embeddings, and what stands around
those of each frame, or of each two.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..expansion import ExpansionInput
    from .frames import Film

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def qwen_film(told: ExpansionInput, token: str) -> str:
    """Nothing but a token for each embedding."""
    return token * (int(told.outputs["video_grid_thw"].prod()) // int(told.outputs["settings"]["merge_size"]) ** 2)


def qwen_timed_film(told: ExpansionInput, token: str) -> str:
    """Each temporal patch with the time between the first and the last of its frames."""
    settings, film = told.outputs["settings"], told.outputs["film"]
    time, (_, high, wide) = settings["temporal_patch_size"], told.outputs["video_grid_thw"][0].tolist()
    begin, end = told.token("vision_start_token", "<|vision_start|>"), told.token("vision_end_token", "<|vision_end|>")
    indices = film.indices + film.indices[-1:] * (-len(film.indices) % time)
    seconds = [index / film.fps for index in indices]
    one = f"{begin}{token * (high * wide // settings['merge_size'] ** 2)}{end}"
    middles = [(seconds[at] + seconds[at + time - 1]) / 2 for at in range(0, len(seconds), time)]
    return "".join(f"<{middle:.1f} seconds>{one}" for middle in middles)


def frame_tokens(told: ExpansionInput) -> int:
    """Embeddings of a frame, of models that see it as a picture."""
    if told.config["model_type"] == "internvl":
        return int(told.processor.get("image_seq_length") or 256)
    return int(told.processor.get("image_seq_len") or 169)


def smolvlm_film(told: ExpansionInput, token: str) -> str:
    """Each frame with its minutes and seconds, behind how many there are and how long it is."""
    film, fake = told.outputs["film"], told.token("fake_image_token", "<fake_token_around_image>")
    one = f"{fake}{told.token('global_image_token', '<global-img>')}{token * frame_tokens(told)}{fake}"
    count, length = in_words(len(film.indices)), timedelta(seconds=int(film.total / film.fps))
    frames = "".join(f"\nFrame from {time}:{one}" for time in _minutes(film))
    text = f"You are provided the following series of {count} frames from a {length} [H:MM:SS] video.\n"
    return f"{text}{frames}\n\n"


def gemma4_film(told: ExpansionInput, token: str) -> str:
    """Each frame as a picture, behind its minutes and seconds."""
    begin, end = told.token("boi_token", "<|image>"), told.token("eoi_token", "<image|>")
    one = f"{begin}{token * told.outputs['frame_tokens']}{end}"
    return " ".join(f"{time} {one}" for time in _minutes(told.outputs["film"]))


def _minutes(film: Film) -> list[str]:
    """And seconds at which each of its frames is shown."""
    times = (divmod(int(index / film.fps), 60) for index in film.indices)
    return [f"{minutes:02d}:{seconds:02d}" for minutes, seconds in times]


def internvl_film(told: ExpansionInput, token: str) -> str:
    begin, end = told.token("start_image_token", "<img>"), told.token("end_image_token", "</img>")
    one = f"{begin}{token * frame_tokens(told)}{end}"
    return "\n".join(f"Frame{number + 1}: {one}" for number in range(len(told.outputs["pixel_values"])))


def in_words(number: int) -> str:
    """Of a number from 0 to 999."""
    if number < len(ONES):
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{ONES[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
