"""What servers say to each other that give each other KV blocks. Whose porter wants some (porter/peers/pulling.py)
connects to the porter that may have them (porter/peers/serving.py):

    has blocks                                        wants blocks
    Challenge: a nonce                           ->
                                                 <-   Greeting: proof of the secret, a nonce of its own, version, agent
    Welcome: proof, agent; or why it is refused  ->
                                                 <-   Want: blocks by their keys, of one fingerprint
    Have: checksums of the first that are here   ->
    the blocks, one behind the other             ->
                                                 <-   Done
A message is its length in 4 bytes, and msgpack; a proof is HMAC-SHA256 of the other's nonce and the name of the side
(node_wire.py). With certificates (TLS 1.3, on both sides) the secret may be left out, and with the secret alone blocks
are not encrypted. Where both sides have an agent of NIXL, Have says where the blocks lie, and nothing but it is sent:
the other side reads them by NIXL.

From Have to Done the one side holds the blocks for the other: that is a lease, for LEASE_S at most. It ends with Done,
with its time, and with the connection; so neither a death nor a cut cable leaves anything held. Who reads on behind its
end finds another checksum, and has a miss.
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import NamedTuple, TypeVar

import msgspec

from ...options.config import Config
from ..wire import UNREADABLE
from .node_wire import LENGTH, NONCE_BYTES, Unproven, is_proven, prepare, proof_of

__all__ = ["NONCE_BYTES", "Line", "Proofs", "Unproven", "is_proven", "prepare", "proof_of", "read_proofs"]

VERSION = 1
GIVER, PULLER = b"kv-giver", b"kv-puller"
MOST_BYTES = 1 << 20  # of a message; blocks are none
MOST_GREETING = 64 << 10  # of one before it is known who speaks
PROVE_S = 5.0  # for the handshake
LEASE_S = 10.0
IDLE_S = 120.0  # then a connection is ended that nothing was asked by
WINDOW_BYTES = 8 << 20  # of blocks that are wanted at once
Told = TypeVar("Told", bound=msgspec.Struct)


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    """Prove that you know the secret, with this."""

    nonce: bytes


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Of who wants blocks. `agent`: what NIXL has to know of it; nothing without NIXL."""

    proof: bytes
    nonce: bytes
    version: int
    agent: bytes = b""


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The answer; `refused` says why it is none."""

    proof: bytes = b""
    refused: str = ""
    agent: bytes = b""


class Want(msgspec.Struct, array_like=True, frozen=True):
    """These blocks, up to the first that is not there."""

    fingerprint: bytes
    size: int  # of each
    keys: bytes  # one behind the other


class Have(msgspec.Struct, array_like=True, frozen=True):
    """So many of them as there are checksums. `places`: addresses where NIXL reads them; else they follow."""

    sums: list[bytes]
    places: list[int] = []
    refused: str = ""


class Done(msgspec.Struct, array_like=True, frozen=True):
    """What was held is not needed any more."""


class Proofs(NamedTuple):
    """By what both sides know each other."""

    secret: bytes
    serving: ssl.SSLContext | None = None
    pulling: ssl.SSLContext | None = None


def read_proofs(config: Config) -> Proofs:
    """Those of --engine-secret-file and --engine-certfile."""
    from ...options.objects.remote import engine_tls, read_engine_secret

    return Proofs(read_engine_secret(config), engine_tls(config, server=True), engine_tls(config, server=False))


class Line:
    """A connection, each of whose calls has a deadline. TimeoutError behind it, EOFError where it has ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = time.monotonic() + PROVE_S

    def within(self, seconds: float) -> Line:
        """All that follows is over by then."""
        self.deadline = time.monotonic() + seconds
        return self

    def send(self, message: msgspec.Struct) -> None:
        encoded = msgspec.msgpack.encode(message)
        self.send_bytes(LENGTH.pack(len(encoded)) + encoded)

    def send_bytes(self, data: bytes | memoryview) -> None:
        self._set_timeout()
        self.connection.sendall(data)

    def receive(self, kind: type[Told], most: int = MOST_BYTES) -> Told:
        """The next message; Unproven if it is none of this kind."""
        (length,) = LENGTH.unpack(self.read(LENGTH.size))
        if length > most:
            raise Unproven(f"a message of {length} bytes")
        try:
            return msgspec.msgpack.decode(self.read(length), type=kind)
        except UNREADABLE as error:
            raise Unproven(f"no {kind.__name__}: {error}") from None

    def read(self, count: int) -> bytes:
        """So many bytes."""
        found = bytearray(count)
        view, at = memoryview(found), 0
        while at < count:
            self._set_timeout()
            part = self.connection.recv_into(view[at:])
            if not part:
                raise EOFError("the connection has ended")
            at += part
        return bytes(found)

    def close(self) -> None:
        self.connection.close()

    def _set_timeout(self) -> None:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("it takes too long")
        self.connection.settimeout(left)
