"""What a server says of itself to those who look at it from outside, and by which name they find it.

The supervisor holds a memory file with a Description and listens on an abstract Unix socket: neither leaves anything
on disk. Who may open the files of /proc/PID/fd, its user and root, finds the shared memory by the Description; so that
works although nobody answers. Keys are not in it.
"""

from __future__ import annotations

import fcntl
import os
import re

import msgspec

import actorserve

from .config import Config
from .model_files import ModelInfo

FILE = "actorserve-description"
SOCKET = re.compile(r"actorserve-(?P<uid>\d+)-(?P<port>\d+)-(?P<pid>\d+)")
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
    segment_fd: int
    segment_bytes: int  # as the System has it: whoever computes another size has another layout
    files: dict[str, int]  # memory files by their names in supervisor/memory.py


def socket_name(uid: int, port: int, pid: int) -> str:
    """The abstract address, without the zero byte before it."""
    return f"actorserve-{uid}-{port}-{pid}"


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
