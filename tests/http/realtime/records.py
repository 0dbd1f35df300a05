"""Records of connections as a frontend has them, where a test is the frontend: what they keep can be gone on with."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.handlers.realtime import api, connection
from actorserve.http.transport.resume import LeftSession


class FakeUpgrade:
    """http.transport.resume.UpgradedRecord, where each message has as many bytes as the test says."""

    def __init__(self, left: LeftSession | None = None) -> None:
        self.left = left
        self.size = 1  # of a message
        self.kept: list[LeftSession] = []
        self._previous = self._end = 0 if left is None else left.start

    def begin(self) -> int:
        return self._end

    def end_of_message(self) -> int:
        self._previous, self._end = self._end, self._end + self.size
        return self._end

    def start_of_message(self) -> int:
        return self._previous

    def keep(self, state: bytes, frames: bytes, start: int, end: int) -> None:
        self.kept.append(LeftSession(state, start, end, b""))  # all of the frames go out


class FakeRecord:
    """http.transport.resume.ConnectionRecord of one that is upgraded."""

    def __init__(self, left: LeftSession | None = None) -> None:
        self.predecessor = None
        self.upgraded = FakeUpgrade(left)

    def __getattr__(self, name: str) -> Any:
        """What it is told of answers is not kept."""
        return lambda *_: None


def record_for(monkeypatch: pytest.MonkeyPatch, left: LeftSession | None = None) -> FakeRecord:
    """Of the connections that come from here on."""
    record = FakeRecord(left)
    for module in (api, connection):
        monkeypatch.setattr(module, "record_of", lambda _: record)
    return record
