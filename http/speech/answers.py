"""Answers to sounds in each form: JSON, with segments too, a text, and two kinds of subtitles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .fallback import Take
from .transcript import Spoken

JSON, PLAIN, SUBRIP, VTT = "application/json", "text/plain", "application/x-subrip", "text/vtt"


def usage(seconds: float) -> dict[str, Any]:
    """By the sound's length."""
    return {"type": "duration", "seconds": math.ceil(seconds)}


def whole(text: str, seconds: float) -> dict[str, Any]:
    """response_format json."""
    return {"text": text, "usage": usage(seconds)}


def verbose(
    text: str,
    seconds: float,
    segments: Sequence[Spoken],
    about: tuple[str, str, Sequence[float]],
    takes: Sequence[Take],
    words: Sequence[dict[str, Any]] | None,
) -> dict[str, Any]:
    """response_format verbose_json. `about`: task, language, and where each window begins."""
    task, language, begins = about
    told = [
        {
            "id": number,
            "seek": round(begins[one.window] * 100),
            "start": round(one.start, 2),
            "end": round(one.end, 2),
            "text": one.text,
            "tokens": one.tokens,
            "temperature": takes[one.window].temperature,
            "avg_logprob": one.avg_logprob,
            "compression_ratio": one.compression_ratio,
            "no_speech_prob": heard.no_speech if (heard := takes[one.window].heard) is not None else 0.0,
        }
        for number, one in enumerate(segments)
    ]
    head = {"task": task, "language": language, "duration": seconds}
    spoken = {} if words is None else {"words": words}
    return {**head, **whole(text, seconds), **spoken, "segments": told}


def as_mistrals(answer: dict[str, Any], model: str, language: str | None) -> dict[str, Any]:
    """The same as Mistral's clients read it, with segments where there are any. No tokens are counted."""
    segments = [
        {"type": "transcription_segment", **{name: one[name] for name in ("text", "start", "end")}}
        for one in answer.get("segments", ())
    ]
    counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
    usage_ = {**counts, "prompt_audio_seconds": answer["usage"]["seconds"]}
    return {"model": model, "text": answer["text"], "language": language, "segments": segments, "usage": usage_}


def srt(segments: Sequence[Spoken]) -> str:
    """Numbered blocks, times with a comma."""
    blocks = (
        f"{number}\n{_time(one.start, ',')} --> {_time(one.end, ',')}\n{_line(one.text)}\n"
        for number, one in enumerate(segments, 1)
    )
    return "\n".join(blocks)


def vtt(segments: Sequence[Spoken]) -> str:
    """A head, then blocks, times with a point."""
    blocks = (f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{_line(one.text)}\n" for one in segments)
    return "\n".join(["WEBVTT\n", *blocks])


def _line(text: str) -> str:
    """One line, in which nothing looks like the arrow between two times."""
    return " ".join(text.split()).replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"
