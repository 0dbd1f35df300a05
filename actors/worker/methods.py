"""What operators may have a worker do between two steps, by name; and the methods of --worker-extension-cls.

An extension is trusted code of whoever runs the server: an object of its class is made with the worker's actor, or with
nothing where it takes nothing, as vLLM's do, and its public methods may be called. What one raises is the answer to its
call. One that takes longer than a step may (--step-timeout) is killed with its worker, as a step is.
"""

from __future__ import annotations

import gc
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from actorserve.shm.weights import WeightsRecord

from ..options.plugins import WORKER_EXTENSIONS, load_callable
from ..protocol.topics.administration import LISTEN, METHODS, CallArguments, CallMethod, MethodCalled

if TYPE_CHECKING:
    from .actor import WorkerActor

LONGEST = 64 << 10  # bytes of an answer
PAGE = os.sysconf("SC_PAGE_SIZE")


class WorkerMethods:
    """Of one worker."""

    def __init__(self, actor: WorkerActor) -> None:
        self._actor = actor
        self._rank = actor.context.spec.index
        own = {name: getattr(self, f"_{name}") for name in METHODS}
        listening = getattr(actor.runner, "listening", None)
        inside = {LISTEN: listening.look} if listening is not None else {}  # which frontends ask
        self._methods: Mapping[str, Callable[..., Any]] = {**self._extension(), **own, **inside}

    def _extension(self) -> dict[str, Callable[..., Any]]:
        config = self._actor.context.config
        if config.worker_extension_cls is None:
            return {}
        kind = load_callable("--worker-extension-cls", config.worker_extension_cls, WORKER_EXTENSIONS)
        made = kind(*[self._actor] if inspect.signature(kind).parameters else [])
        names = [name for name in dir(made) if not name.startswith("_")]
        return {name: method for name in names if callable(method := getattr(made, name))}

    def add(self, methods: Mapping[str, Callable[..., Any]]) -> None:
        """More of whoever runs the server, under those that all workers have."""
        self._methods = {**methods, **self._methods}

    def call(self, message: CallMethod) -> MethodCalled:
        """Do it now."""
        method = self._methods.get(message.method)
        if method is None:
            known = ", ".join(sorted(self._methods))
            return self._refused(message, f"method: the worker has no {message.method!r:.80}; it has {known}")
        arguments = msgspec.json.decode(message.arguments, type=CallArguments)
        try:
            inspect.signature(method).bind(*arguments.args, **arguments.kwargs)
        except TypeError as error:
            return self._refused(message, f"args: {message.method}: {error}")
        try:
            result = msgspec.json.encode(method(*arguments.args, **arguments.kwargs))
        except Exception as error:  # an extension's own: it costs its caller the answer, and nobody else anything
            self._actor.context.log.exception("%s failed", message.method)
            return self._refused(message, f"{message.method}: {type(error).__name__}: {error}")
        if len(result) > LONGEST:
            return self._refused(message, f"{message.method}: its answer has {len(result)} bytes; {LONGEST} are taken")
        return MethodCalled(message.call, self._rank, result)

    def _refused(self, message: CallMethod, problem: str) -> MethodCalled:
        return MethodCalled(message.call, self._rank, problem=problem[:LONGEST])

    # --- what all workers have: METHODS -------------------------------------------------------------------------

    def _check_health(self) -> bool:
        return True

    def _memory(self) -> dict[str, int]:
        context = self._actor.context
        with open("/proc/self/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
        kept = os.fstat(context.files[f"kv-{context.spec.name}"]).st_blocks * 512
        return {"resident": resident * PAGE, "private": (resident - shared) * PAGE, "kv_file": kept}

    def _kv_cache(self) -> dict[str, int]:
        return {"blocks": self._actor.blocks, "tokens": self._actor.tokens, "step": self._actor.step}

    def _model(self) -> dict[str, Any]:
        context = self._actor.context
        generation, folder = WeightsRecord(context.files["weights"], context.spec.engine).read()
        found = getattr(getattr(self._actor.runner, "model", None), "dtype", None)
        return {
            "architecture": context.model.architecture,
            "dtype": str(found).removeprefix("torch.") if found is not None else None,
            "folder": folder or context.model.folder,
            "generation": generation,
        }

    def _list_loras(self) -> list[int]:
        return [] if self._actor.adapters is None else list(self._actor.adapters.there)

    def _num_threads(self) -> int:
        if self._actor.context.config.worker != "model":
            return 1
        import torch

        return torch.get_num_threads()

    def _collect_garbage(self) -> int:
        return gc.collect()
