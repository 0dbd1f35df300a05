"""All actors as objects of one process, for debugging: each takes its turn after the other, and a breakpoint stops all.

They exchange the same messages through the same lanes. Nobody watches them: a mistake in one is an end of all.
"""

from __future__ import annotations

import gc
import os

from actorserve.shm.board.board import ActorState

from ..model.checks.model import find_model
from ..options.config import Config, ConfigError
from ..protocol.kinds import find
from ..protocol.topology import System
from ..runtime.in_flight import Ended
from ..runtime.process import RENEW, Actor, Boot, Context
from ..supervisor.shared_memory import Memory


class InProcess:
    """Takes the place of HostLink: `boot` is the frontend's."""

    def __init__(self, config: Config) -> None:
        import torch

        if config.workers > 1:
            option = "--tensor-parallel-size" if config.tensor_parallel_size > 1 else "--pipeline-parallel-size"
            raise ConfigError(f"{option}: one process has one worker; leave in_process out")
        if config.engines > 1:
            raise ConfigError("--data-parallel-size: one process has one engine; leave in_process out")
        system = System(config, find_model(config))
        self._memory = Memory(system)
        self.boot: Boot = self._memory.boot(system.by_name["frontend-0"])
        self._contexts = [Context(self._memory.boot(spec)) for spec in system.actors if spec.traits.actor]
        with torch.inference_mode():
            self._actors = [(_make(context), context) for context in self._contexts]
        for context in self._contexts:
            context.set_state(ActorState.READY)

    @property
    def pid(self) -> int:
        """The process that is at once the supervisor's."""
        return os.getpid()

    @property
    def worker(self) -> Actor:
        """For those who want to look into it."""
        return next(actor for actor, context in self._actors if context.spec.kind == "worker")

    def turn(self) -> int:
        """One turn of each; returns how much they did."""
        import torch

        with torch.inference_mode():
            return sum(self._turn(index) for index in range(len(self._actors)))

    def _turn(self, index: int) -> int:
        try:
            return _turn(*self._actors[index])
        except SystemExit as end:
            if end.code != RENEW:
                raise
        self._renew(index)
        return 1

    def _renew(self, index: int) -> None:
        """The actor has asked to be replaced, as its process would be."""
        _, before = self._actors.pop(index)
        self._contexts.remove(before)
        before.close()
        gc.collect()  # what was large is let go of before the next one takes as much
        self._memory.raise_incarnation(before.spec, Ended.DIED)
        context = Context(self._memory.boot(before.spec))
        self._contexts.append(context)
        self._actors.insert(index, (_make(context), context))
        context.set_state(ActorState.READY)

    def close(self) -> None:
        """Nothing was started; only memory is given back."""
        self._actors.clear()
        for context in self._contexts:
            context.close()
        self._contexts.clear()
        self._memory.close()


def _turn(actor: Actor, context: Context) -> int:
    """As run of runtime/process.py has it, but that nobody sleeps."""
    done = context.inbox.drain(actor.handle, actor.one_record) + actor.do_work()
    if context.flush():
        actor.published()
        context.inbox.commit()
    context.status.beat()
    return done


def _make(context: Context) -> Actor:
    actor = find(context.spec.traits.actor)(context)
    assert isinstance(actor, Actor)
    return actor
