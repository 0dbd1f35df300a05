"""Two schedulers over one request table, each with a worker that the test plays."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.messages import Admit, Hello, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.runtime.process import Context
from actorserve.actors.scheduler.actor import SchedulerActor
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.startup import StartPhase
from actorserve.shm.board.board import ActorState, BoardWriter, Parked
from actorserve.shm.board.startup import PhaseWriter

PROMPT = list(range(3, 43))


TOKEN = 7


class Engine:
    """One scheduler process, and its worker, which this test plays."""

    def __init__(self, servers: Servers, number: int) -> None:
        self.servers, self.number = servers, number
        self.name = f"scheduler@{number}"
        self.steps: list[Step] = []
        self.greeted = 0  # how often its worker was asked whether it is there
        self.worker, *self.members = servers.system.workers_of(number)
        self.start(first=True)
        self.begin_worker()

    def start(self, first: bool = False) -> None:
        """A life of the scheduler, after the one before; what its constructor posts is posted as all the rest."""
        memory = self.servers.memory
        if not first:
            self.context.close()
            memory.raise_incarnation(memory.system.by_name[self.name])
        self.context: Context = Context(memory.boot(memory.system.by_name[self.name]))
        self.context.post = self._post  # type: ignore[method-assign]
        self.steps.clear()
        self.actor = SchedulerActor(self.context)
        self.context.set_state(ActorState.READY)

    def begin_worker(self) -> None:
        self.life = BoardWriter(self.servers.memory.board, self.worker.position)
        self.life.set_state(ActorState.READY)
        for member in self.members:
            BoardWriter(self.servers.memory.board, member.position).set_state(ActorState.READY)

    def meet(self, start_s: float = 0.0) -> None:
        """The worker says that it is there; after how long, if its memory is kept."""
        board = self.servers.memory.board
        incarnation = board.incarnation(self.worker.position)
        if start_s:
            began = board.snapshot(self.worker.position).started_ns
            phases = PhaseWriter(self.context.segment, self.servers.system.phase_offsets[self.worker.name], began)
            phases.end(StartPhase.SPAWN, began + 10**10)
            phases.end(StartPhase.WEIGHTS, began + 10**10 + int(start_s * 1e9))
        self.turn(WorkerReady(incarnation, self.servers.blocks, kept_since=int(start_s > 0)))

    def kill_worker(self, how: Ended = Ended.DIED) -> None:
        self.servers.memory.raise_incarnation(self.worker, how)
        self.steps.clear()

    def park(self, why: Parked = Parked.SCALE) -> None:
        """As the supervisor does it before it ends the worker; NO: it is wanted again."""
        self.servers.memory.park(self.worker, why)

    def _post(self, target: str, message: Any) -> None:
        if isinstance(message, Step):
            self.steps.append(message)
        elif isinstance(message, Hello):
            self.greeted += 1
        elif target in self.servers.lanes:
            self.servers.lanes[target].append(message)

    def turn(self, *messages: Any) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.do_work()
        self.actor.scheduler.check_integrity()

    def compute(self, count: int = 4) -> None:
        """The worker does so many steps of what it is given."""
        for _ in range(count):
            self.turn(self.answer(self.steps.pop(0)))

    def answer(self, step: Step) -> StepDone:
        planned = next(one for one in self.actor.scheduler.in_flight)
        return StepDone.make(step, [TOKEN] * len(planned.samples), 0.01)

    @property
    def refs(self) -> set[int]:
        return set(self.actor.scheduler.sequences)


class Servers:
    """Two engines, or more; what their schedulers post to each other waits in `lanes` until `deliver`."""

    def __init__(self, blocks: int = 64, rows: int = 4, queued: int = 8, engines: int = 2, **more: int) -> None:
        given = {
            "max_num_seqs": rows,
            "max_model_len": 256,
            "data_parallel_size": engines,
            "max_num_queued_reqs": queued,
            **more,
        }
        config = make_config({**given, "debug": True})
        self.blocks = blocks
        self.system = System(config, resolve_model(config))
        self.memory = Memory(self.system)
        self.lanes: dict[str, list[Any]] = {name: [] for name in self.system.schedulers}
        self.engines = [Engine(self, number) for number in self.system.engines]
        for engine in self.engines:
            engine.meet()
        self.table = self.engines[0].context.table
        self._next = 0

    def submit(self, engine: int, limit: int = 30, pinned: bool = False) -> int:
        """A prompt that the renderer has given to this engine."""
        params = msgspec.msgpack.encode(Generation(Sampling(seed=1), ignore_eos=True))
        ref = self.table.open_slot(self._next, params, self._next + 1)
        self._next += 1
        self.table.write_prompt(ref, PROMPT, b"", limit, engine=engine, pinned=pinned)
        self.engines[engine].turn(Admit([ref]))
        return ref

    def deliver(self) -> int:
        """All that was posted from one scheduler to the other."""
        count = 0
        for engine in self.engines:
            messages, self.lanes[engine.name] = self.lanes[engine.name], []
            engine.turn(*messages)
            count += len(messages)
        return count

    def check(self, *refs: int) -> None:
        """Each of these is in exactly one scheduler, that of the engine which its word names."""
        for ref in refs:
            owners = [engine.number for engine in self.engines if ref in engine.refs]
            assert owners == [self.table.engine(ref)]

    def close(self) -> None:
        for engine in self.engines:
            engine.context.close()
        self.memory.close()
