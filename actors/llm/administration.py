"""The methods of LLM by which what it has in memory is changed."""

from __future__ import annotations

from collections.abc import Sequence

from ..frontend.engine import FrontendEngine
from .engine import LLMEngine

LONGEST_S = 3600.0  # weights may have to be loaded
WAIT_S = 300  # that a prompt waits through a sleep
PARTS = ("weights", "kv_cache")


class AdministrationMethods:
    """What LLM inherits of them."""

    _engine: LLMEngine

    def _check_usable(self) -> None:
        raise NotImplementedError

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

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Have `weights`, `kv_cache` or both again; return when they are there."""
        wanted = list(PARTS if tags is None else tags)
        if unknown := [tag for tag in wanted if tag not in PARTS]:
            raise ValueError(f"tags must be among {' and '.join(PARTS)}, not {unknown[0]!r}")
        self._check_usable()
        self._engine.ask(lambda to: to.administration.wake_up(wanted), LONGEST_S, "it was woken")

    def is_sleeping(self) -> bool:
        """Does it sleep?"""
        self._check_usable()

        async def look(frontend: FrontendEngine) -> bool:
            return frontend.administration.is_sleeping()

        return self._engine.ask(look, LONGEST_S, "it sleeps")
