"""The methods of LLM by which what it has in memory is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...frontend.engine import FrontendEngine
from ...frontend.rpc import CALL_S
from ..engine import FrontendThread
from ..inside import InProcess
from ..link import HostLink

LONGEST_S = 3600.0  # weights may have to be loaded
WAIT_S = 300  # that a prompt waits through a sleep
PARTS = ("weights", "kv_cache")


class AdministrationMethods:
    """What LLM inherits of them."""

    _engine: FrontendThread

    _link: HostLink | InProcess

    def _check_usable(self) -> None:
        raise NotImplementedError

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """No later prompt finds a prefix that was computed before; what is generated meanwhile goes on, or is computed
        again. True when it is done. What --kv-offload keeps is dropped, whether `reset_connector` asks for it or not.
        """
        self._check_usable()
        self._engine.reset_prefix_cache(reset_running_requests)
        return True

    def reset_mm_cache(self) -> bool:
        """Pictures that come from now on are processed anew. True when it is done."""
        self._check_usable()
        self._engine.reset_mm_cache()
        return True

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """What a method of the workers returns in each, by its name (METHODS of protocol/topics/administration.py, and
        those of `worker_extension_cls`); with `in_process`, also a function, which is given the worker's actor first.
        """
        self._check_usable()
        if not isinstance(method, str):
            return self._in_worker(lambda worker: method(worker, *args, **(kwargs or {})))
        given = list(args), dict(kwargs or {}), timeout
        limit = 2 * (timeout or CALL_S)
        return self._engine.ask(
            lambda to: to.administration.call_workers(method, *given), limit, f"{method} was called"
        )

    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """What a function makes of each worker's model; with `in_process` alone."""
        return self._in_worker(lambda worker: func(worker.runner.model))

    def _in_worker(self, do: Callable[[Any], Any]) -> list[Any]:
        self._check_usable()
        if not isinstance(self._link, InProcess):
            text = "functions are no messages: in_process=True lets them be called, or name a method"
            raise ValueError(text)
        link = self._link

        async def call(_: FrontendEngine) -> list[Any]:
            return [do(link.worker)]

        return self._engine.ask(call, LONGEST_S, "it was called")

    def start_profile(self, seconds: float = 60.0) -> None:
        """Sample all actors from now on, for so long at most; `profile_dir` is an option."""
        self._check_usable()
        self._engine.ask(lambda to: to.administration.start_profile(seconds), 2 * CALL_S, "a profile was begun")

    def stop_profile(self) -> dict[str, Any]:
        """Where the trace is, for Perfetto, and whose part is missing."""
        self._check_usable()
        return self._engine.ask(lambda to: to.administration.stop_profile(), 2 * CALL_S, "a profile was written")

    def update_weights(self, path: str = "", mode: str = "abort") -> None:
        """Compute with the weights of a folder below `weights_folder`, or with the served model's as they are now."""
        self._check_usable()
        self._engine.ask(lambda to: to.administration.update_weights(path, mode, WAIT_S), LONGEST_S, "it was loaded")

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give weights and KV memory back until `wake_up`; return when that is done. At level 2 the system need not
        keep the model's files in memory either. `mode`: prompts that have begun are aborted, or end first (`wait`), or
        go on behind the sleep (`keep`). What is asked for meanwhile waits.
        """
        if level not in (1, 2):
            raise ValueError(f"level must be 1 or 2, not {level!r}")
        if mode not in ("abort", "wait", "keep"):
            raise ValueError(f"mode must be abort, wait or keep, not {mode!r}")
        self._check_usable()
        self._engine.ask(lambda to: to.administration.sleep(level, mode, False, WAIT_S), LONGEST_S, "it sleeps")

    def wake_up(self, tags: Sequence[str] | None = None) -> bool:
        """Have `weights`, `kv_cache` or both again; return when they are there, and whether nothing sleeps any more."""
        wanted = list(PARTS if tags is None else tags)
        if unknown := [tag for tag in wanted if tag not in PARTS]:
            raise ValueError(f"tags must be among {' and '.join(PARTS)}, not {unknown[0]!r}")
        self._check_usable()
        self._engine.ask(lambda to: to.administration.wake_up(wanted), LONGEST_S, "it was woken")
        return not self.is_sleeping()

    def is_sleeping(self) -> bool:
        """Does it sleep?"""
        self._check_usable()

        async def look(frontend: FrontendEngine) -> bool:
            return frontend.administration.is_sleeping()

        return self._engine.ask(look, LONGEST_S, "it sleeps")
