"""From a checked request to its answer, where a frontend has died with the request in hand."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.generation.idempotency_keys import Kept
from actorserve.http.handlers import answering
from actorserve.http.transport.resume import Predecessor

from .fakes import finish_all
from .serving import Answer, Served

BODY = {"prompt": "hi"}


class LeftRecord:
    """http.transport.resume.ConnectionRecord of a connection on which a predecessor has answered nothing."""

    def __init__(self, refs: list[int], replayed: bool) -> None:
        self.predecessor: Predecessor | None = Predecessor(refs, 7, 8, [0], False, False, False, replayed)
        self.streamed: list[tuple[Any, ...]] = []

    def go_on(self) -> None:
        self.predecessor = None

    def stream(self, *answer: Any) -> None:
        self.streamed.append(answer)


async def asked_again(
    served: Served, monkeypatch: pytest.MonkeyPatch, record: LeftRecord | None, has: bool = True
) -> Answer:
    """The request as it is read from the journal; `has`: its slots are there."""
    monkeypatch.setattr(answering, "record_of", lambda _: record)
    monkeypatch.setattr(served.engine, "has", lambda refs: has)
    client = await served.client()
    client.send("POST", "/v1/completions", BODY, Idempotency_Key="key")
    finish_all(await served.job())
    return await client.answer()


@pytest.mark.parametrize("replayed", [False, True])
async def test_a_repetition_stays_one_when_its_frontend_dies(
    served: Served, monkeypatch: pytest.MonkeyPatch, replayed: bool
) -> None:
    answer = await asked_again(served, monkeypatch, LeftRecord([5], replayed))
    assert answer.status == 200 and ("idempotent-replayed" in answer.headers) is replayed


async def test_a_successor_is_told_that_it_is_a_repetition(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for replayed in (False, True):
        record = LeftRecord([5], False)
        answer = await asked_again(served, monkeypatch, record, has=False)
        assert ("idempotent-replayed" in answer.headers) is replayed
        ((*_, told),) = record.streamed
        assert told is replayed


async def test_whoever_asks_again_has_the_answer_that_was_gone_on_with(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frontend that had begun it anew died before its connection said so: its predecessor's slots answer."""
    await asked_again(served, monkeypatch, None)
    ((name, (kept, job)),) = served.engine.kept_jobs.items()
    served.engine.kept_jobs[name] = Kept(kept.digest, [9], 1, 2), job
    answer = await asked_again(served, monkeypatch, LeftRecord([5], False))
    assert answer.status == 200
    assert (served.engine.kept_jobs[name][0].seed, served.engine.kept_jobs[name][0].created) == (7, 8)
