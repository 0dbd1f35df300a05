"""Endpoints of models that listen: what a sound says, in its own language or in English."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from ..accounts import check_model_of
from ..errors import bad_request
from ..generation.choice import Choice
from ..generation.fields.decoding import check_model
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..middleware.context import ACCOUNT, NOTED, REQUEST_ID, RequestContext, name_request
from ..openai.mistral import is_mistrals
from ..output.answer import Answer
from ..speech import answers
from ..speech.events import MistralTranscriptWriter, TranscriptWriter, VllmTranscriptWriter
from ..speech.fallback import Fallback, Take, has_thresholds
from ..speech.language import in_one_language
from ..speech.prepare import (
    TRANSCRIBE,
    TRANSLATE,
    HeldSounds,
    check,
    params,
    read_form,
    sound_limit,
    sound_prompt,
    speech_of,
)
from ..speech.schemas import TIMED, SpeechRequest
from ..speech.transcript import first_language, plain, spoken
from ..speech.words import told, words_of
from ..transport import form
from ..transport.json_response import json_response
from ..transport.sse import EventStream
from .generate import Generator

WORD = "word"
VLLM_CHUNKS = {TRANSCRIBE: "transcription.chunk", TRANSLATE: "translation.chunk"}
Windows = list[tuple[float, float]]  # in seconds
ReadBody = Callable[[web.Request], Awaitable[bytes]]


class SpeechApi:
    """Its handlers, by the names that routes.py has for them."""

    def __init__(self, generator: Generator, read_body: ReadBody) -> None:
        self._generator, self._settings, self._engine = generator, generator.settings, generator.engine
        self._read_body = read_body
        self._sounds = HeldSounds(sound_limit(self._settings))

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/audio/transcriptions."""
        return await self._answer(request, TRANSCRIBE)

    async def translate(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/audio/translations."""
        return await self._answer(request, TRANSLATE)

    async def _answer(self, request: web.Request, task: str) -> web.StreamResponse:
        raw = await self._read_body(request)
        spec = speech_of(self._settings)
        body = read_form(await form.read_form(request, raw))
        del raw
        if len(body.file) > self._settings.max_audio_bytes:
            raise form.too_long(self._settings.max_audio_bytes)
        if is_mistrals(request.headers.get("User-Agent", "")) and body.timestamp_granularities:
            if body.stream:
                text = "timestamp_granularities: a stream has no times; they are told with the whole text."
                raise bad_request(text, "timestamp_granularities")
            body = msgspec.structs.replace(body, response_format="verbose_json")  # of which it reads segments
        check(body, spec, task)
        with self._sounds.hold(len(body.file)):
            return await self._written_down(request, body, task)

    async def _written_down(self, request: web.Request, body: SpeechRequest, task: str) -> web.StreamResponse:
        """The answer to a form that is in order."""
        model = check_model(body.model, self._settings.served, any_name=self._settings.any_model_name)
        request_id = name_request(request, body.request_id)
        check_model_of(request.get(ACCOUNT), model)
        measured = await self._generator.measure(request, body.file, self._generator.goes_on(request))
        timed = body.response_format in TIMED
        about = request_id, 0 if timed or has_thresholds(body) else -1
        given = params(body, self._settings, len(measured.windows), about)
        if not self._generator.goes_on(request):  # otherwise the prompts have it
            body = await in_one_language(self._engine, self._settings, body, len(measured.windows), request_id)
        job = Job([sound_prompt(body, task)], given, {"max_tokens": body.max_completion_tokens})
        job.counted = "file"
        answer = Answer(model, False, secrets.randbits(64), int(time.time()))
        noted = request[NOTED] = RequestContext(request_id, model, job)
        submit = partial(self._generator.submit, request, job, answer, None, bool(body.stream))
        start = await self._generator.begin(request, job, submit)
        noted.answer_id = answer.id
        begun = [job]
        try:
            if body.stream:
                writer = TranscriptWriter(job, measured.seconds)
                if is_mistrals(request.headers.get("User-Agent", "")):
                    writer = MistralTranscriptWriter(job, measured.seconds, model, body.language)
                elif body.stream_include_usage or body.stream_continuous_usage_stats:
                    writer = VllmTranscriptWriter(job, answer, body, VLLM_CHUNKS[task])
                return await _stream(request, job, writer, start)
            await asyncio.shield(job.done)
            body = msgspec.structs.replace(body, language=body.language or job.choices[0].language or None)
            takes = [Take(choice, choice.take(), body.temperature or 0.0) for choice in job.choices]
            if has_thresholds(body):
                await self._fall_back(request, (body, task), takes, measured.windows, begun)
            made = await self._whole(takes, body, task, (measured.seconds, measured.windows))
            if is_mistrals(request.headers.get("User-Agent", "")) and isinstance(made, dict):
                made = answers.as_mistrals(made, model, body.language)
            return json_response(made) if isinstance(made, dict) else made
        finally:
            for one in begun:
                self._engine.release(one)

    async def _fall_back(
        self,
        request: web.Request,
        asked: tuple[SpeechRequest, str],
        takes: list[Take],
        windows: Windows,
        begun: list[Job],
    ) -> None:
        """Doubtful windows are written down anew, one after the other, by jobs that are added to those `begun`."""
        body, task = asked
        engine, first = self._engine, body.seed or 0

        async def begin(window: int, temperature: float) -> Job:
            warm = msgspec.structs.replace(body, temperature=temperature, seed=first + window)
            given = params(warm, self._settings, 1, (request[REQUEST_ID], 0))
            job = Job([sound_prompt(body, task, window)], given, {"max_tokens": body.max_completion_tokens})
            await self._generator.begin(request, job, partial(engine.submit, job))
            begun.append(job)
            return job

        fallback, rate = Fallback(engine, body, begin), speech_of(self._settings).rate
        for window, (take, place) in enumerate(zip(takes, windows, strict=True)):
            await fallback.settle(take, window, samples_of(place, rate))

    async def _whole(
        self, takes: list[Take], body: SpeechRequest, task: str, sound: tuple[float, Windows]
    ) -> web.Response | dict[str, Any]:
        """A text, or the object that is the answer."""
        spec, (seconds, windows) = speech_of(self._settings), sound
        texts = [take.text for take in takes]
        text = "".join(map(plain, texts)).strip()
        if body.response_format == "json":
            return answers.whole(text, seconds)
        if body.response_format == "text":
            return web.Response(text=f"{text}\n", content_type=answers.PLAIN)
        segments = [
            segment
            for number, (place, take) in enumerate(zip(windows, takes, strict=True))
            for segment in spoken(number, place, take.update.logprobs, spec)
        ]
        if body.response_format == "srt":
            return web.Response(text=answers.srt(segments), content_type=answers.SUBRIP)
        if body.response_format == "vtt":
            return web.Response(text=answers.vtt(segments), content_type=answers.VTT)
        language = body.language or first_language(texts, spec) or "en"
        words = None
        if WORD in (body.timestamp_granularities or ()):
            words = await self._words(windows, takes, language)
        about = task, language, [begin for begin, _ in windows]
        return answers.verbose(text, seconds, segments, about, takes, words)

    async def _words(self, windows: Windows, takes: list[Take], language: str) -> list[dict[str, Any]]:
        """When each word was said."""
        spec = speech_of(self._settings)
        found: list[dict[str, Any]] = []
        for place, take in zip(windows, takes, strict=True):
            if take.update.logprobs:
                samples = samples_of(place, spec.rate)
                take.heard = await self._engine.listen(take.choice.ref, samples, True)
                found += told(words_of(take.update.logprobs, take.heard.times, spec, language), *place)
        return found


def samples_of(place: tuple[float, float], rate: int) -> int:
    """Of a window from one second to another."""
    return round((place[1] - place[0]) * rate)


async def _stream(
    request: web.Request, job: Job, writer: TranscriptWriter, start: StreamProgress
) -> web.StreamResponse:
    if not (start.on_wire and start.begun):
        await asyncio.shield(job.started)
    stream = OrderedStream(request, job, writer, start)
    try:
        response = await stream.begin()
        await stream.end(response)
        return response
    finally:
        stream.close()


class OrderedStream(EventStream):
    """Gives the choices' texts one after the other: what comes of a later one waits until those before have ended."""

    def _event(self, choice: Choice) -> bytes:
        parts = []
        for one in self._job.choices:
            if one.index in self._over:
                continue
            parts.append(super()._event(one))
            if one.finish_reason is None:
                break
            self._over.add(one.index)  # also where it has ended without a text
        return b"".join(parts)
