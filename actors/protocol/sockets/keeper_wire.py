"""What a worker on a GPU says to the keeper of KV memory (--keep-kv), over a socket of the machine, one question each:

Find: what is there of an earlier life  ->
                                        <-   Kept: how large it is, since which life; with a descriptor of it
Make: memory of this size, for me       ->
                                        <-   Kept, likewise; or why not
Drop: nothing is to be kept for me      ->
                                        <-   Kept, of nothing
Weigh: what is held for me              ->
                                        <-   Kept: how large it is, whatever it means; no descriptor
"""

from __future__ import annotations

import os
import socket
import struct

import msgspec

KEEPER = "keeper"  # of the files that actors inherit: the socket that listens
MOST_BYTES = 4096
ANSWER_S = 30.0  # for an answer: memory is made in that time
ASKED_S = 1.0  # for a question, of who is connected: one at a time is answered
CREDENTIALS = struct.Struct("iII")  # pid, uid, gid


class Find(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """Of this worker; `digest`: what its memory has to mean."""

    worker: str
    digest: bytes


class Make(msgspec.Struct, array_like=True, frozen=True, tag=2):
    """Anew, on this device of its driver; what was there is dropped first."""

    worker: str
    digest: bytes
    life: int
    device: int
    size: int


class Drop(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """What is kept for this worker."""

    worker: str


class Weigh(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """What is kept for this worker."""

    worker: str


Asked = Find | Make | Drop | Weigh


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """What there is for the worker now; with a size of 0 nothing, and no descriptor."""

    size: int = 0
    since: int = 0
    problem: str = ""


def listen_here() -> socket.socket:
    """On a name that nobody has to know: whoever inherits the socket finds it there."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    listener.bind("")  # the kernel picks one
    listener.listen()
    return listener


def ask(listener: int, question: Asked) -> tuple[Kept, int | None]:
    """Of the keeper that listens there; a descriptor of the memory with it. OSError if nobody answers in time."""
    with socket.socket(fileno=os.dup(listener)) as known:
        place = known.getsockname()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as line:
        line.settimeout(ANSWER_S)
        line.connect(place)
        line.send(msgspec.msgpack.encode(question))
        data, fds, _, _ = socket.recv_fds(line, MOST_BYTES, 1)
    try:
        kept = msgspec.msgpack.decode(data, type=Kept)
    except msgspec.MsgspecError:
        raise ConnectionError("the keeper of KV memory is gone") from None
    return kept, fds[0] if fds else None


def receive(line: socket.socket) -> Asked | None:
    """What a process of this user asks; None of any other."""
    line.settimeout(ASKED_S)
    _, uid, _ = CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    data = line.recv(MOST_BYTES)
    if uid != os.getuid() or not data:
        return None
    question: Asked = msgspec.msgpack.decode(data, type=Asked)
    return question


def answer(line: socket.socket, kept: Kept, fd: int | None) -> None:
    data = msgspec.msgpack.encode(kept)
    if fd is None:
        line.send(data)
    else:
        socket.send_fds(line, [data], [fd])
