"""What becomes of one picture, film or sound of a request: its entry in the arena, found by a digest or made anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import Enum

import msgspec

from actorserve.shm.media.arena import ENTRIES
from actorserve.shm.media.entries import Entry, MediaEntries, TooLarge
from actorserve.shm.media.inbox import MediaInbox

from ..protocol.media import CACHED, EMBEDS, FRAMES, PIXELS, MediaSource, MediaTensor, PreparedMedia
from ..runtime.process import Context
from ..telemetry.gauges import MediaGauge
from .fetch import too_long
from .processors import Processed, check_tokens, make_processors
from .refused import MediaRefused
from .requests import Part, Pending, Work, digest_of, name_of


class Made(Enum):
    """How far a part has come."""

    ENTRY = "its entry is there"
    STEP = "a step towards it is done"
    NO_ROOM = "there is no memory for it now"


class PartMaker:
    """Makes entries of parts, and knows those that clients call by names."""

    def __init__(self, context: Context, entries: MediaEntries, inbox: MediaInbox) -> None:
        self._context, self._entries, self._inbox = context, entries, inbox
        config = context.config
        self.processors = make_processors(config, context.model)
        self._settings = (config.mm_processor_kwargs or "").encode() + (config.media_io_kwargs or "").encode()
        self._describe = msgspec.msgpack.Decoder(PreparedMedia).decode
        described = (self._describe(entries.description(entry)) for entry in entries.all())
        self._names = {one.name: one.digest for one in described if one.name}  # digests, by what clients call them

    def forget(self) -> None:
        """The names; entries are another's."""
        self._names.clear()

    def make(self, pending: Pending, part: Part) -> Made:
        """The part's entry, found or made, or one step towards it. MediaRefused says why it cannot be."""
        work = part.work or self._begin(pending, part)
        now = time.monotonic_ns()
        entry = self._entries.find(work.digest, now)
        if entry is None:
            if work.processed is None:
                work.processed = next(work.steps)
                if work.processed is None:
                    return Made.STEP
                check_tokens(work.processed.count, self._context.model.max_model_len)
            entry = self._store(part, work.digest, work.processed, now)
            if entry is None:
                return Made.NO_ROOM
        part.entry, part.work = entry, None
        part.prepared = self._describe(self._entries.description(entry))
        return Made.ENTRY

    def _begin(self, pending: Pending, part: Part) -> Work:
        """What is to be made of a part."""
        source, most = part.source, self._context.config.max_media_bytes
        name = name_of(source, pending.request)
        if source.form == CACHED:
            return self._named(part, name)
        data = part.read(self._inbox, pending.owner, pending.place)
        if len(data) > most and source.form not in (PIXELS, FRAMES, EMBEDS):
            raise too_long(most)
        digest = digest_of(source, data, self._settings)
        if name:
            self._remember(name, digest)
        self._count(MediaGauge.QUERIES)
        self._count(MediaGauge.HITS, self._entries.find(digest, time.monotonic_ns()) is not None)
        part.work = Work(digest, self._steps(data, source), name)
        return part.work

    def _named(self, part: Part, name: bytes) -> Work:
        """What was sent before under this name. There are no bytes of which it could be made again."""
        digest = self._names.get(name)
        self._count(MediaGauge.QUERIES)
        if digest is None or self._entries.find(digest, time.monotonic_ns()) is None:
            raise MediaRefused(f"nothing with the uuid {part.source.uuid!r} is kept (any more); send it with its data.")
        self._count(MediaGauge.HITS)
        return Work(digest, iter(()))

    def _remember(self, name: bytes, digest: bytes) -> None:
        """The latest names, no more of them than entries: who died knew them by the entries' descriptions."""
        self._names.pop(name, None)
        self._names[name] = digest
        if len(self._names) > ENTRIES:
            del self._names[next(iter(self._names))]

    def _steps(self, data: bytes, source: MediaSource) -> Iterator[Processed | None]:
        """Of the modality's processor, when they are asked for."""
        made = self.processors[EMBEDS if source.form == EMBEDS else source.modality].process(data, source)
        if isinstance(made, Processed):
            yield made
        else:
            yield from made

    def _store(self, part: Part, digest: bytes, processed: Processed, now: int) -> Entry | None:
        names = list(processed.arrays)

        def describe(offsets: list[int]) -> bytes:
            tensors = [
                MediaTensor(name, processed.arrays[name].dtype.name, list(processed.arrays[name].shape), offset)
                for name, offset in zip(names, offsets, strict=True)
            ]
            told = processed.placeholder, processed.text, processed.token, processed.count
            name = part.work.name if part.work is not None else b""
            return msgspec.msgpack.encode(PreparedMedia(part.source.modality, digest, *told, tensors, name))

        try:
            return self._entries.make(digest, [processed.arrays[name] for name in names], describe, now)
        except TooLarge as error:
            raise MediaRefused(f"processed it takes {error} that --media-memory-bytes gives.", 413) from None

    def _count(self, gauge: MediaGauge, more: int = 1) -> None:
        self._context.status.add(gauge, more)
