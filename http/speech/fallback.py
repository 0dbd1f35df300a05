"""Windows whose text is doubtful are written down anew at a higher temperature, as Whisper's own decoding does it: one
that repeats itself, or is unlikely; and one in which nothing is likely to be said has no text.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..generation.choice import Choice, ChoiceUpdate
from ..generation.job import Engine, Heard, Job
from ..output.events import Content
from .schemas import SpeechRequest
from .transcript import plain

STEP = 0.2  # from one temperature to the next
HIGHEST = 1.0
Begin = Callable[[int, float], Awaitable[Job]]  # a window's number and a temperature: a job of it alone, which runs


@dataclass
class Take:
    """What was written down of one window."""

    choice: Choice
    update: ChoiceUpdate
    temperature: float
    heard: Heard | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.update.pieces if isinstance(piece, Content))

    def silence(self) -> None:
        """Nothing was said."""
        self.update = ChoiceUpdate([], [], [], True)


def has_thresholds(body: SpeechRequest) -> bool:
    """Is anything asked for by which a text is doubtful?"""
    return any(
        value is not None
        for value in (body.compression_ratio_threshold, body.logprob_threshold, body.no_speech_threshold)
    )


def temperatures(body: SpeechRequest) -> list[float]:
    """In the order in which they are tried."""
    first, step = body.temperature or 0.0, STEP if body.temperature_inc is None else body.temperature_inc
    count = int((HIGHEST - first) / step + 1e-6) if step else 0
    return [first, *(round(first + step * number, 6) for number in range(1, count + 1))]


def compression_ratio(text: str) -> float:
    """How much shorter zlib makes it: high where it repeats itself."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def is_silent(heard: Heard, body: SpeechRequest) -> bool:
    """Is likely nothing said, and what was written not likely enough to be believed all the same?"""
    if body.no_speech_threshold is None or heard.no_speech <= body.no_speech_threshold:
        return False
    return body.logprob_threshold is None or heard.logprob <= body.logprob_threshold


def is_doubtful(take: Take, body: SpeechRequest) -> bool:
    """Is it to be written anew?"""
    assert take.heard is not None
    most, least = body.compression_ratio_threshold, body.logprob_threshold
    repeats = most is not None and compression_ratio(plain(take.text).strip()) > most
    return repeats or (least is not None and take.heard.logprob < least)


class Fallback:
    """Of one request."""

    def __init__(self, engine: Engine, body: SpeechRequest, begin: Begin) -> None:
        self._engine, self._body, self._begin = engine, body, begin

    async def settle(self, take: Take, window: int, samples: int) -> None:
        """Until it is not doubtful, or there is no higher temperature."""
        _, *others = temperatures(self._body)
        while True:
            take.heard = await self._engine.listen(take.choice.ref, samples, False)
            if is_silent(take.heard, self._body):
                take.silence()
                return
            if not others or not is_doubtful(take, self._body):
                return
            take.temperature = others.pop(0)
            job = await self._begin(window, take.temperature)
            await asyncio.shield(job.done)
            (take.choice,) = job.choices
            take.update = take.choice.take()
