"""What an LLM object and the process that supervises its actors say to each other: both ends of that wire.

One sequenced-packet socket; link.py is the LLM object's end, host.py the other. What is longer than packets are, as a
Config with chat templates, adapters and the like may be, lies in a file whose descriptor the packet has.
    to the host    Config, once; the end of the stream says that it is to stop
    from it        HostBegun with the descriptors of its Boot, HostReady, and HostEnded; or HostEnded at once
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence

import msgspec

from ..options.config import Config
from ..runtime.descriptors import memory_file
from ..runtime.process import Boot

HERE, IN_FILE = b".", b">"  # what a packet begins with: one without any is the stream's end
MOST_BYTES = 1 << 16  # of a packet
MOST_DESCRIPTORS = 253  # the kernel's limit of one message (SCM_MAX_FD)


class HostBegun(msgspec.Struct, frozen=True, tag=1):
    """The shared memory is there; the caller is the actor that `boot` names. The descriptors come beside it."""

    boot: Boot


class HostReady(msgspec.Struct, frozen=True, tag=2):
    """All actors are up."""


class HostEnded(msgspec.Struct, frozen=True, tag=3):
    """Nothing is generated any more; `status` is the exit status that follows."""

    status: int
    reason: str


HostMessage = HostBegun | HostReady | HostEnded
encode = msgspec.msgpack.Encoder().encode
decode_config = msgspec.msgpack.Decoder(Config).decode
decode_message = msgspec.msgpack.Decoder(HostMessage).decode


def send(line: socket.socket, said: Config | HostMessage, descriptors: Sequence[int] = ()) -> None:
    """With these beside it."""
    content = encode(said)
    if len(content) < MOST_BYTES:
        socket.send_fds(line, [HERE, content], descriptors)
        return
    file = memory_file(content)
    try:
        socket.send_fds(line, [IN_FILE], [file, *descriptors])
    finally:
        os.close(file)


def receive(line: socket.socket) -> tuple[bytes, list[int]]:
    """What was sent, and what came beside it; nothing at the end of the stream. OSError where this process has no
    descriptors left for that.
    """
    packet, descriptors, flags, _ = socket.recv_fds(line, MOST_BYTES, MOST_DESCRIPTORS)
    if flags & socket.MSG_CTRUNC:
        for fd in descriptors:
            os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if packet[:1] != IN_FILE:
        return packet[1:], descriptors
    file, *beside = descriptors
    with open(file, "rb") as content:
        return content.read(), beside


def descriptors_of(boot: Boot) -> list[int]:
    """Those that a process needs to be this actor."""
    return [boot.segment_fd, *boot.files.values(), *boot.eventfds.values()]


def renumbered(boot: Boot, descriptors: Sequence[int]) -> Boot:
    """The same with the numbers that its descriptors have here, in their order."""
    own = dict(zip(descriptors_of(boot), descriptors, strict=True))
    return msgspec.structs.replace(
        boot,
        segment_fd=own[boot.segment_fd],
        files={name: own[fd] for name, fd in boot.files.items()},
        eventfds={name: own[fd] for name, fd in boot.eventfds.items()},
    )
