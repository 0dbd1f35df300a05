"""The adapters of --enable-lora in their actor: what of its messages is for them, and what it sends for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from actorserve.shm.adapters.registry import AdapterRegistryWriter

from ...options.lora import read_modules
from ...protocol.messages import Message
from ...protocol.topics.adapters import AdapterChanged, AdapterRead, AdapterReplaced, LoadAdapter, UnloadAdapter
from ...protocol.topics.calls import frontend_of_call
from ...runtime.process import Context
from ..scheduler import Scheduler
from .adapters import Adapters
from .worker_memory import AdapterLimits

ADAPTER_BITS = 44  # of the number of a first load


def make_adapters(context: Context, limits: AdapterLimits | None = None) -> Adapters | None:
    """Those of --enable-lora. `limits`: other ones than those of the options."""
    config, offset = context.config, context.system.adapters_offset
    if offset is None or not config.enable_lora:  # they are of the server's first model
        return None
    members = config.tensor_parallel_size * config.pipeline_parallel_size
    limits = limits or AdapterLimits(config.adapters_at_once(), config.adapters_in_memory(), members)
    registry = AdapterRegistryWriter(context.segment, offset, len(context.system.engines), context.spec.engine)
    outlives = config.offloads or config.remote_engines  # blocks do the server, or are beside those of others
    if outlives and registry.keeps and not registry.seeded:
        registry.begin_behind(secrets.randbits(ADAPTER_BITS))  # no other server's ids
    made = Adapters(registry, limits, context.table, [(one.name, one.path) for one in read_modules(config)])
    made.replaces = not config.steward  # a server elsewhere means the load, by whose id others have it, too
    return made


class AdapterLanes:
    """Of one scheduler's life."""

    def __init__(self, context: Context, scheduler: Scheduler, tell_workers: Callable[[Message], None]) -> None:
        self._context, self._scheduler, self._tell_workers = context, scheduler, tell_workers

    def handle(self, message: LoadAdapter | UnloadAdapter | AdapterRead | AdapterReplaced) -> None:
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
            case AdapterReplaced():
                adapters.replace(message.adapter)

    def turn(self) -> int:
        """What is to be said of adapters: to the worker, to one frontend, or to all."""
        adapters = self._scheduler.adapters
        if adapters is None:
            return 0
        self._scheduler.turn_adapters()
        done = len(adapters.outbox)
        for message in adapters.outbox:
            if isinstance(message, AdapterReplaced):
                self._context.post(self._context.system.schedulers[0], message)
            elif not isinstance(message, AdapterChanged):
                self._tell_workers(message)
            elif message.call:
                self._context.post(f"frontend-{frontend_of_call(message.call)}", message)
            else:
                for actor in (one for kind in ("frontend", "steward") for one in self._context.system.of_kind(kind)):
                    self._context.post(actor.name, message)
        adapters.outbox.clear()
        return done
