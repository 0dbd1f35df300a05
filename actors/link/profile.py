"""A profile of the server reaches its engines elsewhere: each link looks at the words that all actors look at, tells
its engine, and writes what comes from there as a part of its own (runtime/profiling.py), which the frontend joins.

A link that dies meanwhile leaves the engine's part out, as any actor's death does.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from actorserve.shm.kv_map.profile import ProfileWords

from ..engines.channel import Channel
from ..protocol.sockets import engine_wire as wire
from ..runtime.process import Context
from ..runtime.profiling import MissedProfiles, Part, engine_part, part_name, write_part

APART = 10_000_000  # between the numbers of processes of two machines


class LinkProfile:
    """Of one link."""

    def __init__(self, context: Context) -> None:
        self._context, self._engine = context, context.spec.engine
        self._words = ProfileWords(context.segment.words, context.system.kv_map_offsets[0])
        self._folder = None if context.config.profile_dir is None else Path(context.config.profile_dir)
        self._seen = self._words.ends
        self._missed = MissedProfiles(self._words)
        self._began = 0

    def look(self, channel: Channel | None) -> None:
        """Now and then: has one begun or ended?"""
        began, ends = self._words.state
        if ends == self._seen:
            if not ends and channel is not None and (missed := self._missed.look()):
                self._write(missed, Part(engine_part(self._engine), 0, missed, False, []))
            return
        self._seen = ends
        self._missed.know(began)
        left_s = (ends - time.monotonic_ns()) / 1e9 if ends else 0.0
        if channel is not None and (left_s > 0 or not ends):
            self._began = began
            channel.send(wire.ProfileEngine(left_s))

    def take(self, record: wire.ProfilePart) -> None:
        """Of all actors there, as one part, whole or not at all. ValueError if it is none."""
        if self._folder is None or not self._began:
            return
        try:
            parts = msgspec.json.decode(record.parts, type=list[Part])
        except msgspec.MsgspecError as error:
            raise ValueError(f"no parts of a profile: {error}") from None
        name = engine_part(self._engine)
        entries = [self._apart(entry) for part in parts for entry in part.entries]
        self._write(self._began, Part(name, 0, self._began, any(part.cut for part in parts), entries))

    def _write(self, number: int, part: Part) -> None:
        if self._folder is not None:
            write_part(self._folder, part_name(part.actor, 0, number), part)

    def _apart(self, entry: dict[str, object]) -> dict[str, object]:
        """As a process of another machine."""
        pid, about = entry.get("pid"), entry.get("args")
        found = {**entry, "pid": pid + APART * (1 + self._engine) if isinstance(pid, int) else pid}
        if entry.get("name") == "process_name" and isinstance(about, dict):
            found["args"] = {**about, "name": f"{about.get('name')} of engine {self._engine}"}
        return found
