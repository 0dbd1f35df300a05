"""What a server and an engine on another machine say to each other, over one TCP connection: the server's `link`
(link/actor.py) connects to the engine's `steward` (steward/actor.py).

    steward                                       link
    Challenge: a nonce                       ->
                                             <-   Greeting: proof of the secret, a nonce of its own, which server, facts
    Welcome: proof, room; or why it is refused ->
                                             <-   Begin: a sequence, from wherever its log stands; those in hand first
                                             <-   AllBegun: what was not named since this connection is not wanted
    Progress, once a step: tokens, ends      ->
    Logprobs, before the tokens they are of  ->
    Vectors, before the end of what pools    ->
    Engine: its worker, its gauges           ->
    Cached: differences of what is cached    ->
    Turned: no room for these now            ->
                                             <-   Drop: nobody wants these any more
                                             <-   Adapter, DropAdapter: what requests may have
    AdapterRead                              ->
                                             <-   ProfileEngine
    ProfilePart                              ->
                                             <-   ResetPrefixCache, ResetEncoderCache, Pause, Resume, Sleep, WakeUp,
                                                  CheckWeights, LoadWeights, CallWorkers
    PrefixCacheReset, CacheReset, Paused, SleepChanged, WorkersCalled, Unanswered ->
    Beat, if nothing else was said for a while, on either side

A record is its length in 4 bytes, and msgpack, within TLS 1.3. A proof is HMAC-SHA256 of the other's nonce, the digest
of the steward's certificate as the side has it (engines/encryption.py), and the name of the side; with certificates of
an authority on both sides the secret may be left out. Nothing of a request is sent
before both sides have shown who they are, and what they have in common. Refs are the server's: the steward keeps which
slot of its own stands for which.

What each side has sent is a hint to the other: the server's request table is the truth. A sequence that is begun twice
is begun once, and the steward says what lies behind the server's log; tokens that come twice are dropped by their
place in the log; one that is ended already is told again. One that was given away, and came back while tokens were on
their way, may have been drawn otherwise: what does not name its last Begin is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any

import msgspec

from ..topics.adapters import AdapterRead, DropAdapter
from ..topics.administration import AskedOfEngine, CheckWeights, EngineAnswer, Sleep, Unanswered
from ..wire import UNREADABLE
from .file_digests import adapter_digest, weights_digest
from .node_wire import Unproven, differences, is_proven, proof_of

__all__ = [
    "Records",
    "Unproven",
    "adapter_digest",
    "differences",
    "encode",
    "is_proven",
    "proof_of",
    "weights_digest",
]

LENGTH = Struct("<I")
MOST_BYTES = 64 << 20  # of a record
MOST_GREETING = 64 << 10  # of one before it is known who speaks
MOST_UNSENT = 32 << 20  # bytes for one that does not read: beyond that it waits in the table
NONCE_BYTES = 32
LINK, STEWARD = b"link", b"steward"
PROVE_S = 5.0  # for the other side's part of the handshake
BEAT_S = 0.3  # of silence, then a Beat
SILENT_S = 1.5  # then the other side counts as gone
LEASE_S = 10.0  # for so long a steward goes on with what a server has begun that is gone


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Base of what crosses the connection."""


class Challenge(Record, frozen=True, tag=200):
    """The steward's: prove that you know the secret, with this."""

    nonce: bytes


class Greeting(Record, frozen=True, tag=201):
    """The link's answer."""

    proof: bytes
    nonce: bytes
    server: str  # the same for all lives of its links, and no other server's
    engine: int  # by which number that knows this one
    facts: dict[str, str]


class Welcome(Record, frozen=True, tag=202):
    """The end of the handshake; `refused` says why nothing comes of it."""

    proof: bytes = b""
    slots: int = 0  # that all servers may have in use here at once
    refused: str = ""
    unheeded: list[str] = []  # parameters of requests of which nothing is done here (engine_facts.py)


class Begin(Record, frozen=True, tag=203):
    """Go on with this sequence, behind `generated`."""

    ref: int
    params: bytes
    prompt: bytes  # int32, as `generated`
    hashes: bytes
    limit: int
    rendition: bytes
    generated: bytes
    deaths: int = 0  # of workers, of which it is suspect
    hosting: int = 0  # its number, as no other of this link's has; whatever is said of the sequence names the last one


class AllBegun(Record, frozen=True, tag=204):
    """Those that were begun since the handshake are all that are wanted so far."""


class Drop(Record, frozen=True, tag=205):
    """They have ended, or go on elsewhere."""

    refs: list[int]


class Beat(Record, frozen=True, tag=206):
    """Somebody is there."""

    sent_ns: int = 0  # CLOCK_MONOTONIC of whoever asks how long the way takes; it comes back as `answers_ns`
    answers_ns: int = 0


class Moved(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What is new of one sequence."""

    ref: int
    start: int  # generated tokens before these
    tokens: bytes  # int32
    finish: int = 0  # why it has ended
    cached: int = 0  # tokens of the prompt that were found
    waited_ns: int = 0  # until its first step
    hosting: int = 0  # of the Begin that it answers


class Progress(Record, frozen=True, tag=207):
    """Of all sequences that a step has moved."""

    moved: list[Moved]


class Logprobs(Record, frozen=True, tag=208):
    """Of positions of a sequence's log, as they lie in memory, `count` of them."""

    ref: int
    position: int
    count: int
    entries: bytes
    listed: bytes = b""
    hosting: int = 0


class Vectors(Record, frozen=True, tag=214):
    """Of what a model that pools has made of a prompt, float32, from this byte on; before its end is told."""

    ref: int
    rows: int
    columns: int
    start: int
    data: bytes


class Engine(Record, frozen=True, tag=209):
    """How the engine is."""

    worker: int  # which life of it computes; 0: none
    gauges: list[int]  # the scheduler's, by their numbers
    suspects: list[int] = []  # the life before it has died by itself, while it computed for these
    sleep: int = 0  # its word (shm/kv_map/sleep.py)
    weights: str = ""  # the folder of those that it has or loads; empty: its model's


class Cached(Record, frozen=True, tag=210):
    """Blocks that are cached now, and those that are no more."""

    blocks: int  # of its KV memory
    gone: bytes  # int32
    new: bytes  # int32
    keys: bytes  # 16 bytes of each that is new


class Turned(Record, frozen=True, tag=211):
    """There is no slot for these now."""

    refs: list[int]


class LoadWeights(Record, frozen=True, tag=212):
    """A sleep with other weights behind it, of whose files there this is the digest."""

    sleep: Sleep
    digest: str


class Adapter(Record, frozen=True, tag=213):
    """Requests may have this adapter, by the server's id; answered by AdapterRead."""

    adapter: int
    path: str
    digest: str  # of its files there


class ProfileEngine(Record, frozen=True, tag=215):
    """Profile all actors there for so long; 0: no more, and say what they have seen."""

    seconds: float


class ProfilePart(Record, frozen=True, tag=216):
    """What they have seen: JSON of a list of parts (runtime/profiling.py)."""

    parts: bytes


Loads = CheckWeights | LoadWeights | Adapter | DropAdapter
Answers = EngineAnswer | Unanswered
ToSteward = Greeting | Begin | AllBegun | Drop | Beat | ProfileEngine | Loads | AskedOfEngine
Told = Progress | Logprobs | Vectors | Engine | Cached | Turned | AdapterRead | ProfilePart
ToLink = Challenge | Welcome | Beat | Told | Answers


def encode(record: Any) -> bytes:
    """As it crosses the connection."""
    body = msgspec.msgpack.encode(record)
    return LENGTH.pack(len(body)) + body


class Records:
    """Bytes as they come, as records of one side."""

    def __init__(self, kind: Any) -> None:
        """`kind`: ToSteward or ToLink."""
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._bytes = bytearray()
        self.most = MOST_GREETING  # bytes of a record

    def feed(self, data: bytes) -> Iterator[Any]:
        """All that are whole now. Unproven if it is no such record."""
        self._bytes += data
        at = 0
        try:
            while len(self._bytes) - at >= LENGTH.size:
                (length,) = LENGTH.unpack_from(self._bytes, at)
                if length > self.most:
                    raise Unproven(f"a record of {length} bytes")
                end = at + LENGTH.size + length
                if len(self._bytes) < end:
                    break
                body, at = bytes(memoryview(self._bytes)[at + LENGTH.size : end]), end
                yield self._decode(body)
        except UNREADABLE as error:
            raise Unproven(f"no record of this protocol: {error}") from None
        finally:
            del self._bytes[:at]
