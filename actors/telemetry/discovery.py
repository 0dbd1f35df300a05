"""What a server says of itself to those who look at it from outside, and by which name they find it.

The supervisor holds a memory file with a Description and listens on an abstract Unix socket: neither leaves anything
on disk. Who may open the files of /proc/PID/fd, its user and root, finds the shared memory by the Description; so that
works although nobody answers. Keys are not in it.

Anybody may listen on an abstract name. Nobody can take a server's before it does, since part of it is random; one that
only looks like it leads nowhere: who looks for servers takes a name for one of a process only if the socket is among
that process's open files, and both ends ask the kernel who the other is (SO_PEERCRED).
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
import struct

import msgspec

import actorserve

from ..model.info import ModelInfo
from ..options.config import Config

FILE = "actorserve-description"
SOCKET = re.compile(r"actorserve-(?P<uid>\d+)-(?P<port>\d+)-(?P<pid>\d+)(-[0-9a-f]+)?")
RANDOM_BYTES = 8  # of a name
CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
SECRETS = ("api_key", "admin_api_key")
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """All that it takes to read a server's shared memory. Descriptors are the supervisor's numbers."""

    version: str = actorserve.__version__
    pid: int  # the supervisor's
    url: str
    port: int
    started_ns: int  # CLOCK_MONOTONIC
    config: Config
    model: ModelInfo
    also: list[ModelInfo] = []  # those of --also
    segment_fd: int
    segment_bytes: int  # as the System has it: whoever computes another size has another layout
    files: dict[str, int]  # memory files by their names in supervisor/shared_memory.py


def socket_name(uid: int, port: int, pid: int) -> str:
    """A new abstract address, without the zero byte before it."""
    return f"actorserve-{uid}-{port}-{pid}-{secrets.token_hex(RANDOM_BYTES)}"


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end: who has connected, or who listens there."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    pid, uid, _ = CREDENTIALS.unpack(credentials)
    return pid, uid


def without_secrets(config: Config) -> Config:
    """The same options, those that are keys left at their defaults."""
    defaults = Config()
    return msgspec.structs.replace(config, **{name: getattr(defaults, name) for name in SECRETS})


def publish(description: Description) -> int:
    """The descriptor of a memory file that holds it, and that nobody can change any more."""
    fd = os.memfd_create(FILE, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    content = msgspec.json.encode(description)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd
