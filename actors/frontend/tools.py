"""Tools of MCP servers, as a frontend asks the tools actor for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from actorserve.http.errors import ApiError, overloaded

from ..options.objects.tool_servers import tool_servers
from ..protocol.messages import Message
from ..protocol.topics.tools import CallTool, ListTools, ServerAddress, Tool, ToolCalled, ToolsListed
from ..runtime.process import Context
from .rpc import Calls

LOOK_S = 0.5  # between two looks whether the actor that was asked still lives
LIST_S = 60.0
MORE_S = 30.0  # that the actor gets for a call beyond the tool's own time
KIND = "tools"
INTERRUPTED = (
    "It was interrupted: the process that made this call has died, and nobody can say whether the tool has done it. "
    "It is not made again."
)


class ToolCalls:
    """One frontend's."""

    def __init__(self, context: Context, calls: Calls) -> None:
        self._context, self._calls = context, calls
        self._actor = next(iter(context.system.of_kind(KIND)), None)
        self.labels = frozenset(tool_servers(context.config)) if self._actor is not None else frozenset()
        self._loop = asyncio.get_running_loop()
        self.waiting = 0  # calls and lists; their requests have no job meanwhile

    @property
    def life(self) -> int:
        """Of the tools actor."""
        return 0 if self._actor is None else self._context.board.incarnation(self._actor.position)

    async def list(self, server: ServerAddress) -> list[Tool]:
        """All that the server has. ApiError where they cannot be had."""
        number, life = next(self._calls.numbers), self.life
        message = ListTools(number, server)
        deadline = self._loop.time() + LIST_S

        def look() -> None:
            nonlocal life
            if self._loop.time() > deadline:
                raise overloaded(f"The tools of {server.label!r} were not listed within {LIST_S:.0f} s.")
            if self.life != life:
                life = self.life
                self._post(message)

        answer = await self._ask(number, message, look)
        assert isinstance(answer, ToolsListed)
        return msgspec.json.decode(answer.tools, type=list[Tool])

    async def call(self, key: bytes, life: int, server: ServerAddress, name: str, arguments: str) -> ToolCalled:
        """What has come of it, in the words of the tool, or why nothing has. The same key asks for the same call, as
        long as the actor of this life lives.
        """
        if life != self.life:
            return ToolCalled(0, error=INTERRUPTED)
        number = next(self._calls.numbers)
        limit = self._context.config.tool_timeout + MORE_S
        deadline = self._loop.time() + limit

        def look() -> None:
            if self.life != life or self._loop.time() > deadline:
                raise _Interrupted

        try:
            answer = await self._ask(number, CallTool(number, life, key, server, name, arguments), look)
        except _Interrupted:
            return ToolCalled(0, error=INTERRUPTED)
        except ApiError as error:
            return ToolCalled(0, error=error.message)
        assert isinstance(answer, ToolCalled)
        return answer

    async def _ask(self, number: int, message: Message, look: Callable[[], None]) -> Message:
        self.waiting += 1
        try:
            return await self._calls.ask(number, lambda: self._post(message), LOOK_S, look)
        finally:
            self.waiting -= 1

    def _post(self, message: Message) -> None:
        assert self._actor is not None, "there is no tools actor"
        self._context.post_alone(self._actor.name, message)


class _Interrupted(Exception):
    """Whoever made the call has died with it."""
