"""Clients that read slowly, and such as do not read."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.route import streams
from actorserve.actors.route.streams import ClientGone, ClientStream


class Transport:
    """Of whose bytes a client takes some between two looks; `sent`: all are gone."""

    def __init__(self, unsent: int, taken: int) -> None:
        self.unsent, self._taken = unsent, taken
        self.sent = asyncio.Event()
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        self.unsent -= self._taken
        if self.unsent <= 0:
            self.sent.set()
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


def to(transport: Transport) -> ClientStream:
    made: Any = ClientStream.__new__(ClientStream)
    made._request = SimpleNamespace(transport=transport)
    return made  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LOOK_S", 0.001)


async def test_a_slow_reader_is_waited_for() -> None:
    transport = Transport(100, 1)
    await to(transport)._patiently(transport.sent.wait())
    assert transport.sent.is_set() and not transport.aborted


async def test_one_that_takes_nothing_is_cut_off() -> None:
    transport = Transport(100, 0)
    with pytest.raises(ClientGone):
        await to(transport)._patiently(transport.sent.wait())
    assert transport.aborted
