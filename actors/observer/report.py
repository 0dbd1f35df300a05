"""A snapshot as JSON, for scripts."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.shm.adapters.registry import RegisteredAdapter

from ..telemetry.adapters import registry_of
from ..telemetry.snapshot import Snapshot
from .attach import Attached
from .table import lifetime_cpu


def as_json(server: Attached, snapshot: Snapshot) -> bytes:
    """One object: the server, its actors, its lanes, its adapters. Ages and times are in seconds."""
    description = server.description
    cpu, registry = lifetime_cpu(snapshot), registry_of(server.system, server.segment)
    report = {
        "server": {
            "pid": description.pid,
            "port": description.port,
            "url": description.url,
            "model": description.config.served_names()[0],
            "models": [served.name for served in server.system.models],
            "version": description.version,
            "up_s": server.up_s,
            "ready": snapshot.ready,
            "held": snapshot.held,
        },
        "actors": [{**msgspec.structs.asdict(actor), "cpu_percent": cpu[actor.name]} for actor in snapshot.actors],
        "lanes": snapshot.lanes,
        "adapters": [] if registry is None else [_adapter(one) for one in registry.all()],
    }
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def _adapter(one: RegisteredAdapter) -> dict[str, Any]:
    counts = {"running": one.running, "waiting": one.waiting}
    return {"name": one.name, "path": one.path, "state": one.state.name.lower(), **counts}
