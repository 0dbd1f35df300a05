"""Which engines have said that they cannot have an adapter (shm/adapters/registry.py), for whoever gives sequences
away: one that asks for it goes to an engine that may have it, so that no two that cannot pass it to and fro.

An engine elsewhere refuses where its machine has not the files, or others; one of this machine reads what the server
has read, and refuses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from actorserve.shm.adapters.registry import AdapterRegistry

from ..runtime.process import Context


class Refusals:
    """As any engine's actor sees them."""

    def __init__(self, context: Context) -> None:
        system = context.system
        has_any = system.adapters_offset is not None and context.config.enable_lora
        self._registry: AdapterRegistry | None = None
        if has_any and system.adapters_offset is not None:
            self._registry = AdapterRegistry(context.segment, system.adapters_offset, len(system.engines))

    def able(self, adapter: int, engines: Iterable[int]) -> list[int]:
        """Those of the engines that have not refused this load; 0: none is asked for."""
        registry = self._registry
        if registry is None or not adapter:
            return [*engines]
        return [engine for engine in engines if not registry.is_refused(adapter, engine)]
