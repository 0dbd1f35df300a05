"""A server in processes of its own, as a user starts it: found by what it says and by /proc, and nothing else."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .wire import Answer, Connection, request

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"ready at https?://([\d.]+):(\d+)")
START_S, END_S, SETTLE_S = 120.0, 90.0, 60.0


class Launched:
    """`with Launched("--frontends", "2") as server:` and it is ready. `descriptors` is its hard limit of open files."""

    def __init__(self, *options: str, descriptors: int | None = None) -> None:
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(ROOT / "tools" / "package")]))
        without_keys = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}

        def limit() -> None:
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "actorserve", "launch", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**without_keys, "PYTHONPATH": path},
            preexec_fn=limit,
        )
        self.lines: list[str] = []
        self._told = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Launched:
        try:
            found = self.wait_for_line(READY.search, START_S)
        except BaseException:
            self.process.kill()
            raise
        self.address = found[1], int(found[2])
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(END_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._told:
                self.lines.append(line.rstrip("\n"))
                self._told.notify_all()
        with self._told:
            self._told.notify_all()

    def wait_for_line(self, match: Callable[[str], re.Match[str] | None], timeout: float) -> re.Match[str]:
        """The first line that matches, of all so far and to come; AssertionError with what was said if none does."""
        seen = 0
        deadline = time.monotonic() + timeout
        with self._told:
            while True:
                for line in self.lines[seen:]:
                    if found := match(line):
                        return found
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if left < 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError("not said:\n" + "\n".join(self.lines[-20:]))
                self._told.wait(min(left, 1.0))

    # --- its processes -------------------------------------------------------------------------------------------

    def actors(self, kind: str) -> dict[str, int]:
        """Process ids of the living actors of a kind, by name."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                if title.startswith(f"actorserve: {kind}") and int(stat[1]) == self.process.pid and stat[0] != "Z":
                    found[title.removeprefix("actorserve: ")] = int(entry.name)
        return found

    def kill(self, kind: str, number: int = signal.SIGKILL) -> int:
        """A signal to every actor of a kind; how many there were."""
        pids = self.actors(kind)
        for pid in pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return len(pids)

    # --- its answers ---------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def connection(self, timeout: float = SETTLE_S) -> Iterator[Connection]:
        with Connection(self.address, timeout) as connection:
            yield connection

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """One request on a connection of its own. Header names have `_` for `-`."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        with self.connection() as connection:
            return connection.ask(request(method, path, body, fields))  # type: ignore[arg-type]

    def wait_ready(self, timeout: float = SETTLE_S) -> None:
        """Until /ready says 200."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if self.ask("GET", "/ready").status == 200:
                    return
            if time.monotonic() > deadline:
                raise AssertionError(f"not ready within {timeout} s:\n" + "\n".join(self.lines[-20:]))
            time.sleep(0.05)  # between two questions: what is waited for is said nowhere else
