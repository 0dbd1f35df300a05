"""The two files in which the answers of a batch stand: those with 200, and all others.

All of it waits for the disk, and is done beside the event loop, one call at a time.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import msgspec

from ..files.line_file import LineFile
from ..files.lines import Answered, decode_answer, digest_of
from ..protocol.wire import UNREADABLE

FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Output:
    """`done` has the digests of custom_ids that are answered; `add` adds some."""

    def __init__(self, places: list[Path], form: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """A torn line of a predecessor is cut off by `take_over`. `form`: as its clients read a line."""
        self._files = [LineFile(os.open(place, FLAGS, 0o600)) for place in places]
        self._form = form
        self.done: set[bytes] = set()
        self.completed = self.failed = 0
        self._unasked = Counter[str]()  # of those that failed

    def take_over(self) -> None:
        """What a predecessor has written. Behind what is no answer, which a machine that stopped may leave, is none."""
        for file, is_error in zip(self._files, (False, True), strict=True):
            for _, line in file.lines():
                if (found := _read(line)) is None:
                    break
                self._count(found, is_error)
            file.cut()

    def add(self, *answers: dict[str, Any]) -> None:
        """Each whole, or not at all: OSError where the disk is full, or the like."""
        for answer in answers:
            is_error = answer["response"] is None or answer["response"]["status_code"] != HTTPStatus.OK
            line = msgspec.json.encode(self._form(answer))
            self._files[is_error].append(line)
            self._count(decode_answer(line), is_error)

    def _count(self, answer: Answered, is_error: bool) -> None:
        self.done.add(digest_of(answer.custom_id))
        self.failed += is_error
        self.completed += not is_error
        if is_error and answer.why_unasked:
            self._unasked[answer.why_unasked] += 1

    @property
    def counts(self) -> dict[str, int]:
        """As a batch's state has them."""
        unasked = {name: self._unasked[name] for name in ("expired", "cancelled")}
        return {"completed": self.completed, "failed": self.failed, **unasked}

    def sync(self) -> None:
        """All of it is on the disk."""
        for file in self._files:
            file.sync()

    def close(self) -> None:
        for file in self._files:
            file.close()


def _read(line: bytes) -> Answered | None:
    try:
        return decode_answer(line) if line.endswith(b"\n") else None
    except UNREADABLE:
        return None
