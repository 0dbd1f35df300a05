"""The worker actor of a GPU: it starts steps as they come and tells of each when the device has done it.

The scheduler sends a step before the one before it is done, so that one runs while the next waits in the device's
queue. Who waits for the device is a thread of its own, which wakes the actor; so the actor also hears what comes
meanwhile, and beats. A step that never ends is noticed here, since no loop stands still.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from queue import SimpleQueue

import torch

from actorserve.shm.rings.mailbox import wake

from ...protocol.step import KVLayout, Step
from ...runtime.process import Context
from ..actor import WorkerActor
from ..speculative.verifier import DraftOutcome
from .lora.resident import SlotAdapters
from .runner import GpuRunner
from .sampler import PendingStep


class LaunchedStep:
    """A step that the device was given."""

    def __init__(self, message: Step, pending: PendingStep) -> None:
        self.message, self.pending = message, pending
        self.since = time.monotonic()
        self.ended = threading.Event()


class Waiter:
    """Waits for steps in the order in which they were started, and wakes an actor at the end of each."""

    def __init__(self, wakeup: int, device: torch.device) -> None:
        self._wakeup, self._device = wakeup, device
        self._steps: SimpleQueue[LaunchedStep] = SimpleQueue()
        self.watch = self._steps.put
        threading.Thread(target=self._wait, name="waiter", daemon=True).start()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)  # each thread begins at the first, and would take memory there
        while True:
            step = self._steps.get()
            if step.pending.event is not None:
                # the device has failed: whoever finishes the step hears it again
                with contextlib.suppress(RuntimeError):
                    step.pending.event.synchronize()
            step.ended.set()
            wake(self._wakeup)


class GpuWorkerActor(WorkerActor):
    """Adapter between the rings and a GpuRunner."""

    def __init__(
        self,
        context: Context,
        runner: GpuRunner,
        blocks: int,
        layout: KVLayout | None = None,
        tokens: int | None = None,
        adapters: SlotAdapters | None = None,
    ) -> None:
        self.gpu = runner
        self.steps: deque[LaunchedStep] = deque()  # and not told of yet
        self.waiter = Waiter(context.eventfds[context.name], runner.device)
        super().__init__(context, runner, blocks, layout, tokens, adapters)

    @property
    def joins(self) -> bool:
        """The device has its next step in any case, and who waits for it tells of each."""
        return False

    def compute(self, message: Step) -> None:
        """Start a step; it is told of when it has ended."""
        try:
            started = LaunchedStep(message, self.gpu.launch(message))
        except torch.OutOfMemoryError as error:
            if self.context.config.tensor_parallel_size > 1:
                raise  # others would be in the middle of this step
            while self.steps:
                self._report_oldest()
            smaller = "" if self.gpu.pictures is None else ", and so do smaller pictures (--mm-processor-kwargs)"
            self.fail(message, f"{error}; a lower --max-num-batched-tokens or --max-num-seqs needs less{smaller}")
            return
        self.steps.append(started)
        self.waiter.watch(started)

    @property
    def outcome(self) -> DraftOutcome | None:
        return self.gpu.outcome

    def do_work(self) -> int:
        """Tell of the steps that have ended, and of adapters that are in their slots."""
        done = self.tell_read()
        while self.steps and self.steps[0].ended.is_set():
            self._report_oldest()
            done += 1
        limit = self.context.config.step_timeout
        if self.steps and time.monotonic() - self.steps[0].since > limit:
            self.context.log.critical("step %d has not ended after %g s", self.steps[0].message.step, limit)
            os.kill(os.getpid(), signal.SIGKILL)  # the device does not answer: whatever cleans up would hang, too
        return done

    def _report_oldest(self) -> None:
        step = self.steps.popleft()
        tokens = self.gpu.finish(step.pending)
        seconds = step.pending.seconds
        seconds = time.monotonic() - step.since if seconds is None else seconds
        self.report_done(step.message, tokens, seconds, self.gpu.failed_rows)
