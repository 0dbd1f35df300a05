"""Where the requests of a batch go: a server that runs somewhere, or one that was started for it and is started again
whenever it has ended.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..bench.client_tls import OWN, ClientTls
from ..bench.server import NotLetInError, ServerError, StartedServer, wait_ready
from ..bench.target import address_of

PAUSE_S = 0.2  # between two looks at a server that is not ready


class BatchServer(ABC):
    """`address()` waits for a server that is ready; `lost()` says that a request got no answer there."""

    def __init__(self, ready_s: float, tls: ClientTls) -> None:
        self._ready_s = ready_s
        self.tls = tls
        self._ready = True
        self._looking = asyncio.Lock()

    async def address(self) -> str:
        """Of a server that was ready when it was last looked at. ServerError once it was not within the time."""
        async with self._looking:  # one looks, and all others wait for it
            if not self._ready:
                await self._wait()
                self._ready = True
        return self.base_url

    def lost(self) -> None:
        """The next one to ask for the address looks first."""
        self._ready = False

    @property
    @abstractmethod
    def base_url(self) -> str:
        """Without a slash at its end."""

    async def _wait(self) -> None:
        deadline = time.monotonic() + self._ready_s
        while True:
            await self._revive()
            try:
                return await asyncio.to_thread(wait_ready, self.base_url, 0.0, self.tls)
            except NotLetInError:
                raise
            except ServerError:
                if time.monotonic() > deadline:
                    raise ServerError(f"{self.base_url} was not ready within {self._ready_s:g} s") from None
            await asyncio.sleep(PAUSE_S)  # somebody else's server has no other way to tell us

    @abstractmethod
    async def _revive(self) -> None:
        """Start it again if it has ended, where that is ours to do. Its connections may break before it has."""


class RunningServer(BatchServer):
    """One that is there."""

    def __init__(self, base_url: str, ready_s: float, tls: ClientTls) -> None:
        super().__init__(ready_s, tls)
        self._base_url = address_of("--base-url", base_url)
        self._ready = False

    @property
    def base_url(self) -> str:
        """As it was given."""
        return self._base_url

    async def _revive(self) -> None:
        """Its owner does."""


class OwnServer(BatchServer):
    """One that is started here, from words of the command line. `start` and `stop` are for the main thread."""

    def __init__(self, words: Sequence[str], ready_s: float, tls: ClientTls = OWN) -> None:
        super().__init__(ready_s, tls)
        self._words = words
        self._server = StartedServer(words, ready_s, own_group=True, tls=self.tls)

    @property
    def base_url(self) -> str:
        """Another one after each start."""
        return self._server.base_url

    def start(self) -> None:
        """ServerError if it does not."""
        self._server.__enter__()

    def stop(self) -> None:
        """With all its processes."""
        self._server.__exit__(None, None, None)

    async def _revive(self) -> None:
        if self._server.ended:
            self.stop()
            self._server = StartedServer(self._words, self._ready_s, own_group=True, tls=self.tls)
            await asyncio.to_thread(self.start)
