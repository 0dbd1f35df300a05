"""What the supervisor makes before any actor is born."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Boot, Context
from actorserve.actors.supervisor import shared_memory
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.startup import StartPhase
from actorserve.shm.board.board import ActorState, BoardWriter
from actorserve.shm.table.table import RequestTable

MODEL = ModelInfo(
    folder="/none",
    tokenizer_folder="/none",
    architecture="LlamaForCausalLM",
    vocab_size=32,
    max_model_len=64,
    end_tokens=[],
    sampling_defaults={},
)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    yield made
    made.close()


def test_a_dead_actor_is_not_ready_whatever_it_wrote(memory: Memory) -> None:
    worker = memory.system.by_name["worker"]
    assert memory.boot(worker).incarnation == 1
    BoardWriter(memory.board, worker.position, 1).set_state(ActorState.READY)
    assert memory.is_ready(worker)
    memory.raise_incarnation(worker)
    assert not memory.is_ready(worker)
    successor = BoardWriter(memory.board, worker.position, memory.boot(worker).incarnation)
    assert not memory.is_ready(worker)
    successor.set_state(ActorState.READY)
    assert memory.is_ready(worker)


def test_what_was_parked_begins_when_it_is_wanted(memory: Memory) -> None:
    worker = memory.system.by_name["worker"]
    before = memory.board.snapshot(worker.position)
    memory.is_wanted(worker)
    after = memory.board.snapshot(worker.position)
    assert after.started_ns > before.started_ns and after.incarnation == before.incarnation, "it has not died"


def test_every_actor_finds_the_table(memory: Memory) -> None:
    table = RequestTable.attach(memory.segment, memory.system.table_offset)
    assert table.slots == memory.system.slots and table.max_tokens == MODEL.max_model_len


def test_a_boot_survives_the_way_to_the_actor(memory: Memory) -> None:
    boot = memory.boot(memory.system.by_name["frontend-0"], 7)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(boot), type=Boot) == boot
    assert set(boot.eventfds) == {*memory.system.by_name, "supervisor"}


def test_nobody_waits_for_a_wakeup_that_a_dead_actor_owed(memory: Memory) -> None:
    memory.wake_all()
    assert all(os.eventfd_read(fd) == 1 for fd in memory.eventfds.values())
    memory.clear_wakeup()  # and there may be none


def test_nothing_has_a_name(memory: Memory) -> None:
    assert not os.path.exists(os.readlink(f"/proc/self/fd/{memory.segment.fd}"))


@pytest.mark.parametrize("takes_back", [True, False])
def test_a_kernel_that_takes_no_memory_back_is_told_of_once(
    takes_back: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_memory, "can_give_back", lambda: takes_back)
    Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL)).close()
    told = [record.getMessage() for record in caplog.records if record.name == "memory"]
    assert len(told) == (not takes_back) and all("gVisor" in text for text in told)


def test_how_long_a_start_took() -> None:
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL), began=10**9)
    assert memory.how_long() == "0.0 s"
    memory.phase_ends(StartPhase.IMPORTS, 10**9 + 4_000_000)  # not worth a word
    memory.phase_ends(StartPhase.ACTORS, 10**9 + 1_504_000_000)
    assert memory.how_long() == "1.5 s: actors 1.50"
    memory.close()


def test_how_long_an_actors_start_took(memory: Memory) -> None:
    spec = memory.system.by_name["renderer-0"]
    assert memory.how_long(spec.name) == "0.0 s"
    context = Context(memory.boot(spec))
    context.phase_ends(StartPhase.SPAWN, memory.board.snapshot(spec.position).started_ns + 2 * 10**9)
    assert memory.how_long(spec.name) == "2.0 s: spawn 2.00"
    memory.raise_incarnation(spec)
    assert memory.how_long(spec.name) == "0.0 s"
    context.close()
