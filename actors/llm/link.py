"""The caller's end of the host: starts the process, takes what it says, and stops it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

from ..options.checks import PLUGINS
from ..options.config import Config, ConfigError
from ..options.kv_offload import plugin_parts, read_tiers
from ..options.plugins import folder_of
from ..runtime.process import Boot
from .host_wire import (
    HostBegun,
    HostEnded,
    HostMessage,
    HostReady,
    decode_message,
    descriptors_of,
    receive,
    renumbered,
    send,
)

COMMAND = (sys.executable, "-P", "-X", "faulthandler", "-m", "actorserve.actors.llm.host")
REFUSED = 2  # exit status: an option cannot be
END_S = 20.0  # what the host gets to stop its actors


class EngineDead(RuntimeError):
    """The actors are gone: nothing can be generated any more. The message says why."""


def _environment(config: Config) -> dict[str, str]:
    """Ours, with where this process has found modules that options name: the host does not look beside the script."""
    named = [getattr(config, name) for name in PLUGINS]
    if (tiers := read_tiers(config)) is not None and tiers.plugin:
        named.append(plugin_parts(tiers.plugin)[0])
    folders = [folder for one in (*named, *config.logits_processors) if one and (folder := folder_of(one))]
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*path, *folders])} if folders else dict(os.environ)


class HostLink:
    """The host process and the socket to it. `boot` is set once the shared memory is there."""

    def __init__(self, config: Config) -> None:
        self.boot: Boot | None = None
        self._reason = ""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [*COMMAND, str(theirs.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else None,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the caller alone
                env=_environment(config),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.socket = ours
        try:
            send(ours, config)
        except ConnectionError:  # it ended at once: `hear` says so
            return
        except OSError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The supervisor's."""
        return self._process.pid

    def wait_ready(self) -> None:
        """Return when all actors are up; ConfigError or EngineDead if that will not be."""
        while True:
            select.select([self.socket], [], [])
            match self.hear():
                case HostBegun(boot):
                    self.boot = boot
                case HostReady():
                    return
                case HostEnded(status, reason):
                    self.close()
                    raise ConfigError(reason) if status == REFUSED else EngineDead(reason)

    def hear(self) -> HostMessage:
        """The next message; HostEnded if there will be none. Blocks if nothing has come."""
        try:
            data, descriptors = receive(self.socket)
        except ConnectionError:
            data, descriptors = b"", []
        except OSError as error:
            return HostEnded(1, f"what the supervisor (process {self.pid}) says cannot be read: {error.strerror}")
        if not data:
            return HostEnded(1, self._reason or f"the supervisor (process {self.pid}) {self._how_it_ended()}")
        message: HostMessage = decode_message(data)
        if isinstance(message, HostBegun):
            for fd in descriptors:
                os.set_inheritable(fd, False)
            return HostBegun(renumbered(message.boot, descriptors))
        if isinstance(message, HostEnded):
            self._reason = message.reason
        return message

    def _how_it_ended(self) -> str:
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "does not answer"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"

    def close(self) -> None:
        """Stop the host and wait for its end; after some time by force."""
        if self.socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # it has gone already
                self.socket.shutdown(socket.SHUT_WR)  # closing alone says nothing where a fork has it, too
            self._wait()
            self.socket.close()
        if self.boot is not None:
            for fd in descriptors_of(self.boot):
                os.close(fd)
            self.boot = None

    def _wait(self) -> None:
        deadline = time.monotonic() + END_S
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its actors die with it
            self._process.wait(max(1.0, deadline - time.monotonic()))
