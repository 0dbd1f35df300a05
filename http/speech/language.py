"""The language of a sound of several windows: that of the first, as with Whisper's own decoding. A short last one, or
noise in one, is no reason to go on in another.
"""

from __future__ import annotations

import asyncio

import msgspec

from ..generation.job import Engine, Job
from ..settings import Settings
from .fallback import Take
from .prepare import params, sound_prompt, speech_of
from .schemas import SpeechRequest
from .transcript import language_of


async def in_one_language(
    engine: Engine, settings: Settings, body: SpeechRequest, windows: int, request_id: str
) -> SpeechRequest:
    """The form with a language, unless it has one, or there is one window alone, which says its own."""
    spec = speech_of(settings)
    if body.language is not None or not spec.languages or windows < 2:
        return body
    alone = msgspec.structs.replace(body, stream=None)
    job = Job([sound_prompt(alone, "")], params(alone, settings, 1, (request_id, -1)), {"max_tokens": 1})
    engine.submit(job)
    try:
        await asyncio.shield(job.done)
    finally:
        engine.release(job)
    (choice,) = job.choices
    return msgspec.structs.replace(body, language=language_of(Take(choice, choice.take(), 0.0).text, spec))
