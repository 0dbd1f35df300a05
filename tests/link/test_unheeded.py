"""What an engine elsewhere says that it does nothing of is not sent there."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actorserve.actors.link.sequences import RemoteSequence
from actorserve.actors.link.unheeded import Unheeded
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.request import CPU_ONLY, Generation, Sampling
from actorserve.actors.protocol.sampling.fields import WatermarkingConfig
from actorserve.actors.protocol.sockets.engine_facts import unheeded_of
from tests.link.test_sequences import PROMPT, Bench

MARKED = Sampling(seed=1, watermarking_config=WatermarkingConfig())


class Taker:
    """An engine here, which takes them once it `computes`."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.computes = bench, False
        self.asked: list[int] = []

    def give_home(self, some: list[RemoteSequence]) -> None:
        self.asked += [one.ref for one in some]
        for one in some if self.computes else ():
            self.bench.sequences.let_go(one)


def test_an_engine_says_what_it_does_nothing_of() -> None:
    ordered = make_config({"scheduling_policy": "priority"})
    assert unheeded_of(ordered, on_gpu=False) == ["mirostat"], "whose state is told to nobody elsewhere"
    assert unheeded_of(ordered, on_gpu=True) == [*CPU_ONLY]
    assert unheeded_of(make_config({}), on_gpu=False) == ["mirostat", "priority"]


@pytest.mark.parametrize(("field", "sampling"), [("watermarking_config", MARKED)])
def test_who_wants_what_a_gpu_does_not_do_waits_for_an_engine_that_does(
    field: str, sampling: Sampling, caplog: pytest.LogCaptureFixture
) -> None:
    """Of an engine that lacks something else it is asked."""
    bench, params = Bench(), msgspec.msgpack.encode(Generation(sampling=sampling))
    plain, marked = bench.open(0), bench.table.open_slot(1, params, 1)
    bench.table.write_prompt(marked, PROMPT, b"", 100, engine=1)
    for ref in (plain, marked):
        bench.sequences.admit(ref)
    held, taker = bench.sequences.held, Taker(bench)
    config = SimpleNamespace(scheduling_policy="priority")
    context: Any = SimpleNamespace(table=bench.table, config=config, log=logging.getLogger("test"))
    unheeded = Unheeded(context)
    unheeded.met([], "far", held.values())
    unheeded.turn(held, taker)
    assert all(map(unheeded.may_send, held.values())) and not taker.asked and not caplog.records
    unheeded.met([one for one in CPU_ONLY if one != field], "far", held.values())
    unheeded.turn(held, taker)
    assert all(map(unheeded.may_send, held.values())) and not taker.asked
    caplog.clear()

    unheeded.met([field, "priority"], "far", held.values())
    assert [one.levelname for one in caplog.records] == ["WARNING"] * 2
    assert field in caplog.text and "priority does nothing there" in caplog.text
    unheeded.turn(held, taker)
    assert (unheeded.may_send(held[plain]), unheeded.may_send(held[marked])) == (True, False)
    assert taker.asked == [marked] and unheeded.waits
    taker.computes = True
    unheeded.turn(held, taker)
    assert list(held) == [plain] and not unheeded.waits
