"""What is generated for a realtime session: a response of a model that chats, or what one that listens has heard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from actorserve.actors.accounts.account import Account

from ...accounts import check_model_of
from ...errors import ApiError, bad_request
from ...generation.adapter import chat_request, checked
from ...generation.choice import Choice
from ...generation.fields.decoding import check_model
from ...generation.job import Job
from ...generation.prepare import PreparedRequest, ask_chat
from ...middleware.context import ACCOUNT, CLIENT
from ...openai.responses.requests import renamed, to_chat
from ...openai.responses.schemas import ResponsesRequest
from ...realtime.audio import seconds_of, wav
from ...realtime.fields import Object, ResponseFields
from ...realtime.response_events import ResponseWriter
from ...realtime.session import REALTIME, Active, Session
from ...realtime.transcript_events import TranscriptEvents
from ...speech.language import in_one_language
from ...speech.prepare import TRANSCRIBE, check, params, sound_prompt, speech_of
from ...speech.schemas import SpeechRequest
from ..answering import pin
from ..generate import Generator

ANYTHING: Object = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}
MOST_WINDOWS = 64  # of one sound: how far each of them is told stands in the connection's record
FIELD = re.compile(r"^(\w+)")


@dataclass
class Generation:
    """One that is under way."""

    active: Active
    job: Job
    writer: ResponseWriter | TranscriptEvents
    items: list[Object] = field(default_factory=list)  # once it has ended

    def told_in_order(self) -> Iterator[Choice]:
        """Choices of which something may be told: those of a sound one after the other."""
        for choice in self.job.choices:
            yield choice
            if choice.finish_reason is None:
                return

    def first(self) -> list[Object]:
        """Events that stand before all others of a response."""
        return self.writer.first() if isinstance(self.writer, ResponseWriter) else []

    def end(self, error: ApiError | None, cancelled: str) -> list[Object]:
        """The events of its end."""
        if isinstance(self.writer, TranscriptEvents):
            return self.writer.last(self.job, error)
        events = self.writer.last(self.job, error, cancelled)
        self.items = self.writer.items()
        return events


class Generations:
    """Makes them."""

    def __init__(self, request: web.Request, generator: Generator) -> None:
        self._request, self._generator = request, generator
        self._engine, self._settings = generator.engine, generator.settings

    # --- a session's fields ------------------------------------------------------------------------------------------

    def check_model(self, model: str | None, session: Session) -> None:
        """404 where there is none of this name, or not for this key; a connection stays with its model."""
        if model is not None and model != session.model:
            if model in self._settings.all_served and model not in self._settings.served:
                text = (
                    f"session.model: this connection asks {session.model:.64}; {model:.64} is asked by one of its own"
                )
                raise bad_request(f"{text} (/v1/realtime?model={model:.64}).", "session.model")
            check_model_of(self._request.get(ACCOUNT), check_model(model, *self._settings.names))

    async def want_adapter(self, model: str | None) -> None:
        if model is not None:
            check_model_of(self._request.get(ACCOUNT), model)
        await self._engine.want_adapter(model)

    def check(self, session: Session) -> None:
        """400 for what could be answered nothing."""
        try:
            if session.kind == REALTIME:
                self._asked(session.body_of(ResponseFields(), [ANYTHING]), session.id)
            else:
                check(_speech_request(session, b"?"), speech_of(self._settings), TRANSCRIBE)
        except ApiError as error:
            raise _inside("session", error) from None

    # --- responses ---------------------------------------------------------------------------------------------------

    def _asked(self, body: Object, name: str) -> PreparedRequest:
        request = checked(ResponsesRequest, body, "")
        try:
            return ask_chat(chat_request(to_chat(request)), self._settings, name, self._request[CLIENT])
        except ApiError as error:
            raise renamed(error) from None

    def response(self, session: Session, active: Active) -> Generation:
        """The answer to `active.body`; ApiError names what cannot be."""
        try:
            job = self._asked(active.body, active.id).new_job()
        except ApiError as error:
            raise _inside("response", error) from None
        return Generation(active, job, ResponseWriter(session, active))

    # --- sounds ------------------------------------------------------------------------------------------------------

    async def transcript(self, session: Session, active: Active, samples: bytes) -> Generation:
        """What is said in a sound."""
        request = _speech_request(session, wav(samples, session.rate))
        active.windows = len((await self._generator.measure(self._request, request.file)).windows)
        if active.windows > MOST_WINDOWS:
            text = f"audio: it has {active.windows} windows; at most {MOST_WINDOWS} are taken at a time."
            raise bad_request(text, "audio")
        active.seconds = seconds_of(samples, session.rate)
        request = await in_one_language(self._engine, self._settings, request, active.windows, active.id)
        return self._transcript(active, request)

    def _transcript(self, active: Active, request: SpeechRequest) -> Generation:
        generations = params(request, self._settings, active.windows, (active.id, -1))
        job = Job([sound_prompt(request, TRANSCRIBE)], generations, {"max_tokens": None})
        return Generation(active, job, TranscriptEvents(active, active.windows))

    # --- begun, gone on with, ended ----------------------------------------------------------------------------------

    def again(self, session: Session, active: Active, samples: bytes) -> Generation:
        """What a predecessor has begun; `samples`: of a sound, where they are still needed."""
        if active.windows:
            return self._transcript(active, _speech_request(session, wav(samples, session.rate)))
        return self.response(session, active)

    def has(self, refs: list[int]) -> bool:
        """Can what was begun in these slots be gone on with?"""
        return self._engine.has(refs)

    async def begin(self, now: Generation, account: Account | None, refs: list[int] | None) -> None:
        """In these slots, or in new ones."""
        job = now.job
        job.seed = now.active.seed
        pin(self._request, job, self._settings)
        if account is not None:
            self._request[ACCOUNT] = account
        await self._generator.begin(self._request, job, partial(self._engine.submit, job, refs))

    def release(self, now: Generation) -> None:
        self._engine.release(now.job)


def _speech_request(session: Session, file: bytes) -> SpeechRequest:
    return SpeechRequest(file=file, model=session.model, language=session.language, prompt=session.before, stream=True)


def _inside(name: str, error: ApiError) -> ApiError:
    """The same of a field that is inside another."""
    if error.param is None:
        return error
    found = FIELD.match(error.param)
    message = error.message
    if found is not None and message.startswith(found[1]):
        message = f"{name}.{message}"
    return ApiError(error.status, message, f"{name}.{error.param}", error.code, error.retry_after)
