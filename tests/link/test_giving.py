"""Who waits for an engine elsewhere goes where there is room, and nobody else."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.link import giving as module
from actorserve.actors.link.giving import LinkGiver
from actorserve.actors.protocol.messages import Admit, Finish
from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState, registry_bytes
from actorserve.shm.segment import Segment
from tests.link.test_sequences import Bench, moved


class Others:
    """Engines 0 and 2 beside the link's own, by so much room."""

    def __init__(self, rooms: dict[int, int]) -> None:
        self.found = rooms
        self.holding: set[int] = set()
        self.parked: set[int] = set()

    def up(self, but: int) -> list[int]:
        assert but == 1
        return list(self.found)

    def rooms(self, rows: int, but: int) -> dict[int, int]:
        assert (rows, but) == (8, 1)
        return self.found

    def is_parked(self, engine: int) -> bool:
        return engine in self.parked

    def holds(self, engine: int) -> bool:
        return engine in self.holding

    def able(self, but: int) -> list[int]:
        return [engine for engine in self.up(but) if engine not in self.holding]

    def choose(self, hashes: bytes, tokens: int, among: list[int]) -> int:
        return among[0]


class Giving:
    """A link's giver, with three sequences."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rooms: dict[int, int]) -> None:
        self.bench = Bench()
        self.refs = [self.bench.open(slot) for slot in range(3)]
        for ref in self.refs:
            self.bench.sequences.admit(ref)
        self.posted: dict[int, list[int]] = {}
        self.others = Others(rooms)
        monkeypatch.setattr(module, "EngineRouter", lambda context: self.others)
        self.segment = Segment.create(registry_bytes(3), "test")
        context: Any = SimpleNamespace(
            table=self.bench.table,
            spec=SimpleNamespace(engine=1),
            config=SimpleNamespace(max_num_seqs=8, enable_lora=True),
            segment=self.segment,
            served=SimpleNamespace(engines=range(1, 2) if not rooms else range(3)),
            system=SimpleNamespace(remote_engines=range(1, 3), adapters_offset=0, engines=range(3)),
            log=logging.getLogger("test"),
        )
        ownership: Any = SimpleNamespace(post=self.post)
        self.giver = LinkGiver(context, self.bench.sequences, ownership)

    def want(self, ref: int) -> int:
        """An adapter for this sequence, which its engine refuses."""
        first = AdapterRegistryWriter(self.segment, 0, 3)
        adapter = first.add("own", "/own", AdapterState.READY)
        assert adapter is not None
        self.bench.sequences.held[ref].adapter = adapter
        self.refuse(1, adapter)
        return adapter

    def refuse(self, engine: int, adapter: int) -> None:
        AdapterRegistryWriter(self.segment, 0, 3, engine).refuse(adapter)

    def post(self, given: dict[int, list[int]], make: type) -> None:
        assert make is Admit
        self.posted |= given


def test_the_last_who_have_come_and_wait_go_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those that run, and as many as have no row and find one."""
    giving = Giving(monkeypatch, {0: 5})
    first, second, third = giving.refs
    giving.bench.sequences.progress(moved(first, 0, [7]))
    giving.giver.share(1)
    assert giving.posted == {0: [third]}
    assert giving.bench.table.engine(third) == 0
    assert list(giving.bench.sequences.held) == [first, second]
    assert giving.bench.dropped == [third]


def test_nobody_goes_where_all_have_rows_or_nobody_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    giving = Giving(monkeypatch, {0: 5})
    giving.giver.share(0)
    giving.others.found = {}
    giving.giver.share(3)
    assert not giving.posted
    assert len(giving.bench.sequences.held) == 3


def test_who_is_wanted_there_waits_on(monkeypatch: pytest.MonkeyPatch) -> None:
    giving = Giving(monkeypatch, {2: 5})
    monkeypatch.setattr(giving.bench.table, "is_pinned", lambda ref: ref == giving.refs[2])
    giving.giver.share(3)
    assert giving.posted == {2: giving.refs[:2]}


def test_whose_adapter_is_nowhere_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is another engine it waits for that, or goes there."""
    giving = Giving(monkeypatch, {})
    giving.giver.leave([giving.want(giving.refs[1])])
    assert giving.bench.table.finish(giving.refs[1]) == Finish.ADAPTER
    assert len(giving.bench.sequences.held) == 2
    other = Giving(monkeypatch, {0: 1})
    other.giver.leave([other.want(other.refs[1])])
    assert other.posted == {0: [other.refs[1]]}


def test_nobody_goes_to_where_the_same_adapter_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come back for ever. It waits for an engine that may have it, and ends once all have refused it."""
    giving = Giving(monkeypatch, {2: 5})
    adapter = giving.want(giving.refs[1])
    giving.refuse(2, adapter)
    giving.giver.leave([adapter])
    giving.giver.share(3)
    assert giving.posted == {2: [giving.refs[0], giving.refs[2]]}
    assert list(giving.bench.sequences.held) == [giving.refs[1]]
    giving.others.found = {2: 5, 0: 5}
    giving.giver.leave([adapter])
    assert giving.posted[0] == [giving.refs[1]]
    last = Giving(monkeypatch, {2: 5})
    adapter = last.want(last.refs[1])
    for engine in (0, 2):
        last.refuse(engine, adapter)
    last.giver.leave([adapter])
    assert last.bench.table.finish(last.refs[1]) == Finish.ADAPTER and not last.posted


def test_what_the_engine_elsewhere_does_not_do_goes_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """To an engine of this machine, once it computes, and to no other one elsewhere; without any it ends."""
    giving = Giving(monkeypatch, {2: 5})
    some = [giving.bench.sequences.held[ref] for ref in giving.refs[1:]]
    giving.giver.give_home(some)
    assert not giving.posted and len(giving.bench.sequences.held) == 3
    giving.others.found = {0: 1, 2: 5}
    giving.giver.give_home(some)
    assert giving.posted == {0: giving.refs[1:]}
    alone = Giving(monkeypatch, {})
    alone.giver.give_home([alone.bench.sequences.held[alone.refs[0]]])
    assert alone.bench.table.finish(alone.refs[0]) == Finish.UNHEEDED


def test_all_goes_to_engines_that_do_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would stand there until somebody resumes. Where no engine is wanted any more it goes anywhere."""
    giving = Giving(monkeypatch, {0: 5, 2: 5})
    giving.others.holding = {0}
    giving.giver.give_all()
    assert giving.posted == {2: giving.refs}
    alone = Giving(monkeypatch, {0: 5})
    alone.others.holding = {0}
    alone.giver.give_all()
    assert not alone.posted and len(alone.bench.sequences.held) == 3
    alone.others.parked = {1}
    alone.giver.give_all()
    assert alone.posted == {0: alone.refs}


def test_who_takes_all_is_up_or_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine 0 is; whether 2 comes nobody knows."""
    giving = Giving(monkeypatch, {2: 5})
    assert giving.giver.others_will()
    giving.others.holding = {2}
    assert giving.giver.others_will(), "engine 0 is restarted"
    giving.others.holding = {0, 2}
    assert not giving.giver.others_will()
    giving.others.holding, giving.others.parked = {2}, {0}
    assert not giving.giver.others_will()
    alone = Giving(monkeypatch, {})
    assert not alone.giver.others_will()
