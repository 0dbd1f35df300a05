"""Requests with pictures, films and sounds."""

from __future__ import annotations

import base64
import random
from typing import Any

from tests.support.models.sounds.whispers import sound, wav
from tests.support.models.vision.films import film
from tests.support.models.vision.folders import picture

from .talking import Request


def picture_requests(rng: random.Random, count: int) -> list[Request]:
    """The same of a model that sees: one to three pictures each, of which some come in many requests."""
    return shown_requests(rng, count, films=False)


def film_requests(rng: random.Random, count: int) -> list[Request]:
    """The same, every third with a film."""
    return shown_requests(rng, count, films=True)


def shown_requests(rng: random.Random, count: int, films: bool) -> list[Request]:
    made = []
    for number in range(count):
        shown = [rng.randrange(count // 2 + 1) for _ in range(1 + number % 3)]
        urls = [f"data:image/png;base64,{base64.b64encode(picture(60, 40, seed)).decode()}" for seed in shown]
        parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        if films and number % 3 == 0:
            data = base64.b64encode(film(30, 120, 80, seed=number % 5)).decode()
            parts.insert(0, {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}})
        content = [*parts, {"type": "text", "text": f"{number}. What is in it?"}]
        body = {"messages": [{"role": "user", "content": content}], "ignore_eos": True, "return_token_ids": True}
        wanted = {"max_tokens": rng.choice([8, 40]), "stream": number % 2 > 0, "temperature": 0}
        made.append(("/v1/chat/completions", body | wanted))
    return made


def heard_requests(rng: random.Random, count: int) -> list[Request]:
    """Conversations with one to three sounds each."""
    made = []
    for number in range(count):
        files = [base64.b64encode(wav(sound(0.4 + 0.2 * (seed % 7), seed))).decode() for seed in range(number % 3 + 1)]
        parts: list[dict[str, Any]] = [
            {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}} for data in files
        ]
        content = [*parts, {"type": "text", "text": f"{number}. What is said?"}]
        body = {"messages": [{"role": "user", "content": content}], "ignore_eos": True, "return_token_ids": True}
        wanted = {"max_tokens": rng.choice([8, 40]), "stream": number % 2 > 0, "temperature": 0}
        made.append(("/v1/chat/completions", body | wanted))
    return made


def spoken_requests(rng: random.Random, count: int) -> list[Request]:
    """The same of a model that listens: sounds of one window and of several, in some forms, streamed or not."""
    made: list[Request] = []
    for number in range(count):
        body: dict[str, Any] = {"sound": wav(sound(rng.choice([0.5, 1.9, 5.0, 11.0]), number)), "language": "en"}
        streamed = number % 4 > 0
        form = "json" if streamed else rng.choice(["json", "verbose_json"])
        path = "/v1/audio/translations" if number % 5 == 0 else "/v1/audio/transcriptions"
        made.append((path, body | {"stream": streamed, "response_format": form, "temperature": number % 2, "seed": 7}))
    return made
