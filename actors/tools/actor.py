"""The tools actor: it speaks to MCP servers for all frontends, lists their tools and calls them.

A call has effects elsewhere, and is made once at most: by the life that it names, by its key. What a call has brought
is kept for KEPT_S under that key, so that the successor of a frontend that died in between asks again and gets it. A
call for another life is not made: its frontend sees by the board that the life has ended, and says that nobody knows
what became of it. Everything has a deadline, and what comes has a bound; servers' processes end with this one.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from actorserve.shm.board.board import ActorState

from ..options.config import Config
from ..options.objects.tool_servers import tool_servers
from ..protocol.messages import Failed, Message
from ..protocol.topics.calls import frontend_of_call
from ..protocol.topics.tools import CallTool, ListTools, ToolCalled, ToolsListed, ToTools
from ..runtime.loop import LoopActor, LoopTurns, raise_error
from ..runtime.process import Context
from ..telemetry.gauges import ToolsGauge
from .refused import ToolTrouble

AT_ONCE = 256  # calls and lists that run
KEPT_S = 600.0  # what a call has brought
MOST_KEPT = 1024  # such calls
OTHER_LIFE = "It is not made: the actor that was asked to has died."
FULL = "The server makes as many tool calls as it takes. Try again soon."


class ToolsActor(LoopActor):
    """The one of a server."""

    def __init__(self, context: Context) -> None:
        from .connections import Connections  # a package with it that not everybody has

        self._context = context
        self._loop = asyncio.get_running_loop()
        self._connections = Connections(context.config, tool_servers(context.config))
        self._running: set[asyncio.Task[None]] = set()
        self._calls: dict[bytes, asyncio.Task[ToolCalled]] = {}  # by key, the one first made first
        self._made_at: dict[bytes, float] = {}
        self._over = self._loop.create_future()
        self._loop.set_exception_handler(self._failed)

    async def run(self) -> None:
        """Until it is told to stop."""
        self._loop.add_signal_handler(signal.SIGTERM, self._context.request_stop)
        LoopTurns(self._context, self._loop, self).start()
        self._connections.ready()
        self._context.set_state(ActorState.READY)
        await self._over
        for task in (*self._running, *self._calls.values()):
            task.cancel()
        await self._connections.close()

    def _failed(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """An error may be a library's. What is none ends this process, also where it came in a task or a callback."""
        loop.default_exception_handler(about)
        error = about.get("exception")
        if error is not None and not isinstance(error, Exception) and not self._over.done():
            self._over.set_exception(error)

    def handle(self, message: ToTools) -> None:
        if self._over.done():  # connections are being closed: the next life is asked
            return
        match message:
            case ListTools():
                self._start(message.call, self._list(message))
            case CallTool():
                self._start(message.call, self._call(message))

    def do_work(self) -> int:
        if self._context.stopping and not self._over.done():
            self._over.set_result(None)
        return 0

    def beat(self) -> None:
        """What is old is forgotten."""
        self._forget_calls(time.monotonic() - KEPT_S)
        self._connections.let_go()
        self._context.status.set_gauge(ToolsGauge.RUNNING, len(self._running))
        self._context.status.set_gauge(ToolsGauge.CONNECTIONS, len(self._connections))

    def _forget_calls(self, limit: float) -> None:
        """Those of before, and beyond MOST_KEPT the oldest; but none that runs."""
        for key, made in list(self._made_at.items()):
            if made >= limit and len(self._made_at) <= MOST_KEPT:
                break
            if self._calls[key].done():
                del self._made_at[key], self._calls[key]

    def _start(self, call: int, work: Coroutine[Any, Any, Message]) -> None:
        task = self._loop.create_task(self._answer(call, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(raise_error)

    async def _answer(self, call: int, work: Coroutine[Any, Any, Message]) -> None:
        try:
            answer = await work
        except ToolTrouble as error:
            answer = Failed([], error.status, str(error), None, call)
        except Exception as error:
            self._context.log.exception("an MCP server cannot be asked")
            answer = Failed([], 500, f"An MCP server cannot be asked: {type(error).__name__}.", None, call)
        if self._over.done():  # what went wrong as connections were closed is no answer
            return
        self._context.post(f"frontend-{frontend_of_call(call)}", answer)
        self._context.flush()

    async def _list(self, message: ListTools) -> Message:
        if len(self._running) > AT_ONCE:
            raise ToolTrouble(FULL, 503)
        tools = await self._connections.tools(message.server)
        return ToolsListed(message.call, msgspec.json.encode(tools))

    async def _call(self, message: CallTool) -> Message:
        task = self._calls.get(message.key)
        if task is None:
            if message.life != self._context.incarnation:
                return ToolCalled(message.call, error=OTHER_LIFE)
            if len(self._running) > AT_ONCE:
                return ToolCalled(message.call, error=FULL)
            task = self._calls[message.key] = self._loop.create_task(self._make(message))
            self._made_at[message.key] = time.monotonic()
        found = await asyncio.shield(task)
        return msgspec.structs.replace(found, call=message.call)

    async def _make(self, message: CallTool) -> ToolCalled:
        self._context.status.add(ToolsGauge.CALLS, 1)
        try:
            return await self._connections.call(message)
        except ToolTrouble as error:
            self._context.status.add(ToolsGauge.FAILED, 1)
            return ToolCalled(message.call, error=str(error))


def import_late(config: Config) -> None:
    """What is imported only as it runs."""
    for name in ("connections", "guarded", "demo"):
        importlib.import_module(f".{name}", __package__)


def main(context: Context) -> None:
    """Run the tools actor until it is told to stop."""

    async def serve() -> None:
        await ToolsActor(context).run()

    asyncio.run(serve())
