"""The scheduler actor: turns messages into calls of Scheduler, and its plans and moves into messages.

It never touches a tensor. Who it hears: renderers (Admit), frontends (Cancel), detokenizers (Stopped), the worker, and
schedulers of other engines (recovery/handover.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from actorserve.shm.kv_map.map import KVMap
from actorserve.shm.table.table import slot_of

from ..options.objects.speculative import is_by_itself, most_drafts
from ..protocol.kinds import KINDS
from ..protocol.messages import Admit, Advance, Cancel, Finish, Message, StepFailed, Stopped, ToScheduler, WorkerReady
from ..protocol.step import StepDone
from ..protocol.topics.adapters import AdapterRead, AdapterReplaced, LoadAdapter, UnloadAdapter
from ..protocol.topics.administration import (
    Abort,
    CallWorkers,
    MethodCalled,
    Parked,
    Pause,
    Profile,
    ResetEncoderCache,
    ResetPrefixCache,
    Resume,
    Sleep,
    Unloadable,
    WakeUp,
)
from ..protocol.topics.tiers import BlocksLoaded, Fetched
from ..runtime.in_flight import GivenUp, log_debug, request_name
from ..runtime.process import IDLE_S, Actor, Context, run
from ..telemetry.trace_events import EventKind, counts, queues
from .administration.engine import EngineAdministration
from .administration.requests import RequestAdministration
from .limits import Limits
from .lora.lanes import AdapterLanes, make_adapters
from .metrics.gauges import GaugeWriter
from .metrics.request_stats import RequestStats
from .policy.plan_timing import PlanTiming
from .recovery.handover import PARTS_S, Handover, adopt_suspicion
from .recovery.worker import EngineWorker
from .scheduler import Scheduler
from .tiers.lanes import TierLanes

MOST_SHOWN = 64  # rows in a dump
PLANNED, APPLIED = int(EventKind.PLANNED), int(EventKind.APPLIED)  # an attribute of an enumeration is slow to come by


def _limits(context: Context) -> Limits:
    config = context.config
    stages = config.pipeline_parallel_size
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_queued=context.system.max_queued,
        max_num_batched_tokens=config.max_num_batched_tokens,
        block_size=config.block_size,
        prefix_caching=config.enable_prefix_caching and context.model.encoder is None,
        by_priority=config.scheduling_policy == "priority",
        pools=context.model.pooling is not None,
        whole_prompts=context.model.encoder is not None,
        drafts=most_drafts(config),
        drafts_alone=is_by_itself(config),
        vision=context.model.vision,
        max_num_encoder_input_tokens=config.max_num_encoder_input_tokens,
        max_queued_tokens=config.max_num_queued_tokens,
        long_prefill_tokens=config.long_prefill_token_threshold,
        # between two tokens of a row others' steps go through each stage of a pipeline
        target_itl_s=None if config.target_itl_ms is None else config.target_itl_ms / 1e3 / stages,
        stages=stages,
        members=config.tensor_parallel_size,
    )


class SchedulerActor(Actor):
    """Adapter between the rings and the Scheduler."""

    def __init__(self, context: Context) -> None:
        self.context = context
        system = context.system
        self._detokenizers = system.detokenizers_of(context.spec.model)
        self._add = context.trace.add
        kv = KVMap(context.segment.map, system.kv_map_offsets[context.spec.engine], *system.kv_map_sizes)
        stats = RequestStats(context.table, context.histograms)
        arena = context.media()
        beside = None if arena is None else arena.items, make_adapters(context)
        self.scheduler = Scheduler(context.table, _limits(context), context.model.end_tokens, kv, stats, *beside)
        self.scheduler.notes = context.kv_notes()
        if (embeds := context.prompt_embeds()) is not None:
            self.scheduler.lifecycle.embeds = embeds.given
        self.timing = PlanTiming(self.scheduler)
        self.gauges = GaugeWriter(self.scheduler, context.status, context.board.gauges(context.spec.position))
        self._workers = system.group_of(KINDS["worker"], context.spec.engine)
        self.tiers = TierLanes(context, self.scheduler) if context.config.offloads else None
        self.handover = Handover(context, self.scheduler) if len(system.engines) > 1 else None
        if self.handover is not None:
            self.scheduler.others_end = self.handover.draining.others_end
        self.scheduler.recover(self._admit, None if self.handover is None else self.handover.recovered())
        members = len(system.workers_of(context.spec.engine))
        self.requests = RequestAdministration(context, self.scheduler, self._post_to_workers)
        self.administration = EngineAdministration(context, self.scheduler, members, self._post_to_workers)
        lanes = self.handover, self._post_to_workers, lambda: self.administration.has_no_workers
        self.worker = EngineWorker(context, self.scheduler, self.gauges, *lanes)
        self.adapters = AdapterLanes(context, self.scheduler, self._post_to_workers)
        if self.administration.is_parked or self.administration.has_no_workers:
            self.worker.forget_memory()
        self.worker.greet()

    def _post_to_workers(self, message: Message) -> None:
        """All of a group run the same steps, and get them by one ring; its first member answers for it."""
        self.context.post(self._workers, message)

    def handle(self, message: ToScheduler) -> None:
        """One message; each may come twice."""
        scheduler = self.scheduler
        match message:
            case StepDone():
                scheduler.apply(message)
                self._trace(APPLIED, message.step)
            case Admit():
                for ref in self._own(message.refs, Admit):
                    self._admit(ref)
            case Cancel():
                for ref in self._own(message.refs, Cancel):
                    if self.context.table.is_cancelled(ref):
                        scheduler.end(ref, Finish.ABORT)
            case Stopped():
                for ref in self._own(message.refs, Stopped):
                    scheduler.end(ref, Finish.STOP_STRING)
            case Pause() | Resume() | Abort() | ResetPrefixCache() | ResetEncoderCache():
                self.requests.handle(message)
            case Sleep() | WakeUp() | Parked() | Unloadable() | CallWorkers() | MethodCalled() | Profile():
                if self.administration.handle(message):
                    self.worker.sleep()
            case WorkerReady():
                if not self.administration.is_parked:
                    self.worker.meet(message)
            case StepFailed():
                self.worker.step_failed(message)
            case LoadAdapter() | UnloadAdapter() | AdapterRead() | AdapterReplaced():
                self.adapters.handle(message)
            case Fetched() | BlocksLoaded() if self.tiers is not None:
                self.tiers.handle(message)

    def _own(self, refs: list[int], make: Callable[[list[int]], Message]) -> list[int]:
        """Those of this engine, where there are others."""
        return refs if self.handover is None else self.handover.own(refs, make)

    def _admit(self, ref: int) -> None:
        """A sequence of which schedulers die must not take the server with it."""
        try:
            with self.context.in_flight.hold(ref):
                self.scheduler.admit(ref)
                if self.tiers is not None:
                    self.tiers.fetches.admitted(ref)
                adopt_suspicion(self.scheduler, ref)
            log_debug(self.context.log, "%s was admitted", self.context.table, ref)
        except GivenUp:
            self.context.log.error("%s is given up: schedulers died on it", request_name(self.context.table, ref))
            self.scheduler.lifecycle.refuse(ref)

    def do_work(self) -> int:
        """Plan as far ahead as is good, tell detokenizers what moved."""
        done = 0 if self.handover is None or self.administration.is_parked else self.worker.give_away(self.handover)
        if self.handover is not None and (self.handover.hand_on() or self.handover.share()):
            self.gauges.write()
        if self._has_untold_ends():
            self.scheduler.lifecycle.end_deferred()
        if self.tiers is not None:
            done += self.tiers.turn(self._workers)
        if self.scheduler.in_flight or not self.scheduler.sequences:  # the worker waits for nothing: text goes first
            done += self._post_moved()
        done += self._plan()
        done += self._turn_administration() + self.adapters.turn() + self._post_moved()
        if self.tiers is not None:
            self.wait_s = self.tiers.sooner(self.wait_s)
        self.gauges.write_progress()
        if self.handover is not None and (waits_s := self.handover.waits_s or self.worker.leaves * PARTS_S):
            self.wait_s = min(self.wait_s, waits_s)
        if self.context.config.debug and not self.scheduler.in_flight:
            self.scheduler.check_integrity()
        return done

    def _has_untold_ends(self) -> bool:
        return self.worker.has_untold_ends()

    def _plan(self) -> int:
        """Steps, as many as are good ahead; the worker has each before anything else is done here."""
        done = 0
        while not self._holds() and (step := self.scheduler.plan()) is not None:
            self._post_to_workers(step)
            self.context.outboxes[self._workers].flush()
            planned = self.scheduler.in_flight[-1]
            # of these there is nothing to say yet: meanwhile it is made ready to be read
            silent = [one.ref for one in planned.new if one.num_known_tokens == one.num_prompt_tokens]
            self.scheduler.lifecycle.have_moved(silent)
            self._trace(PLANNED, step.step, counts(len(planned.rows), planned.tokens))
            done += 1
        return done

    def _turn_administration(self) -> int:
        scheduler = self.scheduler
        drains, slept = scheduler.drains, scheduler.sleep.state.is_on
        paused = self.requests.turn()
        fell_asleep, done = self.administration.turn(self.worker.incarnation)
        if fell_asleep:
            self.worker.sleep()
        woken = slept and not scheduler.sleep.state.is_on
        if woken:
            self.gauges.write()  # by which the model's other engines wake, too
        if (woken or (drains and not scheduler.drains)) and self.handover is not None:
            self.handover.wake_others()
        return paused + done

    def about_failure(self) -> dict[str, Any]:
        """How it stood, and the steps that are under way."""
        scheduler = self.scheduler
        in_flight = [f"{len(step.rows)} rows, {step.tokens} tokens" for step in scheduler.in_flight]
        rows = [
            f"row {one.row}: request {request_name(self.context.table, one.ref)}, {one.num_tokens} tokens, "
            f"{len(one.blocks)} blocks"
            for one in scheduler.batch.running()[:MOST_SHOWN]
        ]
        stands = {"epoch": scheduler.epoch, "step": scheduler.step, "waiting": len(scheduler.waiting)}
        blocks = {"blocks": scheduler.pool.count, "free": scheduler.pool.free}
        return {"scheduler": stands | blocks, "steps in flight": in_flight, "rows": rows}

    def _holds(self) -> bool:
        """Whether there is better no plan now; then it looks again when that has changed."""
        hold_s = self.timing.hold_s()
        self.wait_s = hold_s or IDLE_S
        return hold_s > 0

    def _trace(self, kind: int, step: int, small: int = 0) -> None:
        number = queues(len(self.scheduler.batch), len(self.scheduler.waiting))
        self._add(time.monotonic_ns(), kind, step, number, small)

    def published(self) -> None:
        """The Advances are in the lanes."""
        self.scheduler.announce_ends()

    def _post_moved(self) -> int:
        moved = self.scheduler.lifecycle.take_moved()
        if not moved:
            return 0
        if self.scheduler.lifecycle.ended:  # who is told of an end, and asks for the counts, finds it among them
            self.gauges.write()
        by_reader: dict[str, list[int]] = {self._detokenizers[0]: moved}
        if len(self._detokenizers) > 1:
            by_reader = {name: [] for name in self._detokenizers}
            for ref in moved:
                by_reader[self.context.system.detokenizer_of(slot_of(ref), self.context.spec.model)].append(ref)
        for name, refs in by_reader.items():
            if refs:
                self.context.post_refs(name, Advance, refs)
                self.context.outboxes[name].flush()  # as a record of its own
        return len(moved)


def main(context: Context) -> None:
    """Run the scheduler until it is told to stop."""
    if context.config.record is None:
        run(SchedulerActor(context), context)
    else:
        from .replay.recorder import run_recorded  # it is an actor of this module's kind

        run_recorded(context)
