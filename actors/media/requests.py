"""A request whose pictures and sounds are being made ready: what has come of each."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import unquote_to_bytes

import msgspec

from actorserve.shm.layout import HASH_BYTES
from actorserve.shm.media.entries import Entry
from actorserve.shm.media.inbox import MediaInbox

from ..protocol.media import BASE64, EMBEDS, FRAMES, PIXELS, MediaSource, PreparedMedia
from ..protocol.messages import MediaRequest, Render
from .fetch import Fetched, Fetcher
from .processors import Processed
from .refused import MediaRefused

HEAD = 8  # bytes of a record that say how long its request is; behind it come the bytes of its sources


@dataclass
class Work:
    """What is being made of a part: a film takes many turns."""

    digest: bytes
    steps: Iterator[Processed | None]
    name: bytes = b""
    processed: Processed | None = None


@dataclass
class Part:
    """One picture, film or sound."""

    source: MediaSource
    place: int  # of its bytes in the inbox
    fetched: Fetched | None = None
    prepared: PreparedMedia | None = None
    entry: Entry | None = None
    work: Work | None = None

    @property
    def has_come(self) -> bool:
        return self.fetched is None or self.fetched.future.done()

    def read(self, inbox: MediaInbox, owner: int, record: int) -> bytes:
        """The bytes of its file, or its pixels. MediaRefused says why there are none."""
        if self.fetched is not None:
            return self.fetched.future.result()
        data = inbox.read(owner, record, self.place, self.source.length)
        if data is None:
            raise MediaRefused("the client has gone", GONE)
        if self.source.form not in (BASE64, FRAMES):
            return data
        plain = data.translate(URL_SAFE, WHITE)
        if b"%" in plain:  # as in any other address
            plain = unquote_to_bytes(plain).translate(URL_SAFE, WHITE)
        if self.source.form == FRAMES:
            return plain
        try:
            return binascii.a2b_base64(plain + FILLED[len(plain) % 4] if len(plain) % 4 else plain, strict_mode=True)
        except binascii.Error as error:
            raise MediaRefused(f"its base64 is wrong: {error}.") from None


FILLED = (b"", b"", b"==", b"=")  # by what is more than whole fours: some clients leave it out
URL_SAFE = bytes.maketrans(b"-_", b"+/")
WHITE = b" \r\n\t"
GONE = 499


@dataclass(eq=False)
class Pending:
    """One request, from its first word to a renderer's turn."""

    owner: int  # a ref, or the number of a call
    is_call: bool
    request: MediaRequest
    place: int  # of its record in the inbox
    parts: list[Part]
    waits_since: float | None = None  # for memory

    @property
    def refs(self) -> list[int]:
        """The slots that it is for; none of a call."""
        message = self.request.message
        return list(message.refs) if isinstance(message, Render) else []

    @property
    def has_come(self) -> bool:
        """Are the bytes of all of its parts here?"""
        return all(part.has_come for part in self.parts)

    def message(self) -> msgspec.Struct:
        """What goes on to the renderer."""
        prepared = [part.prepared for part in self.parts if part.prepared is not None]
        return msgspec.structs.replace(self.request.message, media=prepared)

    def let_go(self, fetcher: Fetcher) -> None:
        """Nobody wants what is still to come, nor what has come."""
        for part in self.parts:
            if part.fetched is not None:
                fetcher.let_go(part.fetched)


def read_request(inbox: MediaInbox, owner: int, place: int) -> tuple[MediaRequest, list[Part]] | None:
    """A record of the inbox; None if it is another's."""
    head = inbox.read(owner, place, 0, HEAD)
    size = int.from_bytes(head or b"", "little")
    packed = inbox.read(owner, place, HEAD, size) if head else None
    if not packed:
        return None
    request = msgspec.msgpack.decode(packed, type=MediaRequest)
    return request, [Part(source, HEAD + size + source.offset) for source in request.sources]


def name_of(source: MediaSource, request: MediaRequest) -> bytes:
    """What a uuid stands for, among requests that may share what is computed; nothing without one."""
    salt = request.message.cache_salt if isinstance(request.message, Render) else ""
    told = f"{source.modality} {len(salt)} {salt} {source.uuid} ".encode() + source.changes
    return blake2b(told, digest_size=HASH_BYTES).digest() if source.uuid else b""


def digest_of(source: MediaSource, data: bytes, settings: bytes) -> bytes:
    """The same for the same bytes that are processed in the same way."""
    form = source.form if source.form in (PIXELS, FRAMES, EMBEDS) else ""
    told = f"{source.modality} {form} {source.width} ".encode() + source.changes
    return blake2b(told + settings + b"\0" + data, digest_size=HASH_BYTES).digest()
