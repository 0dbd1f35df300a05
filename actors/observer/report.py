"""A snapshot as JSON, for scripts."""

from __future__ import annotations

import msgspec

from ..telemetry.snapshot import Snapshot
from .attach import Attached
from .table import lifetime_cpu


def as_json(server: Attached, snapshot: Snapshot) -> bytes:
    """One object: the server, its actors, its lanes. Ages and times are in seconds."""
    description = server.description
    cpu = lifetime_cpu(snapshot)
    report = {
        "server": {
            "pid": description.pid,
            "port": description.port,
            "url": description.url,
            "model": description.config.served_names()[0],
            "version": description.version,
            "up_s": server.up_s,
            "ready": snapshot.ready,
        },
        "actors": [{**msgspec.structs.asdict(actor), "cpu_percent": cpu[actor.name]} for actor in snapshot.actors],
        "lanes": snapshot.lanes,
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2)
