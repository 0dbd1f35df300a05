"""What people watch a server with, as they do: `actorserve top` on a terminal, a scrape of /metrics each second, and
the page, open in Chromium; where that is not installed, whoever reads the page's events.

Each is a process of its own, so that its CPU time can be told from the server's.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools" / "package")]

import psutil  # noqa: E402

from tests.page.browser import Page, browsing, find_chromium  # noqa: E402

SCREEN = (40, 120)
NOTHING = "about:blank"
OPEN = "document.getElementById('link').dataset.state === 'ready'"
EVERY_S = 1.0  # between two scrapes


class Watchers:
    """All of them, for one server; they look only while somebody wants them to."""

    def __init__(self, url: str, server: int, page: Page | None) -> None:
        self.url, self._server, self._page = url, server, page
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._terminal = -1

    @property
    def names(self) -> str:
        """Which there are."""
        return f"top, a scrape each second, {'the page in Chromium' if self._page else 'the events of the page'}"

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """They look."""
        await self._begin()
        try:
            yield
        finally:
            await self._end()

    async def _begin(self) -> None:
        own, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, SCREEN)
        shown = asyncio.Event()
        asyncio.get_running_loop().add_reader(own, _take, own, shown)
        command = [sys.executable, "-m", "actorserve", "top", "--server", f"pid:{self._server}"]
        env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT / "tools" / "package")}
        self._processes["top"] = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self._terminal = own
        self._processes["scrapes"] = self._start("scrape")
        if self._page is None:
            self._processes["events"] = self._start("events")
        else:
            await self._page.go(f"{self.url}/")
            await self._page.until(OPEN)
        await shown.wait()

    def _start(self, what: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, __file__, what, self.url])

    async def _end(self) -> None:
        if self._page is not None:
            await self._page.go(NOTHING)
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._processes.clear()
        asyncio.get_running_loop().remove_reader(self._terminal)
        os.close(self._terminal)
        if ended:
            raise RuntimeError(f"not all have watched: {ended} ended by itself")

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU of each since its start; the browser's are those of all its processes."""
        found = {name: _seconds([psutil.Process(process.pid)]) for name, process in self._processes.items()}
        if self._page is not None:
            own = {self._server, *(process.pid for process in self._processes.values())}
            children = [child for child in psutil.Process().children() if child.pid not in own]
            found["page"] = _seconds([one for child in children for one in (child, *child.children(recursive=True))])
        return found


def _take(terminal: int, shown: asyncio.Event) -> None:
    if os.read(terminal, 1 << 16):
        shown.set()


def _seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):  # a browser ends some of its own when it likes
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.asynccontextmanager
async def watchers(url: str, server: int) -> AsyncIterator[Watchers]:
    """Watchers of a server, whose process this is."""
    chromium = find_chromium()
    if chromium is None:
        yield Watchers(url, server, None)
        return
    async with browsing(chromium) as page:
        yield Watchers(url, server, page)


# --- as a process ------------------------------------------------------------------------------------------------


def scrape(address: str) -> None:
    """As Prometheus does, on one connection."""
    connection = http.client.HTTPConnection(address, timeout=30)
    due = time.monotonic()
    while True:
        connection.request("GET", "/metrics", headers={"Accept": "text/plain; version=0.0.4"})
        assert connection.getresponse().read()
        due += EVERY_S
        time.sleep(max(0.0, due - time.monotonic()))


def events(address: str) -> None:
    """What the page asks for."""
    connection = http.client.HTTPConnection(address, timeout=30)
    connection.request("GET", "/page/events")
    response = connection.getresponse()
    while response.readline():
        pass


if __name__ == "__main__":
    {"scrape": scrape, "events": events}[sys.argv[1]](urlsplit(sys.argv[2]).netloc)
