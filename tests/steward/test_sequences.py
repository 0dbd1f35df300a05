"""Sequences of servers elsewhere in a steward's table: what cannot be one leaves nothing there."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Admit, Finish
from actorserve.actors.protocol.sockets.engine_wire import Begin, Progress, Turned
from actorserve.actors.steward import sequences as module
from actorserve.actors.steward.adapters import StewardAdapters
from actorserve.actors.steward.sequences import HostedSequences
from actorserve.actors.steward.session import Session
from tests.link.test_sequences import PARAMS, PROMPT, SLOTS, TOKENS, Bench


class Steward(HostedSequences):
    """Of one life, and what it says."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "Logprobs", lambda *_: bench.area)
        self.posted: list[Any] = []
        self.sent: list[Any] = []
        log: Any = SimpleNamespace(error=lambda *_: None, info=lambda *_: None)
        context: Any = SimpleNamespace(
            table=bench.table,
            files={"logprobs": -1},
            system=SimpleNamespace(schedulers=["s"], files=SimpleNamespace(logprobs=()), adapters_offset=None),
            vectors=lambda: None,
            post=lambda _, message: self.posted.append(message),
            log=log,
        )
        super().__init__(context, StewardAdapters(context))
        channel: Any = SimpleNamespace(send=self.sent.append, peer="there")
        self.session = Session("a server", 1, channel=channel)


def beginning(params: bytes = PARAMS, prompt: list[int] = PROMPT) -> Begin:
    return Begin(5, params, array("i", prompt).tobytes(), b"", 100, b"", b"")


@pytest.mark.parametrize(
    "begin",
    [beginning(b"\xc1"), beginning(params=b"\x90"), beginning(prompt=[1] * (TOKENS + 1))],
    ids=["no", "other", "long"],
)
def test_what_cannot_be_is_no_sequence_for_a_successor_either(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    steward = Steward(bench, monkeypatch)
    steward.begin(steward.session, begin)
    (progress,) = steward.sent
    assert isinstance(progress, Progress) and progress.moved[0].finish == Finish.ERROR
    assert not steward.posted and not steward.session.sequences and steward.num_free == SLOTS
    successor = Steward(bench, monkeypatch)
    assert not successor.posted and successor.num_free == SLOTS


def test_what_can_be_has_a_slot_while_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    steward = Steward(bench, monkeypatch)
    for ref in range(SLOTS):
        steward.begin(steward.session, Begin(ref, PARAMS, array("i", PROMPT).tobytes(), b"", 100, b"", b""))
    owns = [hosted.own for hosted in steward.session.sequences.values()]
    assert steward.posted == [Admit([own]) for own in owns] and len(set(owns)) == SLOTS
    assert [bench.table.prompt_length(own) for own in owns] == [len(PROMPT)] * SLOTS
    steward.begin(steward.session, Begin(SLOTS, PARAMS, b"", b"", 100, b"", b""))
    assert steward.sent == [Turned([SLOTS])]
