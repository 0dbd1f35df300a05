"""CPU and memory of a process and all its descendants, from /proc.

CPU of a descendant that has ended is in its parent's account once the parent has waited for it, so the sum over those
that live never loses any.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlsplit

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")
LISTENING = "0A"


def tree(pid: int) -> list[int]:
    """It and its descendants, those that live."""
    children: dict[int, list[int]] = defaultdict(list)
    for one, fields in _stats().items():
        children[int(fields[1])].append(one)
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting.extend(children[found[-1]])
    return found


def cpu_seconds(pid: int) -> float | None:
    """User and system time of the tree so far, of children that were waited for, too; None if it has ended."""
    stats = _stats()
    if pid not in stats:
        return None
    return sum(sum(map(int, stats[one][11:15])) for one in tree(pid) if one in stats) / TICKS


def pss_bytes(pid: int) -> int | None:
    """Memory of the tree, shared pages divided among those that share them; None where /proc does not let us look."""
    total = 0
    for one in tree(pid):
        try:
            text = (PROC / str(one) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        except PermissionError:
            return None
        if found := re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE):
            total += int(found[1]) * 1024
    return total


def listener(base_url: str) -> int | None:
    """Who listens at the port of a URL of this machine: the topmost such process; None if we see nobody."""
    where = urlsplit(base_url)
    if where.hostname not in ("localhost", "127.0.0.1", "::1", "0.0.0.0"):
        return None
    inodes = _listening(where.port or (443 if where.scheme == "https" else 80))
    holders = {pid for pid in _stats() if inodes & _sockets(pid)}
    stats = _stats()
    top = [pid for pid in holders if pid in stats and int(stats[pid][1]) not in holders]
    return min(top) if top else None


def _stats() -> dict[int, list[str]]:
    """The fields of every process's `stat` behind its name: state, parent, …"""
    found = {}
    for entry in os.listdir(PROC):
        if entry.isdigit():
            try:
                text = (PROC / entry / "stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[int(entry)] = text.rpartition(")")[2].split()
    return found


def _listening(port: int) -> set[str]:
    """The inodes of the sockets that listen at a port."""
    found = set()
    for table in ("tcp", "tcp6"):
        path = PROC / "net" / table
        for line in path.read_text().splitlines()[1:] if path.exists() else ():
            fields = line.split()
            if fields[3] == LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _sockets(pid: int) -> set[str]:
    """The inodes of the sockets that a process has open, as far as we may look."""
    found = set()
    try:
        for entry in os.scandir(PROC / str(pid) / "fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return found  # ended, or somebody else's
    return found
