"""Profiles: begun and ended for all actors, whose parts (runtime/profiling.py) are joined to one trace for Perfetto."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from actorserve.http.errors import ApiError, bad_request
from actorserve.shm.kv_map.sleep import SleepWord

from ...protocol.actor_spec import ActorSpec
from ...protocol.kinds import kind_of
from ...protocol.topics.administration import Profile, Profiled
from ...runtime.process import Context
from ...runtime.profiling import PART, Part, engine_part, is_part, part_name
from ...runtime.whole_file import write_whole
from ..rpc import Calls

PARTS_S = 15.0  # in which actors write their parts
POLL_S = 0.05  # files come without a sign


class Profiles:
    """Of one frontend."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._context, self._calls = context, calls
        self._folder = None if context.config.profile_dir is None else Path(context.config.profile_dir)

    async def start(self, seconds: float) -> None:
        """All actors are profiled from now on, for so long at most."""
        folder = self._wanted()
        if not await self._ask(seconds):
            raise bad_request("A profile is running; POST /stop_profile ends it.")
        await asyncio.to_thread(_remove_parts, folder, set(self._names))

    async def stop(self) -> dict[str, Any]:
        """Where the trace is, and whose part is missing."""
        folder = self._wanted()
        began = await self._ask(0)
        if not began:
            raise bad_request("No profile is running; POST /start_profile begins one.")
        board = self._context.board
        lives = {spec.name: board.incarnation(spec.position) for spec in self._context.system.actors}
        wanted = {name: part_name(name, lives.get(name, 0), began) for name in self._names}
        deadline = time.monotonic() + PARTS_S
        while time.monotonic() < deadline and not all((folder / name).exists() for name in wanted.values()):
            await asyncio.sleep(POLL_S)
        actors = self._context.system.actors
        replaced = {
            spec.name: self._why_replaced(spec, began)
            for spec in actors
            if board.snapshot(spec.position).started_ns > began
        }
        try:
            return await asyncio.to_thread(_join, folder, began, list(wanted), replaced)
        except OSError as error:
            text = f"The profile cannot be written to {folder} (--profile-dir): {error.strerror}."
            raise ApiError(503, text) from None

    @property
    def _names(self) -> list[str]:
        """Of whom there are parts: of each actor, and of each engine elsewhere."""
        system = self._context.system
        return [*(spec.name for spec in system.actors), *map(engine_part, system.remote_engines)]

    def _why_replaced(self, spec: ActorSpec, began: int) -> str:
        """A worker that falls asleep, or wakes, gives its life up."""
        word = SleepWord(self._context.segment.map, self._context.system.kv_map_offsets[spec.engine])
        if not kind_of(spec.kind).computes or not word.since_ns:
            return "it died, or was replaced"
        return "it fell asleep" if word.since_ns > began else "it woke, died, or was replaced"

    def _wanted(self) -> Path:
        if self._folder is None:
            raise ApiError(400, "Profiles are written to --profile-dir, which this server was started without.")
        return self._folder

    async def _ask(self, seconds: float) -> int:
        answer = (await self._calls.ask_engines(lambda number: Profile(number, seconds), only=[0]))[0]
        assert isinstance(answer, Profiled)
        return answer.began


def _remove_parts(folder: Path, actors: Collection[str]) -> None:
    """What profiles of these actors that nobody has stopped have left; files of others are not touched."""
    for path in folder.glob(f"*{PART}") if folder.is_dir() else ():
        if is_part(path.name, actors):
            path.unlink(missing_ok=True)


def _join(folder: Path, began: int, actors: list[str], replaced: dict[str, str]) -> dict[str, Any]:
    """One file of all parts, whole or not at all. `replaced`: why a life is over that was profiled, too, by actors."""
    parts = sorted(folder.glob(f"*.{began}{PART}"))
    found = [msgspec.json.decode(path.read_bytes(), type=Part) for path in parts]
    there = {part.actor for part in found}
    missing = {name: "it wrote nothing: it was killed, or hangs" for name in actors if name not in there}
    missing |= {name: f"what its life before has seen: {why}" for name, why in replaced.items() if name in there}
    entries = [entry for part in found for entry in part.entries]
    about = {"missing": missing, "cut": sorted(part.actor for part in found if part.cut)}
    path = folder / f"profile-{time.strftime('%Y%m%d-%H%M%S')}-{began % 1_000_000:06}.json"
    write_whole(path, msgspec.json.encode({"traceEvents": entries, "displayTimeUnit": "ms", "otherData": about}))
    for part_path in parts:
        part_path.unlink()
    return {"path": str(path), "events": len(entries), **about}
