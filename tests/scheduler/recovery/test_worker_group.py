"""A group of two workers that dies, and a scheduler that is the only one: ends that wait for its steps are told."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Admit, Cancel, Finish, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.board.board import ActorState, BoardWriter

from ..test_actor import PROMPT, Life


class Group:
    """Two workers, which are played, and the scheduler's present life."""

    def __init__(self) -> None:
        config = make_config({"max_num_seqs": 4, "max_model_len": 256, "tensor_parallel_size": 2})
        self.memory = Memory(System(config, resolve_model(config)))
        self.workers = self.memory.system.workers_of(0)
        for worker in self.workers:
            BoardWriter(self.memory.board, worker.position).set_state(ActorState.READY)
        self.now = Life(self.memory)
        params = msgspec.msgpack.encode(Generation(Sampling(seed=1), ignore_eos=True))
        table = self.now.context.table
        self.refs = [table.open_slot(slot, params, 1) for slot in range(2)]
        for ref in self.refs:
            table.write_prompt(ref, PROMPT, b"", 20)
        self.now.turn(self.ready(), Admit(self.refs))
        assert self.now.steps

    def ready(self) -> WorkerReady:
        return WorkerReady(self.memory.board.incarnation(self.workers[0].position), 32)

    def cancel(self, number: int) -> None:
        self.now.context.table.cancel(self.refs[number])
        self.now.turn(Cancel([self.refs[number]]))

    def ends(self) -> list[int]:
        return [self.now.context.table.finish(ref) for ref in self.refs]


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.now.context.close()
    made.memory.close()


@pytest.mark.parametrize("member", [0, 1])
def test_nobody_waits_for_steps_of_a_group_that_is_gone(group: Group, member: int) -> None:
    """Cancelled before it died, and afterwards, while there is no other yet."""
    group.cancel(0)
    assert group.ends() == [0, 0]
    group.memory.raise_incarnation(group.workers[member])
    group.now.advanced.clear()
    group.now.turn()
    assert group.ends() == [Finish.ABORT, 0] and group.now.advanced == group.refs[:1]
    group.cancel(1)
    assert group.ends() == [Finish.ABORT, Finish.ABORT]


def test_a_successor_that_finds_no_worker_waits_for_none(group: Group) -> None:
    group.cancel(0)
    group.now.context.close()
    group.memory.raise_incarnation(group.memory.system.by_name["scheduler"])
    group.now = Life(group.memory)
    group.now.turn()
    assert group.ends() == [0, 0], "of the scheduler before steps may be under way"
    group.memory.raise_incarnation(group.workers[1])
    group.now.turn()
    assert group.ends() == [Finish.ABORT, 0]
    group.cancel(1)
    assert group.ends() == [Finish.ABORT, Finish.ABORT]
