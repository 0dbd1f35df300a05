"""What goes through a connection's transport, as its successor finds it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import cast

import pytest

from actorserve.actors.frontend.connections.transport import RecordedTransport, read_predecessor
from actorserve.http.transport.resume import Predecessor
from actorserve.shm.journals.response_journal import ResponseJournal


@pytest.fixture
def answers() -> Iterator[ResponseJournal]:
    fd = ResponseJournal.create(1)
    yield ResponseJournal(fd, 1)
    os.close(fd)


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_successor_knows_whose_answer_it_was(answers: ResponseJournal, replayed: bool) -> None:
    answers.begin(0, 0)
    read, write = os.pipe()
    below, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write, "wb"))
    transport = RecordedTransport(cast(asyncio.Transport, below), answers, 0, None, b"", lambda _: False)
    for one in (not replayed, replayed):
        transport.stream([5, 6], 7, 8, one)
    assert read_predecessor(answers, 0) == Predecessor([5, 6], 7, 8, [0, 0], False, False, False, replayed)
    below.close()
    os.close(read)
