"""Requests with pictures and sounds on their way to a media actor: their bytes in the inbox, until it is done with
them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from actorserve.http.errors import ApiError, overloaded
from actorserve.shm.media.arena import MediaArena
from actorserve.shm.media.inbox import InboxRegion
from actorserve.shm.table.table import slot_of

from ..protocol.media import MediaSource
from ..protocol.messages import MediaRequest, Prepare, Render
from ..protocol.topics.calls import Tokenize
from ..protocol.topics.prompts import Prompt
from ..runtime.process import Context

HEAD_BYTES = 8  # of a record: how long the request in it is
MORE = 128  # of what else stands in it: the renderer's name, and the heads of lists
PLACE_BYTES = 18  # of a source, where its bytes are and how many
REF_BYTES = 9


class MediaGate:
    """One frontend's."""

    def __init__(self, context: Context) -> None:
        arena = context.media()
        assert arena is not None
        self._context = context
        self._arena: MediaArena = arena
        self._inbox = InboxRegion(context.files["media_inbox"], *context.system.files.media_inbox, context.spec.index)
        self._actors = context.system.of_kind("media")
        self.names = [actor.name for actor in self._actors]
        self._records: dict[int, tuple[int, list[int]]] = {}  # by each ref, or call: place, and all whose record it is

    @property
    def used(self) -> int:
        """Bytes of the inbox that wait for a media actor."""
        return self._inbox.used

    def reserve(
        self, message: Render | Tokenize, sources: Sequence[MediaSource], refs: int = 0, beside: int = 0
    ) -> Record:
        """Room in the inbox for all that a media actor must know; ApiError 503 if there is none, 413 if there never is
        beside so many bytes that others of its request take. The message has no refs yet, of which there will be so
        many.
        """
        record = Record(message, sources)
        size = record.most_bytes + REF_BYTES * refs
        record.taken = self._inbox.taken_by(size)
        taken = record.taken + beside
        if taken > self._inbox.room:
            field = max(sources, key=lambda source: len(source.data)).field
            text = f"what the request has of pictures and sounds takes {taken} bytes, of this prompt most for this"
            raise ApiError(413, f"{field}: {text}; at most {self._inbox.room} are taken.", field)
        place = self._inbox.reserve(size)
        if place is None:
            raise overloaded("The server holds as many bytes of pictures as it takes. Try again soon.")
        record.place = place
        return record

    def render(self, renderer: str, record: Record, refs: list[int]) -> None:
        """The request of these slots: what is told of the record stands with the first of them."""
        assert isinstance(record.message, Render)
        owner = refs[0]
        message = msgspec.structs.replace(record.message, refs=refs)
        self._put(owner, renderer, message, record, refs)
        self._arena.ask(owner, record.place)
        actor = self._context.system.media_of(slot_of(owner), self._context.table.model(owner))
        self._context.post_alone(actor, Prepare(owner, record.place))

    def ask(self, renderer: str, message: Tokenize, sources: Sequence[MediaSource], model: int = 0) -> None:
        """The same of a question to a model that has no slot."""
        record = self.reserve(message, sources)
        self._put(message.call, renderer, message, record, [message.call])
        names = [actor.name for actor in self._actors if actor.model == model]
        name = names[message.call % len(names)]
        self._context.post_alone(name, Prepare(message.call, record.place, is_call=True))

    def _put(self, owner: int, renderer: str, message: Render | Tokenize, record: Record, owners: list[int]) -> None:
        sources, at = [], 0
        for source in record.sources:
            sources.append(msgspec.structs.replace(source, data=b"", offset=at, length=len(source.data)))
            at += len(source.data)
        packed = msgspec.msgpack.encode(MediaRequest(renderer, message, sources))
        parts = [len(packed).to_bytes(HEAD_BYTES, "little"), packed, *(source.data for source in record.sources)]
        self._inbox.put(owner, record.place, parts)
        self._records |= dict.fromkeys(owners, (record.place, owners))

    def done(self, owner: int) -> None:
        """Its media actor has no more to do with it, as the first answer says, or nobody waits for that."""
        found = self._records.get(owner)
        if found is None:
            return
        place, owners = found
        for one in owners:
            del self._records[one]
        self._inbox.free(place)

    def give_back(self, record: Record) -> None:
        """It is not used after all."""
        self._inbox.free(record.place)


class Record:
    """One that is about to be written."""

    def __init__(self, message: Render | Tokenize, sources: Sequence[MediaSource]) -> None:
        self.message, self.sources = message, sources
        self.place = -1
        self.taken = 0  # bytes of the inbox
        named = [msgspec.structs.replace(source, data=b"") for source in sources]
        data = sum(len(source.data) + PLACE_BYTES for source in sources)
        self.most_bytes = HEAD_BYTES + MORE + data + len(msgspec.msgpack.encode((message, named)))


def taken_out(prompt: Prompt) -> tuple[Prompt, list[MediaSource]]:
    """(the prompt without them, its pictures and sounds)."""
    media = getattr(prompt, "media", None)
    if not media:
        return prompt, []
    return msgspec.structs.replace(prompt, media=[]), media
