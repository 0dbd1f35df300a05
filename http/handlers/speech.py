"""Endpoints of models that listen: what a sound says, in its own language or in English."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from ..accounts import check_model_of
from ..generation.choice import Choice
from ..generation.fields.decoding import check_model
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..middleware.context import ACCOUNT, NOTED, RequestContext, name_request
from ..output.answer import Answer
from ..output.events import Content
from ..speech import answers
from ..speech.events import TranscriptWriter
from ..speech.prepare import TRANSCRIBE, TRANSLATE, check, params, read_form, sound_prompt, speech_of
from ..speech.schemas import TIMED, SpeechRequest
from ..speech.transcript import language_of, plain, spoken
from ..transport import form
from ..transport.json_response import json_response
from ..transport.sse import EventStream
from .generate import Generator

ReadBody = Callable[[web.Request], Awaitable[bytes]]


class SpeechApi:
    """Its handlers, by the names that routes.py has for them."""

    def __init__(self, generator: Generator, read_body: ReadBody) -> None:
        self._generator, self._settings = generator, generator.settings
        self._read_body = read_body

    async def transcribe(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/audio/transcriptions."""
        return await self._answer(request, TRANSCRIBE)

    async def translate(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/audio/translations."""
        return await self._answer(request, TRANSLATE)

    async def _answer(self, request: web.Request, task: str) -> web.StreamResponse:
        spec = speech_of(self._settings)
        body = read_form(await form.read_form(request, await self._read_body(request)))
        check(body, spec, task)
        model = check_model(body.model, self._settings.served)
        request_id = name_request(request, body.request_id)
        measured = await self._generator.engine.measure(body.file)
        timed = body.response_format in TIMED
        about = request_id, 0 if timed else -1
        job = Job(
            [sound_prompt(body, task)],
            params(body, self._settings, len(measured.windows), about),
            {"max_tokens": body.max_completion_tokens},
        )
        answer = Answer(model, False, secrets.randbits(64), int(time.time()))
        noted = request[NOTED] = RequestContext(request_id, model, job)
        check_model_of(request.get(ACCOUNT), model)
        submit = partial(self._generator.submit, request, job, answer, None, bool(body.stream))
        start = await self._generator.begin(request, job, submit)
        noted.answer_id = answer.id
        try:
            if body.stream:
                return await _stream(request, job, measured.seconds, start)
            await asyncio.shield(job.done)
            return self._whole(job, body, task, (measured.seconds, measured.windows))
        finally:
            self._generator.engine.release(job)

    def _whole(
        self, job: Job, body: SpeechRequest, task: str, sound: tuple[float, list[tuple[float, float]]]
    ) -> web.Response:
        spec, (seconds, windows) = speech_of(self._settings), sound
        updates = [choice.take() for choice in job.choices]
        texts = ["".join(piece.text for piece in one.pieces if isinstance(piece, Content)) for one in updates]
        text = "".join(map(plain, texts)).strip()
        if body.response_format == "json":
            return json_response(answers.whole(text, seconds))
        if body.response_format == "text":
            return web.Response(text=f"{text}\n", content_type=answers.PLAIN)
        segments = [
            segment
            for number, (place, one) in enumerate(zip(windows, updates, strict=True))
            for segment in spoken(number, place, one.logprobs, spec)
        ]
        if body.response_format == "srt":
            return web.Response(text=answers.srt(segments), content_type=answers.SUBRIP)
        if body.response_format == "vtt":
            return web.Response(text=answers.vtt(segments), content_type=answers.VTT)
        language = body.language or language_of(texts[0], spec) or "en"
        about = task, language, body.temperature or 0.0, [begin for begin, _ in windows]
        return json_response(answers.verbose(text, seconds, segments, about))


async def _stream(request: web.Request, job: Job, seconds: float, start: StreamProgress) -> web.StreamResponse:
    if not (start.on_wire and start.begun):
        await asyncio.shield(job.started)
    stream = OrderedStream(request, job, TranscriptWriter(job, seconds), start)
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
