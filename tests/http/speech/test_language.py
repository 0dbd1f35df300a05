"""In which language a sound of several windows is written down, and what is asked before it is decoded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest

from actorserve.actors.accounts.account import Account
from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import SoundPrompt
from actorserve.http.errors import ApiError
from actorserve.http.handlers.generate import Generator
from actorserve.http.middleware.context import ACCOUNT
from actorserve.http.speech.language import in_one_language
from actorserve.http.speech.schemas import SpeechRequest
from tests.http.fakes import FakeEngine, rendered, say
from tests.http.serving import SETTINGS

SPEC = SpeechSpec(languages={"en": 5, "fr": 6}, tasks={"transcribe": 7}, end=3, no_timestamps=9, mels=8, frames=16)
ENCODER = EncoderSpec(longest=4, decoder_longest=8, start=[4], filler=0, speech=SPEC)
HEARS = replace(SETTINGS, encoder=ENCODER)
FORM = SpeechRequest(file=b"RIFF", stream=True)


@pytest.mark.parametrize(("written", "language"), [("<|fr|>", "fr"), ("", None)])
async def test_that_of_the_first_window_is_asked_for_alone(written: str, language: str | None) -> None:
    engine = FakeEngine()
    asking = asyncio.ensure_future(in_one_language(engine, HEARS, FORM, 3, "it"))
    job = await engine.jobs.get()
    (prompt,) = job.prompts
    assert isinstance(prompt, SoundPrompt) and (prompt.window, prompt.language, prompt.data) == (0, "", b"RIFF")
    assert len(job.choices) == 1 and job.rendering["max_tokens"] == 1
    rendered(job)
    say(job, 0, written, 1, Finish.LENGTH)
    assert await asking == msgspec.structs.replace(FORM, language=language)
    assert await engine.released.get() is job and not engine.running


@pytest.mark.parametrize(
    ("form", "windows", "spec"),
    [
        (FORM, 1, SPEC),
        (msgspec.structs.replace(FORM, language="en"), 3, SPEC),
        (FORM, 3, msgspec.structs.replace(SPEC, languages={})),
    ],
    ids=["one window", "it is said", "the model knows one"],
)
async def test_it_is_not_asked_for_where_it_is_known(form: SpeechRequest, windows: int, spec: SpeechSpec) -> None:
    engine, settings = FakeEngine(), replace(HEARS, encoder=msgspec.structs.replace(ENCODER, speech=spec))
    assert await in_one_language(engine, settings, form, windows, "it") == form and engine.jobs.empty()


async def test_a_key_that_has_met_a_limit_has_nothing_decoded() -> None:
    engine = FakeEngine()
    request = cast(Any, {ACCOUNT: Account(0, "key", b"")})
    assert (await Generator(engine, HEARS).measure(request, b"sound")).windows and engine.asked == [b"sound"]
    engine.limit = ApiError(429, "too often")
    with pytest.raises(ApiError, match="too often"):
        await Generator(engine, HEARS).measure(request, b"another")
    assert engine.asked == [b"sound"]
