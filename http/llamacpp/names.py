"""Fields of llama.cpp's server that its clients send to OpenAI's paths, too, and what they stand for there."""

from __future__ import annotations

from typing import Annotated, Any

from actorserve.actors.protocol.request import PENALTIES
from actorserve.actors.protocol.sampling.fields import SamplingFields
from actorserve.actors.protocol.sampling.ranges import Range

from ..errors import bad_request

INFILL = "infill"  # keeps what is likely enough to be filled in: the likeliest token, where nothing else draws
SAMPLERS: dict[str, tuple[str, ...]] = {  # by their names there: the fields that are theirs
    **{name: (name,) for name in ("top_k", "top_p", "min_p", "top_n_sigma", "typical_p")},
    "typ_p": ("typical_p",),
    "xtc": ("xtc_probability",),
    "temperature": ("temperature", "dynatemp_range"),
    "penalties": PENALTIES,
    "dry": ("dry_multiplier",),
    **dict.fromkeys(("tfs_z", "adaptive_p", INFILL), ()),  # refused elsewhere, where they are asked for
}
OTHER_NAMES = {name.replace("_", ""): name for name in SAMPLERS}
OTHER_NAMES |= {"nucleus": "top_p", "temp": "temperature", "typ": "typ_p"}
LETTERS = {  # where all of them are one text
    **{"e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p"},
    **{"x": "xtc", "t": "temperature", "a": "adaptive_p", "i": INFILL},
}
OFF: dict[str, Any] = {
    **{"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "top_n_sigma": -1, "typical_p": 1},
    **{"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0},
    **{"xtc_probability": 0, "dynatemp_range": 0},
}


class LlamaFields(SamplingFields, kw_only=True):
    """Of chats and completions."""

    n_predict: int | None = None  # max_tokens; below 0: no limit
    repeat_penalty: Annotated[float | None, Range(0, 100, above=True)] = None  # repetition_penalty
    samplers: list[str] | str | None = None  # those that are used, in our order; an empty list: as if left out
    timings_per_token: bool | None = None  # how long it took, in the answer, or each event of a stream
    return_progress: bool | None = None  # how far the prompt has come, in events of a stream before its text


def take_names(request: LlamaFields) -> None:
    """Give the fields that they stand for what they say."""
    if request.repetition_penalty is None:
        request.repetition_penalty = request.repeat_penalty
    for name, value in unused(request.samplers or [], request.mirostat).items():
        setattr(request, name, value)


def unused(samplers: list[str] | str, mirostat: int | None) -> dict[str, Any]:
    """What turns off the samplers that are not among these, if any are named. Mirostat is in the place of all."""
    if isinstance(samplers, str):
        names = [LETTERS.get(letter, letter) for letter in samplers]
    else:
        names = [OTHER_NAMES.get(name.lower().replace("-", "").replace("_", ""), name) for name in samplers]
    for name in names:
        if name not in SAMPLERS:
            raise bad_request(f"samplers: {name[:64]!r} is none of {', '.join(SAMPLERS)}.", "samplers")
    if mirostat or not samplers:
        return {}
    used = {field for name in names for field in SAMPLERS[name]}
    off = {name: value for name, value in OFF.items() if name not in used}
    return off | {"temperature": 0} if INFILL in names and "temperature" not in names else off
