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
from actorserve.actors.protocol.topics.calls import Measured
from actorserve.actors.protocol.topics.prompts import SoundPrompt
from actorserve.http.errors import ApiError
from actorserve.http.handlers.generate import Generator
from actorserve.http.middleware.context import ACCOUNT, LIMITS
from actorserve.http.speech.language import in_one_language
from actorserve.http.speech.schemas import SpeechRequest
from tests.http.fakes import FakeEngine, rendered, say
from tests.http.serving import SETTINGS, serving

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
    """It is told what is left of them; one that goes on was let in before."""
    engine, key = FakeEngine(), Account(0, "key", b"")
    request = cast(Any, {ACCOUNT: key})
    assert (await Generator(engine, HEARS).measure(request, b"sound")).windows and engine.asked == [b"sound"]
    engine.limit = ApiError(429, "too often")
    refused, going_on = cast(Any, {ACCOUNT: key}), cast(Any, {ACCOUNT: key})
    with pytest.raises(ApiError, match="too often"):
        await Generator(engine, HEARS).measure(refused, b"another")
    assert engine.asked == [b"sound"] and refused[LIMITS] == request[LIMITS] == engine.check_limits(key)[0]
    await Generator(engine, HEARS).measure(going_on, b"its own", True)
    assert engine.asked == [b"sound", b"its own"] and LIMITS not in going_on


async def test_whoever_goes_on_does_not_ask_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompts that its predecessor has made say it."""
    name = 'Content-Disposition: form-data; name="'
    form = f'--b\r\n{name}response_format"\r\n\r\nverbose_json\r\n'
    form += f'--b\r\n{name}file"; filename="a.wav"\r\n\r\nRIFF\r\n--b--\r\n'
    windows = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]

    async def measured(sound: bytes) -> Measured:
        return Measured(1, 3.0, windows)

    monkeypatch.setattr(Generator, "goes_on", lambda *_: True)
    async with serving(encoder=ENCODER) as served:
        monkeypatch.setattr(served.engine, "measure", measured)
        client, kind = await served.client(), "multipart/form-data; boundary=b"
        client.send("POST", "/v1/audio/transcriptions", form.encode(), Content_Type=kind)
        job = await served.job()
        assert len(job.choices) == len(windows)
        for choice in job.choices:
            job.rendered(choice.index, 4, False, "fr")
            say(job, choice.index, " oui", 1, Finish.STOP)
        answer = await client.answer()
        assert answer.status == 200, answer.body
        assert (answer.json["language"], answer.json["text"]) == ("fr", "oui oui oui")
