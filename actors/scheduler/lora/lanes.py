"""The adapters of --enable-lora in their actor: what of its messages is for them, and what it sends for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from actorserve.shm.adapters.registry import AdapterRegistryWriter

from ...options.lora import read_modules
from ...protocol.messages import AdapterChanged, AdapterRead, LoadAdapter, Message, UnloadAdapter, frontend_of_call
from ...runtime.process import Context
from ..scheduler import Scheduler
from .adapters import AdapterLimits, Adapters

ADAPTER_BITS = 44  # of the number of a first load


def make_adapters(context: Context) -> Adapters | None:
    """Those of --enable-lora."""
    config, offset = context.config, context.system.adapters_offset
    if offset is None:
        return None
    limits = AdapterLimits(config.max_loras, config.adapters_in_memory(), config.tensor_parallel_size)
    registry = AdapterRegistryWriter(context.segment, offset, len(context.system.engines), context.spec.engine)
    if config.offloads and registry.keeps and not registry.seeded:
        registry.begin_behind(secrets.randbits(ADAPTER_BITS))  # blocks outlive the server: no other's ids
    return Adapters(registry, limits, context.table, [(one.name, one.path) for one in read_modules(config)])


class AdapterLanes:
    """Of one scheduler's life."""

    def __init__(self, context: Context, scheduler: Scheduler, tell_workers: Callable[[Message], None]) -> None:
        self._context, self._scheduler, self._tell_workers = context, scheduler, tell_workers

    def handle(self, message: LoadAdapter | UnloadAdapter | AdapterRead) -> None:
        adapters = self._scheduler.adapters
        match message:
            case _ if adapters is None:  # its frontend refuses them
                return
            case LoadAdapter():
                adapters.load(message)
            case UnloadAdapter():
                adapters.unload(message)
            case AdapterRead():
                if message.problem:
                    self._context.log.warning("adapter %d cannot be used: %s", message.adapter, message.problem)
                adapters.has_read(message)

    def turn(self) -> int:
        """What is to be said of adapters: to the worker, to one frontend, or to all."""
        adapters = self._scheduler.adapters
        if adapters is None:
            return 0
        self._scheduler.turn_adapters()
        done = len(adapters.outbox)
        for message in adapters.outbox:
            if not isinstance(message, AdapterChanged):
                self._tell_workers(message)
            elif message.call:
                self._context.post(f"frontend-{frontend_of_call(message.call)}", message)
            else:
                for actor in self._context.system.of_kind("frontend"):
                    self._context.post(actor.name, message)
        adapters.outbox.clear()
        return done
