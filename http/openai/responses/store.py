"""Responses that are kept: found again by their id, fetched, gone on from, deleted; and those in the background.

A response's id names the frontend that keeps it, in shared memory, so that its successor has it and others read it.
What changes it, or needs what runs of it, is given to that one. Only clients with the key it was made with find it:
to others it is not there. One in the background goes on when its frontend dies: the successor has request and slots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from ...errors import ApiError, overloaded
from ...generation.idempotency_keys import Background, Key
from ...generation.job import Engine, Job
from ...generation.prepare import PreparedRequest
from ...output.formats import ResponsesFormat
from ...output.writer import AnswerFormat
from ...settings import printable
from .answers import ResponseAnswer
from .conversations import ConversationStore
from .schemas import Object
from .stored import RUNNING, StoredResponse, keeper_of, not_found, record_key

MOST_RUNNING = 256  # that are remembered after their end, for those who read their events
CANCELLED = 499
GRAIN = 8  # characters of an event that may be asked for again
log = logging.getLogger("http")
AtEnd = Callable[[Object], object]


class RunningResponse(Protocol):
    """One of this frontend's that is in the background; kept here for a while after its end."""

    answer: ResponseAnswer
    job: Job
    task: asyncio.Task[None] | None
    request_id: str  # empty where its slot has it

    def begin(self) -> None:
        """It is kept: from here on it goes on."""

    def keep(self, engine: Engine, key: Key) -> None:
        """A successor finds its slots by this key."""

    def body(self) -> Object:
        """The response object, once it has ended."""

    def failed(self, error: ApiError) -> Object:
        """The same of one that failed."""

    def read(self, engine: Engine, after: int, at_end: AtEnd) -> tuple[Job, AnswerFormat]:
        """For one who reads its events behind this one: `at_end` is given the body before he has the last, unless it is
        kept by then. ApiError 404 where they are no longer kept."""

    def stop_reading(self, engine: Engine, job: Job) -> None:
        """The reader of this job is gone."""

    def leave(self, engine: Engine) -> None:
        """It has ended, or shall not be."""

    def abort(self, engine: Engine, key: Key, error: ApiError) -> None:
        """It ends now, for this reason."""


@dataclass
class RunningAnswer:
    """One whose answer is in one slot."""

    asked: PreparedRequest
    answer: ResponseAnswer
    job: Job
    task: asyncio.Task[None] | None = None
    request_id: str = ""

    def begin(self) -> None:
        """It has begun."""

    def keep(self, engine: Engine, key: Key) -> None:
        engine.keep(key, self.job, self.job.seed, self.answer.created)

    def body(self) -> Object:
        return ResponsesFormat(self.answer, self.job).whole()

    def failed(self, error: ApiError) -> Object:
        return ResponsesFormat(self.answer, self.job).failed_body(error)

    def read(self, engine: Engine, after: int, at_end: AtEnd) -> tuple[Job, AnswerFormat]:
        """As the slot has it, in pieces of always the same length."""
        if not engine.has(self.job.refs):
            raise ApiError(404, "The events of this response are no longer kept.", "stream")
        job = self.asked.new_job()
        job.seed = self.job.seed
        job.choices[0].grain = GRAIN
        engine.submit(job, self.job.refs)
        return job, ResponsesFormat(self.answer, job, after, at_end)

    def stop_reading(self, engine: Engine, job: Job) -> None:
        engine.release(job)

    def leave(self, engine: Engine) -> None:
        engine.release(self.job)

    def abort(self, engine: Engine, key: Key, error: ApiError) -> None:
        engine.abort(self.job, key)
        self.job.fail(error)


def response_id(frontend: int, seed: int, created: int) -> str:
    """An id that says who keeps the response."""
    return f"{frontend:02x}{seed:016x}{created:08x}"


def seed_of(key: str) -> int:
    """What such an id was made of."""
    return int(key[2:18], 16)


def owner_of(name: str) -> int:
    """The frontend that keeps the response of this id; 404 for what is no id of ours."""
    owner = keeper_of(name, "resp_")
    if owner is None:
        raise not_found(name)
    return owner


class ResponseStore:
    """One frontend's."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.conversations = ConversationStore(engine)
        self.running: dict[str, RunningResponse] = {}

    def put(self, stored: StoredResponse) -> bool:
        """Keep it; False if it is too large."""
        return self.engine.put(record_key("response", stored.id), stored.encode())

    def get(self, name: str, client: str) -> StoredResponse:
        """The response of this id; 404 if it is not kept (any more), or another client's."""
        found = self.find(name, client)
        if found is None:
            raise not_found(name)
        return found

    def find(self, name: str, client: str) -> StoredResponse | None:
        found = self._load(name)
        return found if found is not None and found.client == client else None

    def _load(self, name: str) -> StoredResponse | None:
        """The same, whosever it is, and whichever frontend keeps it."""
        try:
            owner = owner_of(name)
        except ApiError:  # no id of ours
            return None
        if owner >= self.engine.frontends:
            return None
        data = self.engine.get(record_key("response", name), owner)
        return StoredResponse.decode(data) if data else None

    def begin(self, background: Background, running: RunningResponse, stored: StoredResponse) -> None:
        """It goes on in the background from here."""
        encoded = msgspec.msgpack.encode(background)
        if not self.put(stored) or not self.engine.put(record_key("background", background.id), encoded):
            running.leave(self.engine)
            raise ApiError(413, "This request is too large to be run in the background.", "background")
        running.keep(self.engine, self._slots(background.id))
        running.begin()
        self._watch(background.id, running, stored)

    def check_room(self) -> None:
        """ApiError 503 where as many run as may. Those whose answers are in slots are bounded by these."""
        if sum(not one.job.done.done() for one in self.running.values()) >= MOST_RUNNING:
            raise overloaded("The server has as many responses in the background as it takes. Try again soon.")

    def begin_again(
        self, left: Background, engine: Engine, asked: PreparedRequest, answer: ResponseAnswer
    ) -> RunningAnswer:
        """A predecessor's, in the slots that it had, or in new ones."""
        kept = self.engine.kept(self._slots(left.id))
        running = RunningAnswer(asked, answer, asked.new_job())
        running.job.seed = left.seed
        engine.submit(running.job, kept.refs if kept is not None else None)
        if kept is None:
            running.keep(self.engine, self._slots(left.id))
        return running

    def _slots(self, name: str) -> Key:
        """By which those of an answer are found again."""
        return Key(record_key("slots", name), b"", self.engine.index)

    def go_on(self, make: Callable[[Background, str], RunningResponse]) -> None:
        """What a predecessor had in the background goes on."""
        for data in self.engine.kept_payloads():
            try:
                left = msgspec.msgpack.decode(data, type=Background)
            except msgspec.DecodeError:  # a record of another kind
                continue
            stored = self._load(left.id)
            if stored is None or stored.status not in RUNNING or left.id in self.running:
                continue
            try:
                running = make(left, stored.client)
            except ApiError as error:  # what it goes on from may be forgotten
                self._fail(left.id, stored, error)
                continue
            running.begin()
            self._watch(left.id, running, stored)

    def _fail(self, name: str, stored: StoredResponse, error: ApiError) -> None:
        log.error("%s cannot go on: %s", name, printable(error.message))
        reason = {"code": "server_error", "message": error.message}
        self.put(msgspec.structs.replace(stored, response=stored.response | {"status": "failed", "error": reason}))
        self.engine.put(record_key("background", name), b"")

    def _watch(self, name: str, running: RunningResponse, stored: StoredResponse) -> None:
        async def wait() -> None:
            try:
                body = await _ended(running)
            finally:
                running.leave(self.engine)
            self._end(name, stored, body)
            self.engine.put(record_key("background", name), b"")

        running.task = asyncio.get_running_loop().create_task(wait())
        self.running[name] = running
        while len(self.running) > MOST_RUNNING and (old := self._oldest_ended()) is not None:
            del self.running[old]

    def end(self, name: str, body: Object) -> None:
        """It is found as it has ended, before somebody is told so: who asks next may ask another frontend."""
        stored = self._load(name)
        if stored is not None:
            self._end(name, stored, body)

    def _end(self, name: str, stored: StoredResponse, body: Object) -> None:
        """Unless it has ended before, as by `cancel`, or was deleted."""
        current = self._load(name)
        if name not in self.running or (current is not None and current.status not in RUNNING):
            return
        ended = msgspec.structs.replace(stored, response=body)
        self.conversations.add_response(ended)  # before anybody finds it ended
        if not self.put(ended):
            self._fail(name, stored, ApiError(500, "The response is too large to be kept."))

    def _oldest_ended(self) -> str | None:
        return next((name for name, one in self.running.items() if one.task is not None and one.task.done()), None)

    def cancel(self, name: str, client: str) -> StoredResponse:
        """Whoever asks for it from now on is told that it was cancelled."""
        stored = self.get(name, client).cancelled()
        running = self.running.get(name)
        if stored.status == "cancelled" and running is not None and not running.job.done.done():
            self.put(stored)
            self._abort(name, running)
        return stored

    def delete(self, name: str, client: str) -> None:
        """It is not found any more; what still runs is ended."""
        self.get(name, client)
        running = self.running.pop(name, None)
        self.engine.put(record_key("response", name), b"")
        if running is not None and not running.job.done.done():
            self._abort(name, running)

    def _abort(self, name: str, running: RunningResponse) -> None:
        running.abort(self.engine, self._slots(name), ApiError(CANCELLED, "It was cancelled."))


async def _ended(running: RunningResponse) -> Object:
    """The response object, once it has ended or failed."""
    try:
        try:
            await asyncio.shield(running.job.done)
            return running.body()
        except ApiError as error:
            return running.failed(error)
    except Exception:  # of a parser; nobody else waits for it, who would be told
        return running.failed(running.job.give_up())
