"""What new code must do before any actor is replaced by it: be importable, and lay out shared memory as the server has.

The template, which is of the new code itself, runs this in a child process.
"""

from __future__ import annotations

import importlib
import os
import sys

import msgspec

from ...protocol.fingerprint import fingerprint
from ...protocol.kinds import find
from ...protocol.topology import System
from ...runtime.process import Boot

FAILED = 1


def tell_layout(boot_fd: int, told: int) -> int:
    """The exit status; the fingerprint of this code is written to `told`, for a server of such a Boot."""
    system = _system(_read(boot_fd))
    os.write(told, fingerprint(system).encode())
    return 0


def check(expected: str) -> int:
    """The exit status; what is wrong is said on standard error. Standard input holds a Boot of who is replaced."""
    boot = _read(0)
    system = _system(boot)
    if fingerprint(system) != expected:
        print("this code shares memory otherwise than the server that runs: stop that, and start anew", file=sys.stderr)
        return FAILED
    traits = system.by_name[boot.name].traits
    importlib.import_module(traits.module)
    if traits.late_imports:
        find(traits.late_imports)(boot.config)
    return 0


def _read(boot_fd: int) -> Boot:
    with open(boot_fd, "rb", closefd=False) as file:
        return msgspec.msgpack.decode(file.read(), type=Boot)


def _system(boot: Boot) -> System:
    return System(boot.config, boot.model, boot.also)
