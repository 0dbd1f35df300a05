"""The media actor: fetches, reads and processes pictures and sounds of requests, for the model, and hands these on to
a renderer.

A Prepare is a hint. What is to be done stands with the slot (shm/media/arena.py) and in the frontend's inbox
(shm/media/inbox.py), until this actor has said there that it is done: so a successor finds all that is not. It works
on one picture at a time, or a part of a film, in its own turns, while others are fetched by a thread (fetch.py). One
that it dies of three times, or stands still over, costs its own request (runtime/in_flight.py). What is processed stays
in the arena, and is found again by a digest of its bytes.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator

import msgspec

from actorserve.shm.media.entries import MediaEntries
from actorserve.shm.media.inbox import MediaInbox
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import slot_of

from ..model.vision.processing import without_torch
from ..options.config import Config
from ..protocol.messages import Failed, Prepare, ToMedia
from ..protocol.topics.administration import ForgetMedia, MediaForgotten
from ..protocol.topics.calls import frontend_of_call
from ..runtime.in_flight import CALL, GivenUp, request_name
from ..runtime.process import IDLE_S, Actor, Context, run
from ..telemetry.gauges import MediaGauge
from .fetch import Fetcher, check_url
from .part_maker import Made, PartMaker
from .refused import MediaRefused
from .requests import GONE, Part, Pending, read_request

ROOM_S = 20.0  # what a request waits for memory, which running ones have
NICE = 10  # where cores are short, streams go first: whoever sends a picture waits anyway
POLL_S = 0.05  # between two looks for what nobody tells: a client that has gone, memory that is free again
NO_ROOM = (
    "the memory for pictures is full of those of running requests, and none was free within {:g} s; "
    "--media-memory-bytes makes it larger"
)
TOO_LONG = (
    "With what is written for its pictures and sounds the request has {} bytes; other processes of the server are told "
    "at most {}."
)


class MediaActor(Actor):
    """Adapter between the rings, the arena, and what reads pictures."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.table = context.table
        self.stamps = Stamps(context.table)
        arena = context.media()
        assert arena is not None, "there is no media actor of a model that takes no pictures"
        self.arena = arena
        self.inbox = MediaInbox(context.files["media_inbox"], *context.system.files.media_inbox)
        self.entries = MediaEntries(arena, context.spec.index, self.is_running)
        self.maker = PartMaker(context, self.entries, self.inbox)
        self.fetcher = Fetcher(context.config, lambda: os.eventfd_write(context.eventfds[context.name], 1))
        self._pending: dict[int, Pending] = {}  # by ref or call, in the order in which they came
        self._told: list[Pending] = []  # posted, and not in the lanes yet
        self._find_pending()

    # --- what is to be done --------------------------------------------------------------------------------------

    def _find_pending(self) -> None:
        """What a predecessor was told of and has not done."""
        for ref in self.table.current_refs(0, self.table.slots):
            if self.context.system.media_of(slot_of(ref), self.table.model(ref)) == self.context.name:
                place = self.arena.asked(ref)
                if place is not None and not self.arena.is_finished(ref):
                    self._take(Prepare(ref, place))

    def handle(self, message: ToMedia) -> None:
        match message:
            case Prepare():
                self._take(message)
            case ForgetMedia():
                count = self.entries.forget()
                self.maker.forget()
                self.context.log.info("%d processed pictures are forgotten", count)
                self.context.post(f"frontend-{frontend_of_call(message.call)}", MediaForgotten(message.call))

    def _take(self, message: Prepare) -> None:
        """One more, unless it is here already, or done."""
        owner = message.owner
        if owner in self._pending or (not message.is_call and self.arena.is_finished(owner)):
            return
        found = read_request(self.inbox, owner, message.place)
        if found is None:  # another use of the slot, or another life of the frontend, has come meanwhile
            return
        request, parts = found
        pending = Pending(owner, message.is_call, request, message.place, parts)
        self._pending[owner] = pending
        try:
            for part in parts:
                if part.source.url:
                    if not part.source.url.lower().startswith("file:"):
                        check_url(part.source.url, self.context.config)
                    part.fetched = self.fetcher.fetch(part.source.url)
                    self._count(MediaGauge.FETCHED)
        except MediaRefused as error:
            self._refuse(pending, part, error)

    # --- one turn ------------------------------------------------------------------------------------------------

    @property
    def wait_s(self) -> float:  # type: ignore[override]
        """Not long while there is something to do that nobody wakes it for."""
        if not self._pending:
            return IDLE_S
        ready = next((one for one in self._pending.values() if one.has_come), None)
        return POLL_S if ready is None or ready.waits_since is not None else 0.0

    def do_work(self) -> int:
        """One picture, or a part of a film, of the request that came first of those whose bytes are all here."""
        done = self._drop_unwanted()
        pending = next(self._ready(), None)
        if pending is not None:
            done += self._work_on(pending)
        self.context.status.set_gauge(MediaGauge.WAITING, len(self._pending))
        self.entries.let_go()
        self.context.status.set_gauge(MediaGauge.USED, self.entries.used)
        self.context.status.set_gauge(MediaGauge.HELD, self.entries.held_bytes)
        return done

    def _ready(self) -> Iterator[Pending]:
        return (one for one in self._pending.values() if one.has_come)

    def _drop_unwanted(self) -> int:
        """Those whose clients have gone."""
        gone = [one for one in self._pending.values() if not one.is_call and not any(map(self.is_wanted, one.refs))]
        for pending in gone:
            self._end(pending, MediaRefused("the client has gone", GONE), None)
        return len(gone)

    def _work_on(self, pending: Pending) -> int:
        """Its next picture; returns whether anything was done. Whatever goes wrong is answered: nobody else's fails."""
        part = next((one for one in pending.parts if one.prepared is None), None)
        if part is None:
            self._hand_on(pending)
            return 1
        in_flight = CALL | pending.owner if pending.is_call else pending.owner
        try:
            with self.context.in_flight.hold(in_flight):
                return self._prepare(pending, part)
        except GivenUp as error:
            self.context.log.error(
                "%s is given up: %s", self._name(pending), "it hung" if error.hung else "it is deadly"
            )
            if error.hung:
                limit = self.context.config.hang_timeout
                self._refuse(pending, part, MediaRefused(f"it could not be read within {limit:g} s.", 422))
            else:
                self._refuse(pending, part, MediaRefused("actors have died of it again and again.", 500))
        return 1

    def _prepare(self, pending: Pending, part: Part) -> int:
        try:
            made = self._make(pending, part)
        except MediaRefused as error:
            self._refuse(pending, part, error)
            return 1
        except Exception:
            self.context.log.exception("a picture of %s cannot be processed", self._name(pending))
            self._refuse(pending, part, MediaRefused("it cannot be processed.", 500))
            return 1
        if made:
            pending.waits_since = None
            return 1
        now = time.monotonic()
        pending.waits_since = pending.waits_since or now
        if now - pending.waits_since > ROOM_S:
            self._refuse(pending, part, MediaRefused(NO_ROOM.format(ROOM_S), 503))
        return 0

    def _make(self, pending: Pending, part: Part) -> bool:
        """The part's entry, or one step towards it; False if there is no room for it now."""
        made = self.maker.make(pending, part)
        if made is Made.STEP:
            self._let_others_go_first(pending)
        elif made is Made.ENTRY:
            self._pin()
        return made is not Made.NO_ROOM

    def _let_others_go_first(self, pending: Pending) -> None:
        """A film takes many turns, and pictures of others need not wait for the last of them."""
        del self._pending[pending.owner]
        self._pending[pending.owner] = pending
        self._pin()

    def _pin(self) -> None:
        """What is made for requests that wait for more stays."""
        parts = (part for pending in self._pending.values() for part in pending.parts)
        self.entries.pin(part.entry for part in parts if part.entry is not None)

    # --- the end of one ------------------------------------------------------------------------------------------

    def _hand_on(self, pending: Pending) -> None:
        """All of its pictures are there: these slots have them, and a renderer goes on."""
        message, renderer = pending.message(), pending.request.renderer
        size, most = len(msgspec.msgpack.encode(message)), self.context.outboxes[renderer].max_message
        if size > most:
            self._count(MediaGauge.REFUSED)
            self._end(pending, MediaRefused(TOO_LONG.format(size, most), 413), None)
            return
        entries = [part.entry for part in pending.parts if part.entry is not None]
        self.entries.hold(pending.refs, entries)
        self.context.post_alone(renderer, message)  # type: ignore[arg-type]
        self._forget(pending)
        self._pin()
        self._told.append(pending)

    def _refuse(self, pending: Pending, part: Part, error: MediaRefused) -> None:
        """The request cannot be, for what is wrong with this part."""
        self._count(MediaGauge.REFUSED)
        self._end(pending, error, part.source.field)

    def _end(self, pending: Pending, error: MediaRefused, field: str | None) -> None:
        self._forget(pending)
        self._pin()
        self._told.append(pending)
        message = f"{field}: {error}" if field else str(error)
        if pending.is_call:
            caller = f"frontend-{frontend_of_call(pending.owner)}"
            self.context.post(caller, Failed([], error.status, message, field, pending.owner))
        else:
            self._fail_refs(pending.refs, MediaRefused(message, error.status), field)

    def _fail_refs(self, refs: list[int], error: MediaRefused, field: str | None) -> None:
        frontend = self.context.system.frontend_of(slot_of(refs[0]))
        self.context.post(frontend, Failed(refs, error.status, str(error), field))

    def _forget(self, pending: Pending) -> None:
        pending.let_go(self.fetcher)
        del self._pending[pending.owner]

    def published(self) -> None:
        """Whoever goes on was told: a successor need not do these again."""
        for pending in self._told:
            if not pending.is_call:
                self.arena.finish(pending.owner)
        self._told.clear()

    # --- who is who ----------------------------------------------------------------------------------------------

    def is_wanted(self, ref: int) -> bool:
        return self.table.is_current(ref) and not self.table.is_cancelled(ref)

    def is_running(self, ref: int) -> bool:
        """Does this use of a slot still run? What it holds stays until then."""
        return self.table.is_current(ref) and not self.table.finish(ref) and not self.stamps.get(ref, Stamp.END_TOLD)

    def _name(self, pending: Pending) -> object:
        return f"call {pending.owner}" if pending.is_call else request_name(self.table, pending.owner)

    def _count(self, gauge: MediaGauge, more: int = 1) -> None:
        self.context.status.add(gauge, more)


def import_early() -> None:
    """What is imported only as it runs, by whoever forks media actors."""
    import_late(Config())
    with without_torch():
        importlib.import_module("transformers.models.auto.image_processing_auto")
        importlib.import_module("transformers.image_processing_backends")
    for name in ("PIL.Image", "PIL.ImageOps", "aiohttp"):
        importlib.import_module(name)


def import_late(config: Config) -> None:
    """All modules of this package: who tries new code wants to know whether it can be had."""
    for name in (
        "embeds",
        "expansion",
        "fetch",
        "films.processor",
        "headers",
        "part_maker",
        "pictures",
        "processors",
        "requests",
        "sound",
    ):
        importlib.import_module(f".{name}", __package__)


def main(context: Context) -> None:
    """Run a media actor until it is told to stop."""
    os.nice(NICE)
    actor = MediaActor(context)
    try:
        run(actor, context)
    finally:
        actor.fetcher.close()
