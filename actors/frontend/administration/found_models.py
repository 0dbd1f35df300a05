"""Models that have come to --models-dir and --models-preset since the start, as a frontend tells them.

To look for them may hang, at a named pipe or a network's folder. So a look has a thread of its own, for which nothing
waits at the end of the process, and there is one at a time, shared by all who ask.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from threading import Thread

from actorserve.http.errors import ApiError

from ...options.config import ConfigError
from ...options.serving.models import names_of
from ...runtime.process import Context

LOOK_S = 10.0  # what whoever asks waits for
SINCE = "it has come since the server's start; the next start serves it"
THREAD = "models-found"


class FoundModels:
    """Of one frontend."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._look: asyncio.Future[list[str]] | None = None
        self._problem = ""  # of the last look; the log has each once

    async def unserved(self) -> dict[str, str]:
        """By name, and why these are not served."""
        if self._look is None or self._look.done():
            self._look = self._begin()
        done, _ = await asyncio.wait([look := self._look], timeout=LOOK_S)
        if not done:
            text = f"reload: in {LOOK_S:g} s --models-dir and --models-preset could not be read. Leave it out."
            raise ApiError(503, text, "reload")
        config = self._context.config
        known = {name for served in self._context.system.models for name in served.config.served_names()}
        return dict.fromkeys((name for name in look.result() if name not in known | config.unserved.keys()), SINCE)

    def _begin(self) -> asyncio.Future[list[str]]:
        look: Future[list[str]] = Future()
        Thread(target=self._run, args=(look,), name=THREAD, daemon=True).start()
        return asyncio.wrap_future(look)

    def _run(self, look: Future[list[str]]) -> None:
        names: list[str] = []
        try:
            names = self._names()
        finally:  # also behind a fault of ours, which the thread tells
            look.set_result(names)

    def _names(self) -> list[str]:
        """Mistakes are the operator's: clients are not told what stands in a preset."""
        config, problem = self._context.config, ""
        try:
            return names_of(config.models_dir, config.models_preset)
        except ConfigError as error:
            problem = str(error)
            if problem != self._problem:
                self._context.log.warning("models that have come since the start are not told of: %s", problem)
            return []
        finally:
            self._problem = problem
