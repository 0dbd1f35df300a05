"""The worker actor over real rings: a test plays the scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.protocol.messages import Hello, StepFailed, WorkerReady
from actorserve.actors.protocol.step import NewRow, Step, StepDone
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import WorkerGauge
from actorserve.actors.worker.actor import WorkerActor, main
from actorserve.actors.worker.speculative.actor import SpeculativeWorkerActor
from actorserve.actors.worker.speculative.verifier import DraftOutcome

from .driver import GREEDY, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
WAIT_S = 30.0
PROMPT = list(range(3, 40))


class Scheduler:
    """The scheduler's end of the rings."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.context = self.born("scheduler")
        self.got: list[Any] = []

    def born(self, name: str) -> Context:
        return Context(self.memory.boot(self.memory.system.by_name[name]))

    def send(self, *messages: Any) -> None:
        for message in messages:
            self.context.post("worker", message)
        self.context.flush()

    def receive(self, count: int) -> list[Any]:
        """The next messages."""
        inbox = self.context.inbox
        for _ in range(int(WAIT_S)):
            inbox.drain(self.got.append)
            inbox.commit()
            if len(self.got) >= count:
                break
            inbox.wait(1.0)
        taken, self.got = self.got[:count], self.got[count:]
        assert len(taken) == count, f"only {taken} came"
        return taken


@pytest.fixture
def scheduler(checkpoints: Folders) -> Scheduler:
    config = config_for(checkpoints("llama"), block_size=16, max_num_seqs=4, threads=1, kv_cache_memory_bytes=4 << 20)
    return Scheduler(Memory(System(config, resolve_model(config))))


@contextmanager
def running(scheduler: Scheduler) -> Iterator[Context]:
    """A worker in a thread."""
    context = scheduler.born("worker")
    thread = threading.Thread(target=main, args=(context,), daemon=True)
    thread.start()
    try:
        yield context
    finally:
        context.request_stop()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def new_row(scheduler: Scheduler, tokens: list[int]) -> NewRow:
    table = scheduler.context.table
    ref = table.open_slot(5, b"", 0)
    table.write_prompt(ref, tokens, b"", 100)
    return NewRow.make(0, 5, len(tokens), len(tokens), 0, [0, 1, 2, 3], GREEDY)


def test_plans_become_tokens(scheduler: Scheduler, checkpoints: Folders) -> None:
    """Steps that are sent ahead are answered one by one, with the tokens that the runner gives by itself."""
    (expected,) = Driver(make_runner(config_for(checkpoints("llama")))).run([Sequence(PROMPT, 9)])
    row = new_row(scheduler, PROMPT)
    with running(scheduler) as context:
        (ready,) = scheduler.receive(1)
        assert isinstance(ready, WorkerReady) and ready.incarnation == context.incarnation == ready.kept_since
        assert context.board.gauge(context.spec.position, WorkerGauge.KV_TOKENS) == ready.num_blocks * 16
        first = [Step.make(7, 1, [row], [0], [30]), Step.make(7, 2, [], [0], [len(PROMPT) - 30])]
        scheduler.send(*first, *(Step.make(7, 3 + n, [], [0], [1]) for n in range(8)))
        done = scheduler.receive(10)
        scheduler.send(Hello())
        assert scheduler.receive(1) == [msgspec.structs.replace(ready, step=10)]
    assert [message.step for message in done] == list(range(1, 11))
    assert all(isinstance(message, StepDone) and message.epoch == 7 for message in done)
    assert [token for message in done for token in message.tokens.tolist()] == expected


def test_plans_from_before_are_forgotten(scheduler: Scheduler) -> None:
    """A plan that may have ended the last incarnation is not run again by the next one."""
    row = new_row(scheduler, PROMPT)
    scheduler.send(Step.make(3, 1, [row], [0], [37]))
    with running(scheduler):
        assert isinstance(scheduler.receive(1)[0], WorkerReady)
        scheduler.send(Step.make(3, 2, [], [0], [1]))  # of an epoch that this worker never saw begin
        scheduler.send(Step.make(4, 1, [row], [0], [37]))
        (done,) = scheduler.receive(1)
        assert (done.epoch, done.step) == (4, 1)
    assert not scheduler.got


class FailingRunner:
    """Raises what it is told to."""

    failed_rows = ()

    def __init__(self) -> None:
        self.error: Exception | None = None

    def run(self, step: Step) -> np.ndarray:
        if self.error:
            raise self.error
        return np.array([step.step], np.int32)


@pytest.fixture
def actor(scheduler: Scheduler) -> SimpleNamespace:
    runner = FailingRunner()
    worker = WorkerActor(scheduler.born("worker"), runner, 10)
    return SimpleNamespace(handle=worker.handle, runner=runner, context=worker.context)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    ],
)
def test_a_step_without_memory_fails_with_its_epoch(error: Exception, scheduler: Scheduler, actor: Any) -> None:
    """The steps that were planned upon it fail as well; a new epoch goes on."""
    actor.runner.error = error
    actor.handle(Step.make(1, 1, [], [], []))
    actor.runner.error = None
    actor.handle(Step.make(1, 2, [], [], []))
    actor.handle(Step.make(2, 1, [], [], []))
    _, first, second, third = scheduler.receive(4)
    assert first == StepFailed(1, 1, str(error))
    assert isinstance(second, StepFailed) and second.step == 2
    assert isinstance(third, StepDone) and third.tokens.tolist() == [1]


def test_other_errors_end_the_process(actor: Any) -> None:
    actor.runner.error = RuntimeError("shapes do not fit")
    with pytest.raises(RuntimeError, match="shapes"):
        actor.handle(Step.make(1, 1, [], [], []))


def test_no_step_is_begun_while_stopping(scheduler: Scheduler, actor: Any) -> None:
    actor.context.stopping = True
    actor.runner.error = AssertionError("it was run")
    actor.handle(Step.make(1, 1, [], [], []))
    actor.context.flush()
    (only,) = scheduler.receive(1)
    assert isinstance(only, WorkerReady) and not scheduler.got


@pytest.mark.parametrize("outcome", [None, DraftOutcome(np.array([2]), np.array([3]))], ids=["no drafts", "drafts"])
def test_the_time_of_each_step_is_counted(outcome: DraftOutcome | None, scheduler: Scheduler) -> None:
    runner: Any = FailingRunner()
    runner.outcome = outcome
    worker = SpeculativeWorkerActor(scheduler.born("worker"), runner, 10)
    for number in (1, 2):
        worker.handle(Step.make(1, number, [], [], []))
    _, first, second = scheduler.receive(3)
    assert first.had_drafts is (outcome is not None)
    told = [numbers.tolist() for numbers in (first.tokens, first.num_drawn, first.num_drafted)]
    assert told == ([[1], [2], [3]] if outcome is not None else [[1], [], []])
    words = worker.context.board.gauges(worker.context.spec.position)
    assert words[WorkerGauge.STEPS] == 2
    assert words[WorkerGauge.STEP_NS] == sum(int(done.seconds * 1e9) for done in (first, second)) > 0
