"""A profile of this machine's actors for a server elsewhere: its scheduler begins and ends it, each actor writes its
part into a file of --profile-dir here, and all parts together go to the server as one.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec

from ..engines.channel import Channel
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.administration import Profile, Profiled
from ..runtime.process import Context
from ..runtime.profiling import Part, part_name

PARTS_S = 10.0  # in which actors write their parts
MOST_S = 24 * 3600.0
POLL_S = 0.05  # files come without a sign


class StewardProfile:
    """Of one steward. What a dead one has begun ends by itself, and is missing in the server's trace."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._folder = None if context.config.profile_dir is None else Path(context.config.profile_dir)
        self._channel: Channel | None = None  # of the server that wants one
        self._began = 0
        self._ends = False  # it is asked to
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, channel: Channel, asked: wire.ProfileEngine) -> None:
        """Of the scheduler."""
        if self._folder is None:
            self._context.log.warning("a profile is wanted, but there is no --profile-dir here")
            return
        if not 0 <= asked.seconds <= MOST_S:
            channel.close(f"a profile of {asked.seconds} seconds cannot be")
            return
        self._channel, self._ends = channel, not asked.seconds
        self._context.post(self._context.system.schedulers[0], Profile(0, asked.seconds))

    def answered(self, answer: Profiled) -> None:
        """It has begun, or ended: 0 if it is neither."""
        if not self._ends:
            self._began = answer.began or self._began
        elif self._began and self._channel is not None:
            task = asyncio.get_running_loop().create_task(self._send(self._channel, self._began))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._began = 0

    async def _send(self, channel: Channel, began: int) -> None:
        assert self._folder is not None
        board, deadline = self._context.board, time.monotonic() + PARTS_S
        names = [part_name(one.name, board.incarnation(one.position), began) for one in self._context.system.actors]
        while time.monotonic() < deadline and not all((self._folder / name).exists() for name in names):
            await asyncio.sleep(POLL_S)
        entries = await asyncio.to_thread(_take, self._folder, began)
        data = msgspec.json.encode(entries)
        if len(data) < wire.MOST_BYTES // 2:
            channel.send(wire.ProfilePart(data))
        else:
            self._context.log.warning("a profile of %d bytes is too long for the way", len(data))


def _take(folder: Path, began: int) -> list[Part]:
    found = []
    for path in sorted(folder.glob(part_name("*", 0, began).replace(".0.", ".*."))):
        found.append(msgspec.json.decode(path.read_bytes(), type=Part))
        path.unlink()
    return found
