"""Find the servers of this machine and map their shared memory, to read it. Nobody is asked, so whoever hangs or is
stopped does not matter; nobody is told, so it costs the server nothing.

The names of the control sockets stand in /proc/net/unix, with the supervisor's process id; among that process's open
files is the Description, which says which of the others is the segment. Both processes see the same process ids.
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import msgspec

from actorserve.shm.histogram import Counted
from actorserve.shm.segment import Segment

from ..protocol.topology import System
from ..telemetry.discovery import FILE, SOCKET, Description, peer_of
from ..telemetry.snapshot import Snapshot, SnapshotReader

SOCKETS = Path("/proc/net/unix")
ACCEPTS = 0x10000  # among a socket's flags there: it listens (__SO_ACCEPTCON)
FLAGS, INODE, PATH = 3, 6, 7  # columns there
ROOT = 0


class AttachError(Exception):
    """There is no server to look at, or it cannot be looked at; the message says why."""


class RunningServer(msgspec.Struct, frozen=True, order=True):
    """A control socket that somebody listens on."""

    port: int
    pid: int
    uid: int
    name: str = ""  # of its socket

    def __str__(self) -> str:
        return f"port {self.port} (pid {self.pid})"


class Attached:
    """One server, mapped read-only."""

    def __init__(self, description: Description, segment: Segment) -> None:
        self.description = description
        self.segment = segment
        self.system = System(description.config, description.model, description.also)
        if self.system.size != description.segment_bytes:
            raise AttachError(f"the server lays out its memory otherwise: it is version {description.version}")
        self._snapshots = SnapshotReader(self.system, segment, description.pid)

    def look(self) -> Snapshot:
        """All actors now; AttachError if the server has ended."""
        snapshot = self._snapshots.look()
        if snapshot.actors[0].state == "dead":
            raise AttachError(f"the server on port {self.description.port} has ended")
        return snapshot

    def histograms(self) -> dict[str, Counted]:
        """What was counted since the server's start, by the keys of histograms.py."""
        return self._snapshots.histograms()

    @property
    def up_s(self) -> float:
        return time.monotonic() - self.description.started_ns / 1e9

    def close(self) -> None:
        self.segment.close()


def find_servers(uid: int | None = None) -> list[RunningServer]:
    """Servers of this user, or of all for root, by port."""
    uid = os.getuid() if uid is None else uid
    found = []
    for line in SOCKETS.read_text(errors="replace").splitlines()[1:]:
        columns = line.split(maxsplit=PATH)
        name = columns[PATH] if len(columns) > PATH else ""
        match = SOCKET.fullmatch(name.removeprefix("@")) if name.startswith("@") else None
        if match and int(columns[FLAGS], 16) & ACCEPTS:
            server = RunningServer(int(match["port"]), int(match["pid"]), int(match["uid"]), match[0])
            if uid in (ROOT, server.uid) and _is_its_own(server, int(columns[INODE])):
                found.append(server)
    return sorted(found)


def _is_its_own(server: RunningServer, inode: int) -> bool:
    """Anyone can listen on any free name; but not own another user's process, nor put a socket among its files."""
    folder = f"/proc/{server.pid}/fd"
    try:
        if os.stat(f"/proc/{server.pid}").st_uid != server.uid:
            return False
        paths = [Path(folder, str(number)) for number in sorted(map(int, os.listdir(folder)))]  # it is one of the first
        return any(_points_to(path) == f"socket:[{inode}]" for path in paths)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:  # its files cannot be looked at, though it is this user's: it has more rights
        return _is_there(server)


def _is_there(server: RunningServer) -> bool:
    """The same by the other end of a connection, which costs the server one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connection:
        try:
            connection.connect(f"\0{server.name}")
            return peer_of(connection) == (server.pid, server.uid)
        except BlockingIOError:  # others ask it, and it does not answer: whoever asks looks again
            return True
        except OSError:  # it has just ended
            return False


def choose(servers: list[RunningServer], port: int | None = None, pid: int | None = None) -> RunningServer:
    """The one with this port or process id, or the only one there is."""
    if port is not None or pid is not None:
        named = [server for server in servers if server.port == port or server.pid == pid]
        what = f"port {port}" if pid is None else f"process id {pid}"
        others = f"; there are {_list(servers)}" if servers else ""
        if not named:
            raise AttachError(f"no server has the {what}{others}{_of_other_users()}")
        servers = named
    if not servers:
        raise AttachError(f"no server runs here{_of_other_users()}")
    if len(servers) > 1:
        raise AttachError(f"several servers run here, choose one with --server PORT or pid:PID: {_list(servers)}")
    return servers[0]


def _of_other_users() -> str:
    """To put behind a message."""
    theirs = [server for server in find_servers(ROOT) if server.uid != os.getuid()]
    return f", but those of other users, which they or root can look at: {_list(theirs)}" if theirs else ""


def _list(servers: list[RunningServer]) -> str:
    return ", ".join(map(str, servers))


def attach(port: int | None = None, pid: int | None = None) -> Attached:
    """The server with this port or process id, or the only one."""
    server = choose(find_servers(), port, pid)
    try:
        description = _description(server)
        segment = Segment.observe(f"/proc/{server.pid}/fd/{description.segment_fd}")
    except (FileNotFoundError, ProcessLookupError):
        raise AttachError(f"the server on {server} has just ended") from None
    except PermissionError:
        raise AttachError(f"the server on {server} belongs to another user") from None
    except msgspec.DecodeError as error:
        raise AttachError(f"the server on {server} is of another version: {error}") from None
    try:
        return Attached(description, segment)
    except AttachError:
        segment.close()
        raise


def _description(server: RunningServer) -> Description:
    """It was opened before any connection, so it has one of the first numbers."""
    folder = Path(f"/proc/{server.pid}/fd")
    for number in sorted(map(int, os.listdir(folder))):
        path = folder / str(number)
        if _points_to(path) == f"/memfd:{FILE} (deleted)":
            return msgspec.json.decode(path.read_bytes(), type=Description)
    raise AttachError(f"the server on {server} does not say where its memory is")


def _points_to(path: Path) -> str:
    """Where a descriptor leads; nothing if it was closed meanwhile."""
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError):
        return ""
