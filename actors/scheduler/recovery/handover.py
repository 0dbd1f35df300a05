"""Sequences change their engine: what a scheduler gives to another one, and what it does with messages of slots that
are not its own. A server with one engine has none of this.

Who owns a slot says the engine word (shm/table/table.py). To give one away is, in this order:
    1  its row and blocks are let go of, in the KV map, too
    2  the engine word gets the other's number
    3  Admit is posted to the other's scheduler
A scheduler that dies before 2 has a successor that owns the slot still, and begins with it anew; one that dies between
2 and 3, or before what it posted is in the lane, has a successor that posts Admit of every slot without an end that
names another engine. The receiver admits what is its own, once: it asks the word and not the message, and takes the
sequence up where its log stands. If it dies before, the message is still in its lane, and its successor finds the word.
Of a group of workers, steps that may read the slot are waited for between 1 and 2 (memory/deferred_ends.py).

Admit, Cancel and Stopped of a slot that names another engine are posted on to that one; of an earlier use, or of one
that has ended, they are dropped. Who sends them has stored the cancel or stop word before, and a scheduler reads these
when it admits: so it does not matter which of Admit and Cancel comes first. An Advance says only that there is
something to look at, whoever says it. StepDone and WorkerReady stay within an engine.

With --prefill-engines an engine for prompts gives each sequence away behind its first token, in the same order, once no
step of it is under way; until then it waits without row and blocks, and is not planned.

A worker that is about to end (supervisor/engines/parking.py) computes on until all are given away, which happens in
parts, so that other engines have no queue. Of several that are about to end one gives after the other, by their
numbers, since each would count on the same room; those whose turn comes later compute on. What a step that is under way
brings for one that is given counts no more; if the worker is not to end after all, an epoch begins before anybody can
come back to such a step.

Where an operator waits for the end of what has begun (/pause and /sleep with mode=wait), each engine computes until all
of it has ended in all of them: who held before could be given some, by one that has not heard of it yet, or whose
worker dies. Of who has begun and has no token yet no other engine knows: those stay until they have one, and nobody is
given to an engine that holds by then, but by one that no worker is wanted in. What an engine elsewhere has begun for
this server stands in the table, too, as its link writes it, and whether it holds in its link's word.

A sequence that was part of the step at which a worker died may be why. How often that was is in the engine word, too:
the next engine tries it alone when a single engine would.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from actorserve.shm.rings.mailbox import wake

from ...engines.draining import Draining
from ...engines.ownership import Ownership
from ...engines.refusals import Refusals
from ...engines.routing import EngineRouter
from ...protocol.messages import Admit, Message
from ...runtime.process import Context
from ..scheduler import Scheduler
from ..sequence import Sequence
from .patience import Patience
from .suspects import DEATHS_BEFORE_TRIAL, MARGIN

SHARE_S = 0.1  # between two looks at who has room for those who wait here
PART_S = 0.05  # of computing again, that those who are given at once to an engine cost it
PARTS_S = 0.02  # between two looks at whether it has done so
STUCK_S = 2.0  # without room anywhere all go at once


def adopt_suspicion(scheduler: Scheduler, ref: int) -> None:
    """A sequence that was admitted is this engine's from now on, with the suspicion that it brings along."""
    sequence, deaths = scheduler.sequences.get(ref), scheduler.table.moves(ref)[1]
    if sequence is not None and deaths:
        scheduler.suspects.adopt(ref, deaths, sequence.num_tokens + MARGIN)


class Handover:
    """One engine's part."""

    def __init__(self, context: Context, scheduler: Scheduler) -> None:
        self._context, self._table = context, context.table
        self._scheduler = scheduler
        self._engine = context.spec.engine
        self._peers = context.served.engines  # of the same model: slots of others are none of its business
        self._workers = [worker.position for worker in context.system.workers_of(self._engine)]
        self._ownership, self._router, self._refusals = Ownership(context), EngineRouter(context), Refusals(context)
        self._share_at = self._part_at = self._gave_at = 0.0
        self._patience = Patience(context, scheduler, context.system.workers_of(self._engine)[0])
        self._num_prefill = context.config.prefill_engines
        self._prefills = self._is_prefill(self._engine)
        self.draining = Draining(context, self._router)

    def _is_prefill(self, engine: int) -> bool:
        """Does it compute prompts alone, for others?"""
        return engine < self._num_prefill

    # --- whose a slot is -----------------------------------------------------------------------------------------

    def own(self, refs: Iterable[int], make: Callable[[list[int]], Message]) -> list[int]:
        """Those of this engine; the others' go on to their owners."""
        return self._ownership.own(refs, make)

    def recovered(self) -> list[int]:
        """What a predecessor owned; what it may have given away without saying so is said again."""
        return self.own(self._table.current_refs(0, self._table.slots), Admit)

    # --- when an operator waits for what has begun ---------------------------------------------------------------

    def _able(self) -> list[int]:
        """The other engines that can compute now, and will if what has begun is waited for."""
        router = self._router
        return router.able(but=self._engine) if self._scheduler.drains else router.up(but=self._engine)

    def _movable(self) -> list[Sequence]:
        """Who would go on elsewhere."""
        drains, sequences = self._scheduler.drains, self._scheduler.sequences.values()
        return [one for one in sequences if not (drains and one.has_run and not one.num_generated_tokens)]

    def wake_others(self) -> None:
        """They look again at what they wait for."""
        for name in self.others:
            wake(self._context.eventfds[name])

    # --- when the worker is gone ---------------------------------------------------------------------------------

    def met(self, keeps_memory: bool) -> None:
        """There is a worker; the next one may go on in its memory."""
        self._patience.met(keeps_memory)

    @property
    def leaves(self) -> bool:
        """Is the worker about to end (supervisor/engines/parking.py), and can others go on with what is here?"""
        return self.is_parked and bool(self._able())

    @property
    def is_parked(self) -> bool:
        """Is no worker wanted here?"""
        return any(map(self._context.board.is_parked, self._workers))

    def lost(self) -> None:
        """The worker is gone; who runs here is to go on at once, or when there is the next one."""
        others, sequences = self._router.up(but=self._engine), self._scheduler.sequences
        cached = sum(self._router.cached(self._table.hashes(ref), others) for ref in sequences)
        self._patience.begin(time.monotonic(), cached)

    @property
    def waits_s(self) -> float:
        """For so long the next worker is waited for."""
        return 0.0 if self.is_parked else self._patience.left_s(time.monotonic())

    def give_all(self, anywhere: bool = False) -> dict[int, int]:
        """All sequences go to engines that can compute them; how many went to which. None, while there is no such.
        `anywhere`: no worker is to come here, so also to those that hold.
        """
        movable = self._scheduler.sequences.values() if anywhere else self._movable()
        sequences = sorted(movable, key=lambda sequence: sequence.arrival)
        engines = (self._able() or (self._router.up(but=self._engine) if anywhere else [])) if sequences else []
        return self._give(sequences, engines) if engines else {}

    def give_part(self) -> dict[int, int]:
        """As `give_all`, while the worker computes for those who stay: as many as other engines compute again in a
        moment, those with least to compute first; the next ones when nobody waits there.
        """
        now = time.monotonic()
        if now < self._part_at:
            return {}
        self._part_at = now + PARTS_S
        if self._router.leave_before(self._engine):
            self._gave_at = now
            return {}
        all_rooms, able = self._router.rooms(self._scheduler.limits.max_num_seqs, but=self._engine), self._able()
        rooms = {engine: count for engine, count in all_rooms.items() if engine in able}
        if not rooms:
            return self.give_all() if now > self._gave_at + STUCK_S else {}
        self._gave_at = now
        return self._give(self._part(list(rooms))[: sum(rooms.values())], list(rooms))

    def begins_to_leave(self) -> None:
        """From now on parts are given."""
        self._gave_at, self._part_at = time.monotonic(), 0.0

    def _part(self, engines: list[int]) -> list[Sequence]:
        cached, table = self._router.cached, self._table
        costs = [(one.num_tokens - cached(table.hashes(one.ref), engines), one.arrival, one) for one in self._movable()]
        part: list[Sequence] = []
        tokens = 0
        for cost, _, sequence in sorted(costs, key=lambda one: one[:2]):
            tokens += max(0, cost)
            if part and self._scheduler.chunk_size.expected(0, tokens) > PART_S * len(engines):
                break
            part.append(sequence)
        return part

    def share(self) -> dict[int, int]:
        """Where all rows are taken, and other engines have some, who waits here goes there; as `give_all`.

        Nobody who is wanted here, and only those of whom no step is under way, so that none comes back to what is left
        of it here. Nobody either while what has begun is waited for: another engine may be through with that.
        """
        batch, waiting = self._scheduler.batch, self._scheduler.waiting
        if not (batch.full and waiting) or self._scheduler.drains or time.monotonic() < self._share_at:
            return {}
        self._share_at = time.monotonic() + SHARE_S
        all_rooms = self._router.rooms(self._scheduler.limits.max_num_seqs, but=self._engine)
        rooms = {engine: count for engine, count in all_rooms.items() if self._is_prefill(engine) == self._prefills}
        deaths, pinned = self._scheduler.suspects.deaths, self._table.is_pinned
        all_waiting = (one for one in waiting.in_order() if deaths(one.ref) < DEATHS_BEFORE_TRIAL)
        free = (one for one in all_waiting if not pinned(one.ref))
        able = self._refusals.able
        idle = [one for one in free if not one.num_in_flight_tokens and able(one.adapter, rooms)]
        return self._give(idle[: sum(rooms.values())], list(rooms)) if rooms and idle else {}

    # --- when another kind of engine goes on ---------------------------------------------------------------------

    def hand_on(self) -> dict[int, int]:
        """Of an engine that computes prompts: who has the first token goes to one that does not; as `give_all`. Where
        no such engine is up, or what has begun is waited for, it goes on here.

        A sequence of which a step is under way lets go of its row and waits for that. It is given away as any other; if
        this scheduler dies before, its successor has it, and does the same.
        """
        scheduler, table = self._scheduler, self._table
        if not self._prefills:
            return {}
        engines = [engine for engine in self._router.up() if not self._is_prefill(engine)]
        if not engines or scheduler.drains:
            scheduler.leaving.clear()
            return {}
        batch = scheduler.batch
        for sequence in batch.running():
            if batch.num_generated_tokens[sequence.row] and not table.is_pinned(sequence.ref):
                scheduler.leave(sequence)
        leaving = (scheduler.sequences.get(ref) for ref in list(scheduler.leaving))
        ready = [one for one in leaving if one is not None and one.row is None and not one.num_in_flight_tokens]
        scheduler.leaving.intersection_update(scheduler.sequences)
        scheduler.leaving.difference_update(one.ref for one in ready)
        return self._give(ready, engines)

    def _give(self, sequences: Iterable[Sequence], engines: list[int]) -> dict[int, int]:
        given: Counter[int] = Counter()
        for sequence in sequences:
            able = self._refusals.able(sequence.adapter, engines) or engines
            engine = self._router.choose(self._table.hashes(sequence.ref), sequence.num_tokens, among=able)
            deaths = self._scheduler.suspects.deaths(sequence.ref)
            self._scheduler.lifecycle.drop(sequence, partial(self._move, sequence.ref, engine, deaths))
            given[engine] += 1
        return given

    def _move(self, ref: int, engine: int, deaths: int) -> None:
        self._table.move(ref, engine, deaths)
        self._ownership.post({engine: [ref]}, Admit)

    @property
    def others(self) -> list[str]:
        """The schedulers of all other engines of the model."""
        names = self._context.system.schedulers
        return [names[engine] for engine in self._peers if engine != self._engine]
