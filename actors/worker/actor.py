"""The worker actor: turns the scheduler's plans into steps of the CpuRunner, and what they sample into messages.

It knows nothing of HTTP or text, and of requests only their slots. torch is imported only here and below, as
torch_import.py does it.
"""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from ..options.objects.speculative import count_drafts
from ..protocol.messages import Hello, Message, StepFailed, ToWorker, WorkerReady
from ..protocol.step import KVLayout, Step, StepDone
from ..protocol.topics.adapters import AdapterRead, DropAdapter, ReadAdapter
from ..protocol.topics.administration import CallMethod, LookAtSleep, ResetEncoderCache
from ..protocol.topics.tiers import BlocksLoaded, LoadBlocks
from ..runtime.dump import write_dump
from ..runtime.in_flight import NO_REQUEST, request_name
from ..runtime.process import RENEW, Actor, Context, run
from ..telemetry.gauges import WorkerGauge as Gauge
from ..telemetry.trace_events import EventKind, counts
from .joined_steps import JoinedSteps
from .methods import WorkerMethods
from .parked import ParkedWorker, load_weights, sleep_word
from .plugins.worker import Worker, own_methods
from .profile import TorchProfiler
from .start.model import load
from .start.token_log import read_own_tokens
from .torch_import import import_torch

if TYPE_CHECKING:
    from ..protocol.wire import Numbers
    from .kept_memory.tier import TierReader
    from .lora.resident import AdapterReader
    from .pooling.dual_encoder import DualEncoderRunner
    from .speculative.verifier import DraftOutcome
    from .vision.rows import VisionRows


MOST_SHOWN = 64  # rows in a dump
OUT_OF_MEMORY = "allocate memory", "CUDA out of memory"  # in what torch's allocators say when they cannot


class StepRunner(Protocol):
    """What runs steps."""

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""

    @property
    def failed_rows(self) -> Numbers:
        """The rows of the last step that have failed, as StepDone has them: what they drew is no token of theirs."""


class WorkerActor(Actor):
    """Adapter between the rings and the CpuRunner."""

    def __init__(
        self,
        context: Context,
        runner: StepRunner,
        blocks: int,
        layout: KVLayout | None = None,
        tokens: int | None = None,
        adapters: AdapterReader[Any, Any] | None = None,
    ) -> None:
        """`tokens` that the blocks hold, if it is not each its own; `adapters` of --enable-lora."""
        self.context = context
        self.adapters = adapters
        self.layout = layout or KVLayout()
        self.runner = runner
        self.blocks = blocks
        self.tokens = blocks * context.config.block_size if tokens is None else tokens
        self.tier: TierReader | None = None  # of --kv-offload
        self.vision: VisionRows | DualEncoderRunner | None = None  # of a model that sees pictures
        self.epoch = 0  # of the scheduler's view that the rows belong to; 0: none
        self.broken = False  # a step of the epoch failed, so that its rows are not what the scheduler thinks
        self.step = 0
        self._scheduler = context.system.scheduler_of(context.spec.engine)
        self.reports = context.system.is_reporter(context.spec)  # for its group: all who draw come to the same
        self.joined = JoinedSteps(context.outboxes[self._scheduler], context.inbox)
        self._methods = WorkerMethods(self)
        self._own: Worker | None = None
        self._last: Step | None = None
        self._dumped = False
        self._torch_profiler: TorchProfiler | None = None
        if context.config.worker == "model":
            context.profile.make_device = self._profile_device
        self._report_ready()

    def use(self, own: Worker | None) -> None:
        """The object of --worker-cls, if there is one."""
        self._own = own
        if own is not None:
            self._methods.add(own_methods(own))

    def handle(self, message: ToWorker) -> None:
        """One message, done completely and answered at once: behind it the next plan may wait already."""
        if self.context.stopping:
            return
        match message:
            case Step():
                self._run(message)
            case Hello():
                self._report_ready()
            case LookAtSleep():
                self._look_at_sleep()
            case CallMethod():
                self.context.post(self._scheduler, self._methods.call(message))
            case LoadBlocks() if self.tier is not None:
                self.tier.load(message)
                self.context.post(self._scheduler, BlocksLoaded(message.number, self.context.spec.index))
            case ReadAdapter() if self.adapters is not None:
                self.adapters.read(message.adapter, message.path, message.stamp)
            case DropAdapter() if self.adapters is not None:
                self.adapters.drop(message.adapter)
            case ResetEncoderCache() if self.vision is not None:
                count = self.vision.encoder.cache.clear()
                self.context.log.info("the encoder cache was reset: embeddings of %d pictures dropped", count)
        self.joined.flush()
        self.context.flush()
        self.context.status.beat()

    def _look_at_sleep(self) -> None:
        """Its successor is parked; or the engine was woken before this life had to end, and must be met again."""
        if sleep_word(self.context).state.is_parked:
            self.context.log.info("the engine sleeps: weights and KV memory are given back")
            sys.exit(RENEW)
        self._report_ready()

    def do_work(self) -> int:
        """Adapters that have been read are there from the next step on."""
        self.joined.turn()
        return self.tell_read()

    def tell_read(self) -> int:
        """Which adapters have been read; each of a group says so itself."""
        if self.adapters is None:
            return 0
        own, rank = self.context.incarnation, self.context.spec.index
        read = self.adapters.take_read()
        for news in read:
            self.context.post(self._scheduler, AdapterRead(own, rank, *news))
        return len(read)

    def _profile_device(self) -> TorchProfiler:
        self._torch_profiler = TorchProfiler()
        return self._torch_profiler

    @property
    def joins(self) -> bool:
        """Whether brief steps are told of two at a time: where each is answered as it ends, and none is elsewhere."""
        return self.context.config.pipeline_parallel_size == 1

    def most_drafts(self) -> int:
        """That a row may have in a step."""
        return count_drafts(self.context.config)

    def most_jumps(self) -> int:
        """Tokens that a row may go on by in a step where its grammar leaves no choice."""
        return 0

    def _report_ready(self) -> None:
        board, members = self.context.board, self.context.system.workers_of(self.context.spec.engine)
        replaced = all(board.ended(member.position) in NO_REQUEST for member in members)
        own = self.context.incarnation
        there = [] if self.adapters is None else self.adapters.there
        since = self.context.kept_since
        drafts, jumps = self.most_drafts(), self.most_jumps()
        ready = WorkerReady(own, self.blocks, self.step, replaced, self.layout, drafts, there, jumps, since)
        self._post(msgspec.structs.replace(ready, joins=self.joins))

    def _post(self, message: Message) -> None:
        if self.reports:
            self.context.post(self._scheduler, message)

    def _run(self, message: Step) -> None:
        if message.epoch != self.epoch:
            if message.step != 1:  # planned for the rows of an earlier incarnation; its scheduler will begin anew
                self.context.log.info("step %d of another epoch is dropped", message.step)
                return
            self.epoch, self.broken = message.epoch, False
        self.step, self._last = message.step, message
        if self.broken:
            self.fail(message, "an earlier step of its epoch failed")
        else:
            self.compute(message)

    def compute(self, message: Step) -> None:
        """Run a step of the epoch that is on."""
        start = time.perf_counter()
        if self.joins:
            self.joined.begins(message)
        try:
            run = self.runner.run
            tokens = run(message) if self._own is None else self._own.execute_model(message, run)
        except (MemoryError, RuntimeError) as error:
            alone = self.context.config.workers == 1  # others would be in the middle of this step
            full = any(words in str(error) for words in OUT_OF_MEMORY)
            if not alone or (isinstance(error, RuntimeError) and not full):
                raise
            self.fail(message, str(error))
            return
        seconds = time.perf_counter() - start
        self.report_done(message, tokens, seconds, self.runner.failed_rows)

    def report_done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> None:
        """A step has ended now; the arrays are as StepDone has them. The scheduler is told before anything else."""
        self._post(self.done(message, tokens, seconds, failed_rows))
        self.joined.ended(seconds)
        self.joined.flush()
        self.context.flush()
        small = counts(message.num_rows, message.num_tokens)
        self.context.trace.add(time.monotonic_ns(), EventKind.STEP, int(seconds * 1e9), message.step, small)
        self.context.status.add(Gauge.STEPS, 1)
        self.context.status.add(Gauge.STEP_NS, int(seconds * 1e9))
        if self._torch_profiler is not None:
            self._torch_profiler.step()

    @property
    def outcome(self) -> DraftOutcome | None:
        """Of the step that has ended now, where rows had drafts."""
        return None

    def done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> StepDone:
        """What the scheduler is told of a step that has ended."""
        drawn, drafted = self.outcome or ((), ())
        return StepDone.make(message, tokens, seconds, failed_rows=failed_rows, num_drawn=drawn, num_drafted=drafted)

    def about_failure(self) -> dict[str, Any]:
        """The step that it was given last."""
        step = self._last
        if step is None:
            return {"step": "none yet"}
        pairs = zip(step.rows.tolist(), step.counts.tolist(), strict=True)
        table = self.context.table
        new = [
            f"row {one.row}: request {request_name(table, one.ref)}, {one.num_prompt_tokens} prompt tokens, "
            f"{one.num_computed_tokens} of {one.num_known_tokens} computed, blocks {one.blocks.tolist()[:MOST_SHOWN]}"
            for one in step.new_rows[:MOST_SHOWN]
        ]
        return {
            "step": {"epoch": step.epoch, "number": step.step, "rows": step.num_rows, "tokens": step.num_tokens},
            "plan": [f"row {row}: {count} tokens" for row, count in pairs][:MOST_SHOWN],
            "new rows": new,
            "new blocks": [str(one) for one in step.new_blocks.tolist()[:MOST_SHOWN]],
        }

    def _dump(self, reason: str) -> None:
        """Of the first step of this life that fails and is survived; one that is not is dumped by the loop."""
        error = sys.exception()
        if error is not None and not self._dumped:
            self._dumped = True
            self.context.log.error("step %d failed: %s", self.step, reason)
            write_dump(self.context, error, self.about_failure())

    def fail(self, message: Step, reason: str) -> None:
        """A step could not be computed, nor can those behind it."""
        self.broken = True
        self._dump(reason)
        self._post(StepFailed(message.epoch, message.step, reason))


def main(context: Context) -> None:
    """Load the model and run steps until told to stop."""
    if context.config.node_of(context.spec.index) != context.config.node_rank:
        from .pipeline.nodes import proxy

        proxy.main(context)
        return
    _drop_old_steps(context)
    if sleep_word(context).state.is_parked:
        run(ParkedWorker(context), context)
        return
    read_own_tokens(context)
    if context.config.worker == "scripted":
        from . import scripted

        run_worker(scripted.start(context))
        return
    gc.disable()  # it would go again and again through all that comes with torch, for a tenth of the time
    import_torch()
    import torch

    with torch.inference_mode():
        actor = load_weights(context, load)
        if isinstance(actor, ParkedWorker):
            run(actor, context)
        else:
            run_worker(actor)


def run_worker(actor: WorkerActor) -> None:
    """Run steps until told to stop."""
    context = actor.context
    context.status.set_gauge(Gauge.KV_TOKENS, actor.tokens)
    gc.freeze()  # what is there now stays: no step waits while it is looked through
    gc.enable()
    if context.config.headless:
        from .pipeline.nodes.remote import run_remote

        run_remote(actor)
    else:
        run(actor, context)


def start(context: Context) -> WorkerActor | ParkedWorker:
    """The worker in a process of all actors, parked where its engine sleeps."""
    if sleep_word(context).state.is_parked:
        return ParkedWorker(context)
    return load_weights(context, load)


def _drop_old_steps(context: Context) -> None:
    """Plans from before this incarnation speak of KV that is gone; one of them may be what ended the last one."""
    while context.inbox.drain(lambda message: None):
        context.inbox.commit()
