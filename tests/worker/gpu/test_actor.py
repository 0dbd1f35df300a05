"""The actor of a GPU over real rings, with a runner whose steps end when the test says so."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.protocol.messages import StepFailed, WorkerReady
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import run
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.worker.gpu.actor import GpuWorkerActor, Waiter
from actorserve.actors.worker.speculative.verifier import DraftOutcome

from ..driver import Driver, Sequence, config_for, make_runner
from ..test_actor import PROMPT, WAIT_S, Scheduler, new_row
from .test_runner import BLOCKS, make_gpu_runner

Folders = Callable[..., Path]


class DeviceEvent:
    """Stands for the end of a step on the device."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.error: RuntimeError | None = None

    def synchronize(self) -> None:
        assert self.reached.wait(WAIT_S)
        if self.error is not None:
            raise self.error


class SlowRunner:
    """Starts steps at once; the token of each is its number."""

    failed_rows = ()
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.events: deque[DeviceEvent] = deque()
        self.launched = threading.Semaphore(0)
        self.outcome: DraftOutcome | None = None
        self.pictures: object = None  # of a model that sees some
        self.refusal: Exception | None = None

    def launch(self, step: Step) -> SimpleNamespace:
        if self.refusal is not None:
            raise self.refusal
        self.events.append(DeviceEvent())
        self.launched.release()
        return SimpleNamespace(event=self.events[-1], seconds=0.25, step=step)

    def finish(self, pending: SimpleNamespace) -> np.ndarray:
        pending.event.synchronize()
        return np.array([pending.step.step], np.int32)


@pytest.fixture
def scheduler(checkpoints: Folders) -> Scheduler:
    config = config_for(checkpoints("llama"), block_size=16, max_num_seqs=4)
    return Scheduler(Memory(System(config, resolve_model(config))))


class Running:
    """The actor in a thread; `failure` is what ended it."""

    def __init__(self, scheduler: Scheduler, runner: Any) -> None:
        self.context = scheduler.born("worker")
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(runner,), daemon=True)
        self.thread.start()

    def _run(self, runner: Any) -> None:
        try:
            with torch.inference_mode():
                run(GpuWorkerActor(self.context, runner, BLOCKS), self.context)
        except RuntimeError as error:
            self.failure = error


@pytest.fixture
def worker(scheduler: Scheduler) -> Iterator[SimpleNamespace]:
    runner = SlowRunner()
    running = Running(scheduler, runner)
    assert isinstance(scheduler.receive(1)[0], WorkerReady)
    yield SimpleNamespace(runner=runner, running=running)
    for event in runner.events:
        event.reached.set()
    running.context.request_stop()
    running.thread.join(WAIT_S)
    assert not running.thread.is_alive()


def plan(number: int) -> Step:
    return Step.make(7, number, [], [0], [1])


def started(worker: SimpleNamespace, count: int) -> None:
    for _ in range(count):
        assert worker.runner.launched.acquire(timeout=WAIT_S)


def test_a_step_is_started_while_the_one_before_it_runs(scheduler: Scheduler, worker: SimpleNamespace) -> None:
    scheduler.send(plan(1), plan(2))
    started(worker, 2)
    scheduler.send(plan(3))
    started(worker, 1)
    scheduler.context.inbox.drain(scheduler.got.append)
    assert not scheduler.got, "none has ended"
    worker.runner.events[1].reached.set()  # not before the first: the device works in order, but threads may not
    worker.runner.events[0].reached.set()
    first, second = scheduler.receive(2)
    worker.runner.events[2].reached.set()
    (third,) = scheduler.receive(1)
    assert [done.step for done in (first, second, third)] == [1, 2, 3]
    assert all(isinstance(done, StepDone) and done.seconds == 0.25 for done in (first, second, third))
    assert [done.tokens.tolist() for done in (first, second, third)] == [[1], [2], [3]]


def test_who_waits_does_so_at_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread begins at the first device, where each worker of a group would take memory."""
    chosen: SimpleQueue[tuple[int, torch.device]] = SimpleQueue()
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: chosen.put((threading.get_ident(), device)))
    Waiter(os.eventfd(0), torch.device("cuda", 3))
    thread, device = chosen.get(timeout=WAIT_S)
    assert thread != threading.get_ident() and device == torch.device("cuda", 3)


@pytest.mark.parametrize("sees", [False, True])
def test_a_step_without_memory_fails_behind_those_that_run(
    scheduler: Scheduler, worker: SimpleNamespace, sees: bool
) -> None:
    worker.runner.pictures = object() if sees else None
    scheduler.send(plan(1))
    started(worker, 1)
    worker.runner.refusal = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
    scheduler.send(plan(2), plan(3))
    worker.runner.events[0].reached.set()
    done, failed, behind = scheduler.receive(3)
    assert isinstance(done, StepDone) and done.step == 1
    assert isinstance(failed, StepFailed) and failed.step == 2 and "--max-num-batched-tokens" in failed.reason
    assert ("smaller pictures" in failed.reason) == sees
    assert isinstance(behind, StepFailed) and behind.step == 3


def test_a_failure_of_the_device_ends_the_actor(scheduler: Scheduler, worker: SimpleNamespace) -> None:
    scheduler.send(plan(1))
    started(worker, 1)
    worker.runner.events[0].error = RuntimeError("CUDA error: an illegal memory access was encountered")
    worker.runner.events[0].reached.set()
    worker.running.thread.join(WAIT_S)
    assert "illegal memory access" in str(worker.running.failure)


def test_a_step_that_does_not_end_ends_the_actor(
    scheduler: Scheduler, worker: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = threading.Event()
    signals: list[tuple[int, int]] = []

    def kill(pid: int, number: int) -> None:
        signals.append((pid, number))
        killed.set()

    monkeypatch.setattr(os, "kill", kill)
    context = worker.running.context
    context.config = msgspec.structs.replace(context.config, step_timeout=0.01)
    scheduler.send(plan(1))
    started(worker, 1)
    assert killed.wait(WAIT_S), "the loop turns without messages, too"
    assert signals[0] == (os.getpid(), signal.SIGKILL)


def test_the_scheduler_is_told_what_came_of_drafts(scheduler: Scheduler, worker: SimpleNamespace) -> None:
    worker.runner.outcome = DraftOutcome(np.array([1]), np.array([3]))
    scheduler.send(plan(1))
    started(worker, 1)
    worker.runner.events[0].reached.set()
    (done,) = scheduler.receive(1)
    assert isinstance(done, StepDone) and done.had_drafts
    assert (done.num_drawn.tolist(), done.num_drafted.tolist(), done.tokens.tolist()) == ([1], [3], [1])


def test_plans_become_tokens(scheduler: Scheduler, checkpoints: Folders) -> None:
    """A real runner, steps sent ahead: the tokens are those of a CPU."""
    config = config_for(checkpoints("llama"), block_size=16)
    (expected,) = Driver(make_runner(config)).run([Sequence(PROMPT, 4)])
    runner = make_gpu_runner(config)
    runner.log = scheduler.context.table.as_numpy().tokens
    row = new_row(scheduler, PROMPT)
    running = Running(scheduler, runner)
    assert isinstance(scheduler.receive(1)[0], WorkerReady)
    scheduler.send(Step.make(7, 1, [row], [0], [len(PROMPT)]), plan(2), plan(3), plan(4))
    done = scheduler.receive(4)
    running.context.request_stop()
    running.thread.join(WAIT_S)
    assert [token for message in done for token in message.tokens.tolist()] == expected
