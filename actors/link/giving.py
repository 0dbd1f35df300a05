"""What a link gives to other engines: all, when its own is gone; who waits there, when another one idles; and whose
adapter it cannot have. By the engine word and Admit, in the order that scheduler/recovery/handover.py argues.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ..engines.ownership import Ownership
from ..engines.refusals import Refusals
from ..engines.routing import EngineRouter
from ..protocol.messages import Admit, Finish
from ..runtime.process import Context
from ..scheduler.recovery.handover import SHARE_S
from ..scheduler.recovery.suspects import DEATHS_BEFORE_TRIAL
from .sequences import RemoteSequence, Sequences


class LinkGiver:
    """Of one link."""

    def __init__(self, context: Context, sequences: Sequences, ownership: Ownership) -> None:
        self._context, self._sequences, self._ownership = context, sequences, ownership
        self._table, self._engine = context.table, context.spec.engine
        self._router, self._refusals = EngineRouter(context), Refusals(context)
        self._rows = context.config.max_num_seqs
        self._share_at = 0.0

    def give_all(self) -> None:
        """To engines that compute, and do not hold; it stays while there is none. Where this engine is not wanted it
        goes to those that hold, too.
        """
        able, up = self._router.able(but=self._engine), self._router.up(but=self._engine)
        if engines := able or (up if self._router.is_parked(self._engine) else []):
            given = self._give(list(self._sequences.held.values()), engines)
            self._context.log.warning("requests of engine %d go on elsewhere, %s", self._engine, given)

    def others_will(self) -> bool:
        """Does another engine compute what is given to it, or one of this machine soon? Of others nobody knows when."""
        if self._router.able(but=self._engine):
            return True
        home = [engine for engine in self._home() if not self._router.is_parked(engine)]
        return not all(map(self._router.holds, home))

    def _home(self) -> list[int]:
        """The engines of this machine."""
        elsewhere = self._context.system.remote_engines
        return [engine for engine in self._context.served.engines if engine not in elsewhere]

    def share(self, waiting: int) -> None:
        """So many wait there for a row or, here, for a slot: the last that have come, as far as others have rows. One
        of which a step is under way all the same is computed twice, and told once: it is dropped there.
        """
        now = time.monotonic()
        if not waiting or now < self._share_at:
            return
        self._share_at = now + SHARE_S
        rooms = self._router.rooms(self._rows, but=self._engine)
        able, all_held = self._refusals.able, self._sequences.held.values()
        free = [held for held in all_held if rooms and self._may_leave(held) and able(held.adapter, rooms)]
        some = free[-min(waiting, sum(rooms.values())) :] if free else []
        if some:
            given = self._give(some, list(rooms))
            self._context.log.info("requests that wait for engine %d go on elsewhere, %s", self._engine, given)

    def _may_leave(self, held: RemoteSequence) -> bool:
        return not (held.has_run or held.deaths >= DEATHS_BEFORE_TRIAL or self._table.is_pinned(held.ref))

    def leave(self, adapters: Iterable[int]) -> None:
        """Whose adapter the engine cannot have goes on in another one that may have it, once that computes, and ends
        where no engine may.
        """
        missed: dict[int, list[RemoteSequence]] = {}
        for held in self._sequences.held.values():
            if held.adapter in adapters:
                missed.setdefault(held.adapter, []).append(held)
        others = [engine for engine in self._context.served.engines if engine != self._engine]
        for adapter, some in missed.items():
            able = [one for one in self._refusals.able(adapter, others) if not self._router.is_parked(one)]
            if engines := [engine for engine in self._router.up(but=self._engine) if engine in able]:
                self._give(some, engines)
            elif not able:
                for held in some:
                    self._sequences.end(held.ref, Finish.ADAPTER)

    def give_home(self, some: list[RemoteSequence]) -> None:
        """To engines of this machine, as soon as one computes; where there are none they end."""
        home = self._home()
        if engines := [engine for engine in self._router.up(but=self._engine) if engine in home]:
            self._give(some, engines)
        elif not home:
            for held in some:
                self._sequences.end(held.ref, Finish.UNHEEDED)

    def _give(self, some: list[RemoteSequence], engines: list[int]) -> str:
        given: dict[int, list[int]] = {}
        self._sequences.stats.survived_elsewhere(held.ref for held in some if held.has_run)
        for held in some:
            tokens = held.num_prompt_tokens + held.num_generated_tokens
            able = self._refusals.able(held.adapter, engines) or engines
            engine = self._router.choose(self._table.hashes(held.ref), tokens, among=able)
            self._sequences.let_go(held)
            self._table.move(held.ref, engine, held.deaths)
            given.setdefault(engine, []).append(held.ref)
        self._ownership.post(given, Admit)
        return ", ".join(f"{len(refs)} in engine {engine}" for engine, refs in given.items())
