"""What the tools actor keeps of the calls that it has made."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.options.objects.tool_servers import ToolServer
from actorserve.actors.protocol.topics.tools import CallTool, ServerAddress, ToolCalled
from actorserve.actors.runtime.signals import InjectedFault, fail_on_purpose
from actorserve.actors.tools import actor
from actorserve.actors.tools.connections import Connection


class Calls:
    """In the place of connections: a call named "long" has no end, and in one named "fault" the actor fails."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def call(self, message: CallTool) -> ToolCalled:
        self.made.append(message.name)
        if message.name == "long":
            await asyncio.Event().wait()
        if message.name == "fault":
            raise InjectedFault
        return ToolCalled(message.call, output="x")

    def let_go(self) -> None:
        pass

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("why", ["age", "number"])
async def test_a_call_that_runs_keeps_no_other_from_being_forgotten(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status = SimpleNamespace(set_gauge=lambda *_: None, add=lambda *_: None)
    context: Any = SimpleNamespace(config=make_config({}), status=status, incarnation=1)
    tools, calls = actor.ToolsActor(context), Calls()
    tools._connections = calls  # type: ignore[assignment]

    async def call(key: bytes, name: str) -> None:
        await tools._call(CallTool(1, 1, key, ServerAddress("x", "http://x"), name, "{}"))

    async with asyncio.TaskGroup() as group:
        running = group.create_task(call(b"0", "long"))
        while not calls.made:
            await asyncio.sleep(0)
        await call(b"1", "short")
        await call(b"2", "short")
        if why == "age":
            monkeypatch.setattr(actor, "KEPT_S", time.monotonic() - tools._made_at[b"2"] - 1)  # all are older
        else:
            monkeypatch.setattr(actor, "MOST_KEPT", 1)
        tools.beat()
        assert list(tools._made_at) == list(tools._calls) == [b"0"]
        await call(b"1", "short")
        assert calls.made == ["long", "short", "short", "short"]
        running.cancel()
        tools._calls[b"0"].cancel()


async def test_a_life_that_ends_takes_and_answers_nothing() -> None:
    """As its connections are closed they may fail, which is no answer to who waits: the next life is asked."""
    posted: list[Any] = []
    context: Any = SimpleNamespace(
        **{"config": make_config({}), "status": SimpleNamespace(add=lambda *_: None), "incarnation": 1},
        **{"post": lambda _, answer: posted.append(answer), "flush": lambda: True},
    )
    tools, calls = actor.ToolsActor(context), Calls()
    tools._connections = calls  # type: ignore[assignment]

    async def ask(key: bytes) -> None:
        tools.handle(CallTool(1, 1, key, ServerAddress("x", "http://x"), "short", "{}"))
        await asyncio.gather(*tools._running)

    await ask(b"0")
    assert calls.made == ["short"] and len(posted) == 1
    tools.handle(CallTool(1, 1, b"1", ServerAddress("x", "http://x"), "short", "{}"))
    tools._over.cancel()
    await asyncio.gather(*tools._running)
    await ask(b"2")
    assert calls.made == ["short"] * 2 and len(posted) == 1


class FailingConnection(Connection):
    async def _target(self, stack: Any) -> Any:
        raise InjectedFault


@pytest.mark.parametrize("where", ["call", "connection", "callback"])
async def test_a_fault_ends_it_wherever_it_comes(where: str) -> None:
    """asyncio keeps it in a task, of which nobody would hear: who asked would wait, and no next life come."""
    context: Any = SimpleNamespace(
        config=make_config({}), status=SimpleNamespace(add=lambda *_: None), incarnation=1, log=None
    )
    tools = actor.ToolsActor(context)
    tools._connections = Calls()  # type: ignore[assignment]
    if where == "call":
        tools.handle(CallTool(1, 1, b"0", ServerAddress("x", "http://x"), "fault", "{}"))
    elif where == "connection":
        held = FailingConnection(ToolServer(url="http://x"), context.config, False)
    else:
        asyncio.get_running_loop().call_soon(fail_on_purpose, 0, None)
    with pytest.raises(InjectedFault):
        await asyncio.wait_for(tools._over, 30)
    assert where != "connection" or held.is_broken
