"""Adapters as a frontend knows them: what the registry in shared memory says, and what --lora-folder has beside that.

The scheduler alone writes the registry, and is asked to; whoever waits is told by name (frontend/rpc.py).
"""

from __future__ import annotations

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import no_model
from actorserve.http.settings import AdapterNames, ServedAdapter
from actorserve.shm.adapters.registry import AdapterRegistry, AdapterState, RegisteredAdapter

from ...options.lora import found_in_folder, trouble_with_name
from ...runtime.process import Context
from ..rpc import Calls

UNUSABLE = "The adapter `{}` cannot be used: {}"


class FrontendAdapters(AdapterNames):
    """Of one frontend."""

    def __init__(self, context: Context, calls: Calls) -> None:
        offset, engines = context.system.adapters_offset, len(context.system.engines)
        self._registry = None if offset is None else AdapterRegistry(context.segment, offset, engines)
        self._folder, self._calls = context.config.lora_folder, calls
        self._served = [name for served in context.system.models for name in served.config.served_names()]
        self.enabled = offset is not None

    def find(self, name: str) -> ServedAdapter | None:
        found = None if self._registry is None else self._registry.find(name)
        return None if found is None else _served(found)

    def can_load(self, name: str) -> bool:
        return self._in_folder(name) is not None

    def all(self) -> list[ServedAdapter]:
        return [_served(one) for one in self.registered() if one.state is AdapterState.READY]

    def registered(self) -> list[RegisteredAdapter]:
        """All loads that are there."""
        return [] if self._registry is None else self._registry.all()

    async def want(self, name: str | None) -> None:
        """See Engine.want_adapter."""
        if not name or name in self._served or self.find(name) is not None:
            return
        path = self._in_folder(name)
        if path is None:
            return
        try:
            await self.load(name, path, False)
        except ApiError as error:
            raise ApiError(error.status, error.message, "model") from None

    def _in_folder(self, name: str) -> str | None:
        if self._folder is None or trouble_with_name(name):
            return None
        return found_in_folder(self._folder, name)

    async def load(self, name: str, path: str, in_place: bool) -> None:
        """Return when requests may have it; ApiError says why they cannot."""
        status, problem = await self._calls.load_adapter(name, path, in_place)
        if status != 200:
            raise ApiError(status, UNUSABLE.format(name, f"{problem}."), "lora_path")

    async def unload(self, name: str) -> None:
        """Return when no new request may have it."""
        status, problem = await self._calls.unload_adapter(name)
        if status == 404:
            raise no_model(name)
        if status != 200:
            raise ApiError(status, f"The adapter `{name}` cannot be unloaded: {problem}.", "lora_name")


def _served(one: RegisteredAdapter) -> ServedAdapter:
    return ServedAdapter(one.id, one.name, one.path)
