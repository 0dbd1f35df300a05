"""The server that is measured: one that was started for it and ends with it, or one that was there."""

from __future__ import annotations

import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from types import TracebackType
from typing import Any

from ..runtime.signals import die_with_parent

READY = re.compile(rb"ready at (https?://[^\s]+)")
STOP_S = 60.0
MISSING = (404, 405)
LINES = 40  # of its output that are kept, to be shown if it fails


class ServerError(Exception):
    """It did not start, or cannot be reached."""


def _die_with_parent() -> None:
    """Runs in the child: a bench that is killed leaves no server."""
    die_with_parent(signal.SIGTERM)


class StartedServer:
    """`with StartedServer(["MODEL", "--max-num-seqs", "16"], 600) as server:`, and it is ready at `server.base_url`."""

    def __init__(
        self,
        arguments: Sequence[str],
        timeout_s: float,
        own_group: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`own_group`: a Ctrl-C at the terminal is not for it. `env`: its environment, where it is not ours."""
        self._env = env
        self.arguments = list(arguments)
        self._group = 0 if own_group else None
        self.base_url = ""
        self._timeout_s = timeout_s
        self._said: deque[bytes] = deque(maxlen=LINES)
        self._changed = threading.Event()  # it said where it is, or its output ended

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """It was started, and is no more."""
        return self._process.poll() is not None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if not self.base_url and (found := READY.search(line)):
                self.base_url = found[1].decode()
                self._changed.set()
        self._changed.set()

    def __enter__(self) -> StartedServer:
        command = [sys.executable, "-m", "actorserve", "launch", "--port", "0", *self.arguments]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=_die_with_parent,
            process_group=self._group,
            env=self._env,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        if not self._changed.wait(self._timeout_s):
            raise ServerError(f"the server was not ready within {self._timeout_s:g} s:\n{self.said()}")
        if not self.base_url:
            raise ServerError(f"the server ended with status {self._process.wait()} at its start:\n{self.said()}")
        wait_ready(self.base_url, max(1.0, deadline - time.monotonic()), own=True)

    def said(self) -> str:
        """The end of its output."""
        return b"".join(self._said).decode(errors="replace")

    def _stop(self) -> None:
        """SIGTERM, then by force; only what it started itself."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()


def wait_ready(base_url: str, timeout_s: float, own: bool = False) -> None:
    """Until /ready answers 200; where there is none, until /health does, or the model list. `own`: as in `ask`."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while True:
        status = 0
        for path in ("/ready", "/health", "/v1/models"):
            status = _status(base_url + path, own)
            if status not in MISSING:
                break
        if status == 200 or (path == "/v1/models" and status in (401, 403)):
            return
        if time.monotonic() > deadline:
            raise ServerError(f"{base_url} was not ready within {timeout_s:g} s ({status or 'no answer'})")
        pause.wait(0.1)  # somebody else's server has no other way to tell us


def ask(request: str | urllib.request.Request, timeout_s: float, own: bool) -> Any:
    """The response, as of urlopen. `own`: the server was started here, so that no proxy stands before it, and no
    authority that this machine knows need have signed its certificate.
    """
    return (_direct().open if own else urllib.request.urlopen)(request, timeout=timeout_s)


@cache
def _direct() -> urllib.request.OpenerDirector:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


def _status(url: str, own: bool) -> int:
    """The status of a GET; 0 if nobody answers."""
    try:
        with ask(url, 10.0, own) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
