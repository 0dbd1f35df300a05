"""The two files in which the answers of a batch stand: those with 200, and all others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ..files.line_file import LineFile
from ..files.lines import answered
from ..protocol.wire import UNREADABLE
from .results import ERRORS, OUTPUT
from .turns import Turns

OK = 200
FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Output:
    """`done` has the custom_ids that are answered; `add` adds one."""

    def __init__(self, place: Path) -> None:
        """A torn line of a predecessor is cut off by `take_over`."""
        self._files = [LineFile(os.open(place / name, FLAGS, 0o600)) for name in (OUTPUT, ERRORS)]
        self.done: set[str] = set()
        self.completed = self.failed = 0

    async def take_over(self) -> None:
        """What a predecessor has written. Behind what is no answer, which a machine that stopped may leave, is none."""
        turns = Turns()
        for file, is_error in zip(self._files, (False, True), strict=True):
            for _, line in file.lines():
                if (name := _name_in(line)) is None:
                    break
                self._count(name, is_error)
                await turns.took(line)
            file.cut()

    def add(self, answer: dict[str, Any]) -> None:
        """Whole, or not at all: OSError where the disk is full, or the like."""
        is_error = answer["response"] is None or answer["response"]["status_code"] != OK
        self._files[is_error].append(msgspec.json.encode(answer))
        self._count(answer["custom_id"], is_error)

    def _count(self, name: str, is_error: bool) -> None:
        self.done.add(name)
        self.failed += is_error
        self.completed += not is_error

    def sync(self) -> None:
        """All of it is on the disk."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        for file in self._files:
            file.close()


def _name_in(line: bytes) -> str | None:
    try:
        return answered(line) if line.endswith(b"\n") else None
    except UNREADABLE:
        return None
