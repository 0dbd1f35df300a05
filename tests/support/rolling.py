"""Load for rolling restarts and deaths: streams that follow one another on connections that must not break, and short
requests on others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.client import complete, connect, http_session
from tests.support.server import Server
from tests.support.warm import PACKAGE, run_command

WAIT_S = 120.0


def command(server: Server, *words: str, wait_s: float = WAIT_S) -> subprocess.CompletedProcess[str]:
    """`actorserve WORDS` for this server."""
    return run_command(*words, "--server", f"pid:{server.pid}", wait_s=wait_s)


def restart(server: Server, *words: str) -> str:
    """A rolling restart that must succeed; what it printed."""
    done = command(server, "restart", *words)
    assert done.returncode == 0, done.stdout + done.stderr + server.output
    return done.stdout


def body(number: int, tokens: int) -> dict[str, Any]:
    """Half of them greedy, half drawn with a seed."""
    how: dict[str, Any] = {"temperature": 0} if number % 2 else {"temperature": 1.0, "seed": number}
    prompt = f"Once upon a time there were {number} foxes. " * (1 + number % 3)
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, **how}


async def stream(session: aiohttp.ClientSession, number: int, tokens: int, begun: Callable[[], None]) -> str:
    """The text of one stream; whatever goes wrong raises."""
    text, reason = "", ""
    async with session.post("/v1/completions", json=body(number, tokens)) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                text += chunk["choices"][0]["text"]
                reason = chunk["choices"][0]["finish_reason"] or reason
                begun()
    assert reason == "length", reason
    return text


class Load:
    """`streams` clients that ask for a stream again and again on kept connections, and `short` others."""

    def __init__(self, server: Server, streams: int, tokens: int, short: int = 4) -> None:
        self.server, self.streams, self.tokens, self.short = server, streams, tokens, short
        self.texts: dict[int, set[str]] = {}
        self.done = threading.Event()
        self.begun: set[int] = set()
        self.answers: list[str] = []
        self.connects = 0  # of the short ones

    def run(self, action: Callable[[], Any]) -> None:
        """Do `action` once all streams run; all clients end behind it. Every mistake of a client raises."""
        asyncio.run(self._run(action))

    async def _run(self, action: Callable[[], Any]) -> None:
        async with http_session(self.server, wait_s=WAIT_S) as session:
            loop = asyncio.get_running_loop()
            clients = [loop.create_task(self._streams(session, number)) for number in range(self.streams)]
            clients += [loop.create_task(asyncio.to_thread(self._short)) for _ in range(self.short)]
            try:
                while len(self.begun) < self.streams and not any(client.done() for client in clients):
                    await asyncio.sleep(0.001)  # the clients run; what is waited for is a number of events
                await asyncio.to_thread(action)
            finally:
                self.done.set()
                ended = await asyncio.gather(*clients, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    async def _streams(self, session: aiohttp.ClientSession, number: int) -> None:
        while True:
            text = await stream(session, number, self.tokens, lambda: self.begun.add(number))
            self.texts.setdefault(number, set()).add(text)
            if self.done.is_set():
                return

    def _short(self) -> None:
        """One connection for all requests, but where the server says that it closes it: a reset is a failure."""
        while not self.done.is_set():
            with contextlib.closing(connect(self.server)) as connection:
                self.connects += 1
                while connection.sock is not None and not self.done.is_set():
                    self.answers.append(complete(connection))


class CodeCopy:
    """The package in a folder of its own, of which actors' modules can be changed while a server runs from it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "package"
        shutil.copytree(PACKAGE / "actorserve", self.root / "actorserve")
        self.env = {"PYTHONPATH": str(self.root)}
        self._before: dict[Path, str] = {}
        self._written_s = int(time.time())

    def append(self, path: str, code: str) -> None:
        """Add to a module; nothing else is changed."""
        self.change(path, lambda text: f"{text}\n\n{code}\n")

    def change(self, path: str, how: Callable[[str], str]) -> None:
        file = self.root / "actorserve" / path
        self._before.setdefault(file, file.read_text())
        self._write(file, how(self._before[file]))

    def undo(self) -> None:
        """All as it was."""
        for file, text in self._before.items():
            self._write(file, text)
        self._before.clear()

    def _write(self, file: Path, text: str) -> None:
        """Each time a second later: by its time, in whole seconds, and its size compiled code is known to be of it."""
        file.write_text(text)
        self._written_s += 1
        os.utime(file, (self._written_s, self._written_s))
