"""Random requests on a scheduler that is recorded, over several of its lives, and their replay."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.block_hash import extend_hashes
from actorserve.actors.protocol.messages import Admit, Cancel, StepFailed, Stopped, WorkerReady
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.step import Step
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.scheduler.policy.plan_timing import PlanTiming
from actorserve.actors.scheduler.replay.file import Reading, RecordFile
from actorserve.actors.scheduler.replay.recorder import RecordedActor
from actorserve.actors.scheduler.replay.replayer import Replay, ReplayOptions
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.table.table import slot_of

from ..engine_model import BLOCK, ScriptedWorker, prompt_of

BLOCKS = 24
TURN_S = 0.008


class Life:
    """One scheduler process that is recorded."""

    def __init__(self, memory: Memory, path: Path, most: int = 1 << 30) -> None:
        self.context = Context(memory.boot(memory.system.by_name["scheduler"]))
        self.steps: list[Step] = []
        self.context.post = self._post  # type: ignore[method-assign]
        self.file = RecordFile(str(path), most, self.context.log, self.context.incarnation == 1)
        try:
            self.actor = RecordedActor(self.context, self.file)
        except BaseException:
            self.file.close()
            self.context.close()
            raise

    def _post(self, target: str, message: Any) -> None:
        if isinstance(message, Step):
            self.steps.append(message)

    def turn(self, *messages: Any) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.do_work()
        self.actor.published()

    def kill(self) -> None:
        """What is not in the file is lost."""
        self.file._buffer.clear()
        self.file._records = 0
        self.file.close()
        self.context.close()


@dataclass
class Request:
    ref: int
    ended: bool = False


class Load:
    """Random requests on a scheduler with little KV memory, whose worker and whose own process die."""

    def __init__(self, path: Path, seed: int, step_s: float = 0.0005, **options: Any) -> None:
        self.step_s, self.now = step_s, 0.0
        values = {"max_num_seqs": 6, "max_num_queued_reqs": 12, "max_model_len": 256, "block_size": BLOCK}
        self.config = make_config(values | {"max_num_batched_tokens": 32} | options)
        self.memory = Memory(System(self.config, resolve_model(self.config)))
        self.path = path
        self.random = random.Random(seed)
        self.free = list(range(self.memory.system.slots))
        self.requests: dict[int, Request] = {}
        self.finishes: list[int] = []
        self.preemptions = 0
        self.worker_incarnation = 0
        self.new_life()
        self.new_worker()

    @property
    def table(self) -> Any:
        return self.life.context.table

    def new_worker(self) -> None:
        self.worker = ScriptedWorker(self.table, BLOCKS)
        self.worker_incarnation += 1
        self.lane: list[Step] = []
        self.turn(WorkerReady(self.worker_incarnation, BLOCKS))

    def new_life(self) -> None:
        """With a clock that a turn moves by TURN_S."""
        self.life = Life(self.memory, self.path)
        self.life.actor.timing = PlanTiming(self.life.actor.scheduler, lambda: self.now)

    def new_scheduler(self, whole: bool) -> None:
        if whole:
            self.life.actor._write_turns()
            self.life.file.write()
        self.preemptions += self.life.actor.scheduler.planner.memory.preemptions
        self.life.kill()
        self.memory.raise_incarnation(self.memory.system.by_name["scheduler"])
        self.new_life()
        self.turn(WorkerReady(self.worker_incarnation, BLOCKS))

    def turn(self, *messages: Any) -> None:
        self.now += TURN_S
        self.life.turn(*messages)
        self.lane += self.life.steps
        self.life.steps.clear()
        for ref in [ref for ref in self.requests if self.table.finish(ref)]:
            self.finishes.append(self.table.finish(ref))
            del self.requests[ref]
            self.free.append(slot_of(ref))

    def open(self) -> int:
        rng = self.random
        prompt = prompt_of(rng.randrange(16, 60), rng.randrange(3))  # several begin alike
        params = Generation(Sampling(seed=1), priority=rng.randrange(3), ignore_eos=rng.random() < 0.7)
        ref: int = self.table.open_slot(self.free.pop(0), msgspec.msgpack.encode(params), rng.randrange(1 << 40))
        tokens = np.array(prompt, np.int32).tobytes()
        self.table.write_prompt(ref, tokens, extend_hashes(b"", tokens, BLOCK), rng.randrange(1, 60))
        self.requests[ref] = Request(ref)
        return ref

    def anything(self) -> Any:
        """A message, or None where it is the worker's turn."""
        rng, kind = self.random, self.random.random()
        some = rng.choice(list(self.requests)) if self.requests else None
        if kind < 0.25 and len(self.requests) < 20:
            refs = [self.open() for _ in range(rng.randrange(1, 4))]
            for ref in refs:
                if rng.random() < 0.05:
                    self.table.cancel(ref)
            return Admit(refs)
        if some and kind < 0.28:
            if rng.random() < 0.7:
                self.table.cancel(some)
            return Cancel([some])  # sometimes before its word
        if some and kind < 0.31 and self.table.generated(some):
            self.table.set_stop(some, 1)
            return Stopped([some])
        if some and kind < 0.33:
            return Admit([some])  # again
        return None

    def work(self) -> Any:
        step = self.lane.pop(0)
        if self.random.random() < 0.02:
            self.lane.clear()
            self.worker.epoch = -1
            return StepFailed(step.epoch, step.step, "at random")
        done = self.worker.run(step, set())
        # 0.001 a token: it pays to batch
        return msgspec.structs.replace(done, seconds=self.step_s + done.seconds / 200)

    def run(self, turns: int, deaths: bool = True) -> None:
        rng = self.random
        for _ in range(turns):
            messages = [found for _ in range(rng.randrange(3)) if (found := self.anything()) is not None]
            if self.lane and rng.random() < 0.8:
                messages.append(self.work())
            self.turn(*messages)
            if deaths and rng.random() < 0.01:
                self.new_worker()
            if deaths and rng.random() < 0.01:
                self.new_scheduler(whole=rng.random() < 0.5)

    def close(self) -> None:
        self.preemptions += self.life.actor.scheduler.planner.memory.preemptions
        self.life.actor.close()
        self.life.context.close()
        self.memory.close()


def recorded(path: Path, seed: int, turns: int = 400, deaths: bool = True, **options: Any) -> Load:
    load = Load(path, seed, **options)
    try:
        load.run(turns, deaths)
    finally:
        load.close()
    return load


def replayed(path: Path, **wishes: Any) -> Replay:
    replay = Replay(ReplayOptions(**wishes))
    replay.run(Reading(str(path)))
    return replay
