"""The server that is measured: one that was started for it and ends with it, or one that was there."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import urlsplit

from ..options.other_servers import KEY_VARIABLES
from ..runtime.signals import die_with_parent
from .client_tls import OWN, PERHAPS_WANTED, WANTED, ClientTls, may_want_certificate, wants_certificate
from .target import proxy_of

READY = re.compile(rb"ready at (https?://[^\s]+)")
STOP_S = 60.0
DENIED = (401, 403)
MISSING = (404, 405, *DENIED)  # a gateway may let nobody see paths that are not the API's
NO_OWN = ClientTls()
CLOSED = -1
CLOSED_AT_MOST = 10  # times by a server that said that it is ready
LINES = 40  # of its output that are kept, to be shown if it fails


class ServerError(Exception):
    """It did not start, or cannot be reached."""


class NotLetInError(ServerError):
    """It is there, and waiting changes nothing: it wants to see a certificate."""


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
        tls: ClientTls = OWN,
    ) -> None:
        """`own_group`: a Ctrl-C at the terminal is not for it. `env`: its environment, where it is not ours, but for
        the keys of other servers, which whoever asks it here does not send.
        """
        self._tls = tls
        self._env = {name: text for name, text in (env or os.environ).items() if name not in KEY_VARIABLES}
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
        command = [sys.executable, "-P", "-m", "actorserve", "launch", "--port", "0", *self.arguments]
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
        wait_ready(self.base_url, max(1.0, deadline - time.monotonic()), self._tls)

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


def wait_ready(
    base_url: str, timeout_s: float, tls: ClientTls = NO_OWN, headers: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Until /ready answers 200; where there is none, until /health does, or the model list, which may want a key."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    closed = 0  # times on end
    while True:
        status = 0
        for path in ("/ready", "/health", "/v1/models"):
            status = _status(urllib.request.Request(base_url + path, headers=dict(headers)), tls)
            if status not in MISSING:
                break
        if status == 200 or (path == "/v1/models" and status in DENIED):
            return
        closed = closed + 1 if status == CLOSED else 0
        if closed == CLOSED_AT_MOST and tls.own:
            raise NotLetInError(f"{base_url}: {PERHAPS_WANTED}")
        if time.monotonic() > deadline:
            words = {0: "no answer", CLOSED: PERHAPS_WANTED}.get(status, status)
            raise ServerError(f"{base_url} was not ready within {timeout_s:g} s ({words})")
        pause.wait(0.1)  # somebody else's server has no other way to tell us


def ask(request: str | urllib.request.Request, timeout_s: float, tls: ClientTls) -> Any:
    """The response, as of urlopen."""
    url = request if isinstance(request, str) else request.full_url
    proxy = None if tls.own else proxy_of(url)
    proxies = urllib.request.ProxyHandler({urlsplit(url).scheme: proxy} if proxy else {})
    opener = urllib.request.build_opener(proxies, urllib.request.HTTPSHandler(context=tls.context()))
    return opener.open(request, timeout=timeout_s)


def _status(request: urllib.request.Request, tls: ClientTls) -> int:
    """The status of a GET; 0 if nobody answers, and CLOSED if TLS is spoken, and nothing said."""
    try:
        with ask(request, 10.0, tls) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException) as error:  # the latter: what answers speaks no HTTP
        if wants_certificate(error):
            raise NotLetInError(f"{request.full_url}: {WANTED}") from None
        return CLOSED if may_want_certificate(error, request.full_url) else 0
