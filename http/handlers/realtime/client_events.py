"""What a client asks for over a realtime connection: an event each."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode
from ...realtime.audio import InputBuffer
from ...realtime.events import error_event, rate_limits
from ...realtime.fields import (
    AudioAppend,
    AudioCommit,
    ItemCreate,
    ItemNamed,
    ItemTruncate,
    Object,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    SessionFields,
    SessionUpdate,
    fields_of,
    without_beta,
)
from ...realtime.items import as_input, checked_item, input_of, sound_item, without_sounds
from ...realtime.response_events import BY_CLIENT
from ...realtime.session import MOST_STATE, TRANSCRIPTION, Active, Session, check_response
from ...realtime.turns import BufferStart, TurnBuffer
from .turn_events import TurnEvents

if TYPE_CHECKING:
    from .connection import RealtimeConnection
    from .generation import Generation

Handler = Callable[[bytes], Awaitable[list[Object]]]


class ClientEvents:
    """Of one connection. Each returns what is told at once; ApiError names what cannot be."""

    def __init__(self, link: RealtimeConnection) -> None:
        self._link = link
        self.buffer = InputBuffer(link.sounds)
        self.turns: TurnBuffer | None = None  # the buffer, where turns are looked for in it
        media = link.settings.media
        self._hears = media is not None and "audio" in media.most
        self._handlers: dict[str, Handler] = {
            "session.update": self._update,
            "transcription_session.update": self._update,
            "conversation.item.create": self._create_item,
            "conversation.item.delete": self._delete_item,
            "conversation.item.retrieve": self._retrieve_item,
            "conversation.item.truncate": self._truncate_item,
            "input_audio_buffer.append": self._append,
            "input_audio_buffer.commit": self._commit,
            "input_audio_buffer.clear": self._clear,
            "response.create": self._create_response,
            "response.cancel": self._cancel_response,
        }

    async def heed(self, kind: str, raw: bytes) -> list[Object]:
        """An event of this type."""
        handler = self._handlers.get(kind)
        if handler is None:
            text = f"type: {kind:.64} is not supported. There are: {', '.join(self._handlers)}."
            raise bad_request(text, "type")
        return await handler(raw)

    def listen(self) -> None:
        """Begin with a buffer as the session says."""
        session, sounds = self._link.session, self._link.sounds
        self.buffer.release()
        self.turns = None
        if session.turns is not None:
            self.turns = TurnBuffer(sounds, session.turns, session.rate, session.heard)
        self.buffer = self.turns or InputBuffer(sounds)

    @property
    def heard(self) -> BufferStart:
        """Where the buffer begins, to be written down."""
        return self._link.session.heard if self.turns is None else self.turns.heard

    def await_turn(self, waits: bool) -> None:
        """A response has ended, or begun: whoever says nothing behind one may be spoken to."""
        if self.turns is not None:
            self.turns.await_turn(waits)

    # --- events: the session -----------------------------------------------------------------------------------------

    def _changed(self, change: Callable[[Session], list[Object]]) -> list[Object]:
        """Change a copy, which counts if all is well: what cannot be changes nothing."""
        session = msgspec.msgpack.decode(msgspec.msgpack.encode(self._link.session), type=Session)
        events = change(session)
        if len(msgspec.msgpack.encode(session)) > MOST_STATE:
            text = f"A session takes at most {MOST_STATE} bytes, its conversation included: delete some of its items."
            raise ApiError(400, text, None, "conversation_full")
        session.active = self._link.session.active
        self._link.session = session
        return events

    async def begin(self, given: bytes) -> list[Object]:
        """What a client secret has of the session; what could not be of it, any more, is told."""
        try:
            await self._update(msgspec.json.encode({"session": msgspec.Raw(given)}))
        except ApiError as error:
            return [error_event(error, None)]
        return []

    async def _update(self, raw: bytes) -> list[Object]:
        event = decode(SessionUpdate, raw)
        plain = event.session is None and event.model is not None
        given = fields_of(SessionFields, without_beta(event.session or {}), "session")
        model = given.model or event.model
        if given.audio is not None and given.audio.input is not None and given.audio.input.transcription:
            model = given.audio.input.transcription.model or model
        self._link.makes.check_model(model, self._link.session)
        await self._link.makes.want_adapter(model)

        before = self._link.session

        def change(session: Session) -> list[Object]:
            if plain:  # vLLM's client: its sounds have the model's own rate
                session.plain, session.rate = True, 16_000
            session.model = model or session.model
            session.update(given)
            self._link.makes.check(session)
            self._check_turns(before, session)
            return [{"type": "session.updated", **session.named(), "session": session.told()}]

        events = self._changed(change)
        if (before.turns, before.rate) != (self._link.session.turns, self._link.session.rate):
            self.listen()
        return events

    def _check_turns(self, before: Session, session: Session) -> None:
        """A sound that has begun goes on as it has."""
        if (before.turns, before.rate) == (session.turns, session.rate):
            return
        if self.turns.speaks if self.turns is not None else self.buffer.size:
            text = "session.audio.input: a sound is being sent; commit it, or clear it, before format or turn_detection"
            raise bad_request(f"{text} change.", "session.audio.input")
        if session.turns is not None and session.kind != TRANSCRIPTION and not self._hears:
            name = "session.audio.input.turn_detection"
            raise bad_request(f"{name}: this model takes no sounds.", name)
        if session.turns is not None and session.turns.idle_timeout_ms and session.kind == TRANSCRIPTION:
            name = "session.audio.input.turn_detection.idle_timeout_ms"
            raise bad_request(f"{name}: nobody is answered in a session that is a transcription.", name)
        session.heard = BufferStart()

    # --- events: the conversation ------------------------------------------------------------------------------------

    async def _create_item(self, raw: bytes) -> list[Object]:
        event = decode(ItemCreate, raw)

        def change(session: Session) -> list[Object]:
            item = checked_item(event.item, session, self._hears)
            before = session.insert(item, event.previous_item_id)
            if session.kind == TRANSCRIPTION:
                raise bad_request("item: this session writes sounds down, and holds no conversation.", "item")
            return added(item, before)

        return self._changed(change)

    async def _delete_item(self, raw: bytes) -> list[Object]:
        name = decode(ItemNamed, raw).item_id
        del self._link.session.items[self._link.session.place_of(name)]
        return [{"type": "conversation.item.deleted", "item_id": name}]

    async def _retrieve_item(self, raw: bytes) -> list[Object]:
        item = self._link.session.items[self._link.session.place_of(decode(ItemNamed, raw).item_id)]
        return [{"type": "conversation.item.retrieved", "item": item}]

    async def _truncate_item(self, raw: bytes) -> list[Object]:
        name = decode(ItemTruncate, raw).item_id
        self._link.session.place_of(name)
        text = "item_id: there is no sound to cut: answers are texts here. Delete the item, and create a shorter one."
        raise bad_request(text, "item_id")

    # --- events: sounds ----------------------------------------------------------------------------------------------

    async def _append(self, raw: bytes) -> list[Object]:
        if self._link.session.kind != TRANSCRIPTION and not self._hears:
            raise bad_request("audio: this model takes no sounds.", "audio")
        self.add_sound(raw)
        try:
            self._link.sounds.check(self.buffer.size)
        except ApiError:  # all of it goes: where the buffer is empty is told to a successor, not what was refused
            self.buffer.clear()
            self._link.emptied()
            raise
        if self.turns is None:
            return []
        return await TurnEvents(self._link, self, self.turns).heed()

    def add_sound(self, raw: bytes) -> None:
        upgraded = self._link.upgraded
        self.buffer.append(decode(AudioAppend, raw).audio, 0 if upgraded is None else upgraded.start_of_message())

    async def _clear(self, raw: bytes) -> list[Object]:
        self.buffer.clear()
        return [{"type": "input_audio_buffer.cleared"}]

    def is_end_of_sound(self, raw: bytes) -> bool:
        """vLLM's clients say with a first commit that there will be a sound."""
        return not self._link.session.plain or decode(AudioCommit, raw).final is True

    async def _commit(self, raw: bytes) -> list[Object]:
        if not self.is_end_of_sound(raw):
            return []
        samples = self.buffer.peek()
        if self._link.session.kind == TRANSCRIPTION:
            await self._link.free.wait()
            await self._transcribe(samples)
            return []

        events = self.insert(self._link.session.new_item_id(), samples)
        self.buffer.clear()
        self._link.committed()
        return events

    async def _transcribe(self, samples: bytes) -> None:
        self._link.check_free()
        now = await self.hear(self._link.session.new_item_id(), samples, self.buffer.place or 0)
        self.buffer.clear()
        self._link.heeded()
        self._link.committed()
        self._link.under_way(now, self.committed(now.active.id, now))

    async def hear(self, item: str, samples: bytes, place: int | None) -> Generation:
        """Begin to write a sound down, as this item. `place`: where it begins in what the client has sent; None if that
        is told of only when nobody will want it again.
        """
        active = Active(id=item, seed=secrets.randbits(64), created=int(time.time()))
        active.sound_from = place
        now = await self._link.makes.transcript(self._link.session, active, samples)
        await self._link.makes.begin(now, self._link.account(), None)
        return now

    def committed(self, name: str, now: Generation) -> list[Object]:
        """What is told of a sound that is being written down."""
        session, item = self._link.session, sound_item(name, None)
        before = session.last_id
        session.items = [item]  # of which the next one says that it comes behind it
        event = {"type": "input_audio_buffer.committed", "item_id": name, "previous_item_id": before}
        return [event, *added(item, before), *rate_limits(now.job.headers)]

    def insert(self, name: str, samples: bytes) -> list[Object]:
        """A sound becomes an item of the conversation."""

        def change(session: Session) -> list[Object]:
            item, before = sound_item(name, samples), session.last_id
            session.insert(item, None)
            committed = {"type": "input_audio_buffer.committed", "item_id": item["id"], "previous_item_id": before}
            return [committed, *added(item, before)]

        return self._changed(change)

    # --- events: responses -------------------------------------------------------------------------------------------

    async def _create_response(self, raw: bytes) -> list[Object]:
        if self._link.session.kind == TRANSCRIPTION:
            raise bad_request("type: this session writes sounds down, and makes no responses.", "type")
        self._link.check_free()
        given = fields_of(ResponseFields, without_beta(decode(ResponseCreate, raw).response or {}), "response")
        check_response(given)
        now = await self.answer(given)
        self._link.heeded()
        self._link.under_way(now, [*now.first(), *rate_limits(now.job.headers)])
        return []

    async def answer(self, given: ResponseFields) -> Generation:
        """Begin to answer the conversation."""
        session = self._link.session
        items = session.items if given.input is None else input_of(given.input, session, self._hears)
        if not items:
            raise bad_request(
                "response: the conversation is empty: create an item, or give response.input.", "response"
            )
        seed, created = secrets.randbits(64), int(time.time())
        active = Active(id=f"resp_{seed:016x}{created:08x}", seed=seed, created=created, metadata=given.metadata)
        active.apart = given.conversation == "none"
        active.body = session.body_of(given, as_input(items, session.rate))
        now = self._link.makes.response(session, active)
        await self._link.makes.begin(now, self._link.account(), None)
        return now

    async def _cancel_response(self, raw: bytes) -> list[Object]:
        wanted, now = decode(ResponseCancel, raw).response_id, self._link.now
        if now is None or now.active.windows or wanted not in (None, now.active.id):
            text = "response_id: no such response is being generated."
            raise ApiError(400, text, "response_id", "response_cancel_not_active")
        self._link.heeded()
        self._link.finish(now, cancelled=BY_CLIENT)
        return []


def added(item: Object, before: str | None) -> list[Object]:
    shown = without_sounds(item)
    return [
        {"type": f"conversation.item.{what}", "previous_item_id": before, "item": shown} for what in ("added", "done")
    ]
