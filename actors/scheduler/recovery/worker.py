"""The worker of an engine, as its scheduler has it: which life the plans are for, and what becomes of requests when
that ends, fails at a step, is let go of, or is followed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.rings.mailbox import wake

from ...protocol.messages import Hello, Message, StepFailed, WorkerReady
from ...runtime.in_flight import request_name
from ...runtime.process import Context
from ..metrics.gauges import GaugeWriter
from ..scheduler import Scheduler
from .handover import Handover
from .takeover import Contradiction
from .worker_group import WorkerGroup


class EngineWorker:
    """All of its group, of which the first member answers."""

    def __init__(
        self,
        context: Context,
        scheduler: Scheduler,
        gauges: GaugeWriter,
        handover: Handover | None,
        tell: Callable[[Message], None],
        has_none: Callable[[], bool],
    ) -> None:
        """`has_none`: is the engine one more than are wanted?"""
        self._context, self._scheduler, self._gauges, self._handover = context, scheduler, gauges, handover
        self._tell, self._has_none = tell, has_none
        self._group = WorkerGroup(context)
        self._epochs = 0
        self._greeted = False  # the worker was asked to say that it is there, or need not be
        self.incarnation = 0  # of the worker whose KV memory the plans speak of
        self.leaves = False  # it computes for those that are still to be given away

    def greet(self) -> None:
        """Let the worker say that it is there, now or, if its engine is parked, when it is ready."""
        if self._handover is None or not self._handover.is_parked:
            self._greeted = True
            self._tell(Hello())

    def meet(self, message: WorkerReady) -> None:
        """A life that was not met yet gets an epoch: of what it has in its memory still, or a new one."""
        if message.incarnation == self.incarnation:
            return
        is_news = self._scheduler.pool.count > 0  # that the one before is gone
        running = self._lose(message.replaced) if is_news else len(self._scheduler.sequences)
        before, self.incarnation = self.incarnation, message.incarnation
        self._group.met(message.incarnation)
        if self._scheduler.pool.count:
            self._scheduler.end_epoch(self._next_epoch())
        if self._scheduler.limits.drafts_alone:
            self._scheduler.speculation.most = message.drafts
        self._scheduler.joins = message.joins
        self._scheduler.jumps = message.jumps
        goes_on = self._take_over(message)
        if before:
            how = "go on where they stood" if goes_on else "are computed again"
            self._context.log.warning("the worker was replaced: %d requests %s", running, how)
        if not goes_on:
            self._scheduler.begin_epoch(self._next_epoch(), message.num_blocks, self.incarnation, message.layout)
        if self._scheduler.adapters is not None:
            self._scheduler.adapters.meet_worker(message.incarnation, message.adapters)
        self._gauges.write()
        wake(self._context.eventfds["supervisor"])  # now requests can be served
        if self._handover is not None:
            self._handover.met(bool(message.kept_since))
            for scheduler in self._handover.others:  # one that has lost its worker may wait for somebody to give to
                wake(self._context.eventfds[scheduler])

    def _take_over(self, message: WorkerReady) -> bool:
        """Go on with what a predecessor had in this worker's KV memory; False if that cannot be used."""
        log, scheduler = self._context.log, self._scheduler
        try:
            memory = message.num_blocks, message.incarnation, message.layout, message.kept_since
            found = scheduler.take_over(self._next_epoch(), *memory)
        except Contradiction as error:
            log.error("the KV map is not to be trusted: %s", error)
            found = None
        requests, known = len(scheduler.sequences), sum(s.num_tokens for s in scheduler.sequences.values())
        if found is not None:
            text = "%d requests go on, %d of their %d tokens of KV and %d cached blocks are taken over"
            log.info(text, requests, found.tokens, known, len(found.cached))
        elif requests:
            log.info("%d requests go on, and all of their %d tokens are computed again", requests, known)
        return found is not None

    def _lose(self, replaced: bool) -> int:
        """Who ran survives, or is to blame if the worker's end was not wanted; how many they were."""
        if not replaced:
            self._blame()
        running = self._scheduler.batch.running()
        self._scheduler.stats.survived(running)
        return len(running)

    def _blame(self) -> None:
        """A worker that dies again and again on one request must not take the server with it."""
        for ref in self._scheduler.blame():
            self._context.status.give_up()
            self._context.log.error("%s is given up: workers died on it", request_name(self._context.table, ref))

    def step_failed(self, message: StepFailed) -> None:
        """As when a worker dies: who fails alone, again and again, is given up, and the others are computed again."""
        if message.epoch != self._scheduler.epoch:
            if not self.incarnation:  # a predecessor's, and nobody may have heard of it
                self._scheduler.kv.disown()
            return
        self._context.log.error("step %d failed in the worker: %s", message.step, message.reason)
        for ref in self._scheduler.fail_step():
            self._context.status.give_up()
            self._context.log.error("%s is given up: its steps fail", request_name(self._context.table, ref))
        self._scheduler.begin_epoch(self._next_epoch(), self._scheduler.pool.count, self.incarnation)

    def sleep(self) -> None:
        """The engine sleeps: who ran waits, and what the worker still says counts no more."""
        self.incarnation = 0
        if self._scheduler.pool.count:
            self._scheduler.end_epoch(self._next_epoch())
        self.forget_memory()
        self._gauges.write()

    def has_untold_ends(self) -> bool:
        """Do some wait for steps that nobody is left to compute? The next worker may take minutes."""
        return bool(self._scheduler.lifecycle.deferred) and self._group.is_gone

    def forget_memory(self) -> None:
        """The KV memory is given back, or is about to be: nobody is to be told that something is cached there."""
        self._scheduler.kv.begin(0, 0)
        self._scheduler.lifecycle.end_deferred()

    def _next_epoch(self) -> int:
        """A number that no other epoch of this server has: this actor's incarnation, then a count."""
        self._epochs += 1
        return self._context.incarnation << 32 | self._epochs

    def give_away(self, handover: Handover) -> int:
        """While there is no worker, or it is about to end, others go on with what is here."""
        alone = self._group.is_gone
        if not alone and not handover.leaves:
            if self.leaves:  # who was given may come back: not to a step that is under way
                self._let_go()
            if not (self._greeted or self._scheduler.pool.count):  # it was let go of, and is wanted now
                self.incarnation = 0
                self.greet()
            return 0
        if alone and self._scheduler.pool.count:
            handover.lost()
            self._lose(self._group.was_replaced())
        if not alone and self._scheduler.pool.count and self._has_any:
            if not self.leaves:
                handover.begins_to_leave()
            self.leaves = True
            given = self._say_given(handover.give_part(), alone)
            if self._has_any:
                return given
        if self._scheduler.pool.count:
            self._let_go()
        return 0 if alone and handover.waits_s else self._say_given(handover.give_all(self._has_none()), alone)

    @property
    def _has_any(self) -> bool:
        """Or one that is given, and of which a step is under way?"""
        return bool(self._scheduler.sequences or self._scheduler.lifecycle.deferred)

    def _let_go(self) -> None:
        """What it has still said counts no more."""
        self._scheduler.end_epoch(self._next_epoch())
        if self._has_none():
            self.forget_memory()
        self._greeted = self.leaves = False
        self._gauges.write()
        wake(self._context.eventfds["supervisor"])  # which may wait for this

    def _say_given(self, given: dict[int, int], alone: bool) -> int:
        if given:
            where = ", ".join(f"{count} in engine {engine}" for engine, count in given.items())
            why = "there is no worker now" if alone else "the worker is about to end"
            self._context.log.warning("%s: requests go on elsewhere, %s", why, where)
            self._gauges.write()
        return len(given)
