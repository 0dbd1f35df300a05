"""/v1/realtime with the openai client, and across deaths of the frontends that serve it: nothing is told twice, nothing
is missing, and the conversation goes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from openai import OpenAI

from actorserve.actors.accounts.account import digest_of
from actorserve.http.realtime.client_secrets import write_secret
from actorserve.http.realtime.fields import SessionFields
from tests.server.api.test_tool_calls import PARIS, TOOLS
from tests.server.dialects.conftest import LONG
from tests.support.selection import slow
from tests.support.server import WAIT_S, Server

TOOL = {"type": "function", **TOOLS[0]["function"]}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def test_openais_client(scripted_server: Server) -> None:
    pytest.importorskip("websockets")
    client: Any = OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key="none")
    with client.realtime.connect(model="tiny") as connection:
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"], "tools": [TOOL]})
        connection.conversation.item.create(item=said("<one>"))
        connection.response.create()
        events = []
        for event in connection:
            events.append(event)
            if event.type == "response.done":
                break
        kinds = [event.type for event in events]
        assert kinds[:4] == ["session.created", "session.updated", "conversation.item.added", "conversation.item.done"]
        deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        done = next(event for event in events if event.type == "response.function_call_arguments.done")
        assert json.loads("".join(deltas)) == json.loads(done.arguments) == PARIS and done.name == "weather"
        response = events[-1].response
        (call,) = response.output
        assert call.type == "function_call" and call.call_id == done.call_id and response.status == "completed"
        assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
        connection.conversation.item.create(
            item={"type": "function_call_output", "call_id": call.call_id, "output": "<none>"}
        )
        connection.response.create(response={"max_output_tokens": 3})
        assert next(event for event in connection if event.type == "response.done").response.status == "incomplete"


async def turn(socket: ClientWebSocketResponse, prompt: str, at: dict[int, Callable[[], None]]) -> dict[str, Any]:
    """Ask, and do something behind some of the events; the response at its end, whose texts all came once."""
    await socket.send_json({"type": "conversation.item.create", "item": said(prompt)})
    await socket.send_json({"type": "response.create"})
    kinds: list[str] = []
    text = ""
    while not kinds or kinds[-1] != "response.done":
        if len(kinds) in at:
            at[len(kinds)]()
        message = await socket.receive(timeout=WAIT_S)
        assert message.type is WSMsgType.TEXT, (message, kinds)
        event = json.loads(message.data)
        kinds.append(event["type"])
        text += event["delta"] if event["type"] == "response.output_text.delta" else ""
    once = ("response.created", "response.output_item.added", "response.output_text.done", "response.done")
    assert [kinds.count(kind) for kind in once] == [1] * 4 and kinds.count("conversation.item.added") == 2
    response = dict(event["response"])
    assert text == response["output"][0]["content"][0]["text"] and response["status"] == "completed"
    return response


@pytest.mark.parametrize("name", ["frontend", *slow("scheduler", "worker")])
async def test_a_connection_goes_on_when_one_dies(
    scripted_server: Server, kill_frontends: Callable[[], None], name: str
) -> None:
    def kill() -> None:
        if name == "frontend":
            kill_frontends()
        else:
            scripted_server.replace(name)

    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{scripted_server.base_url}/v1/realtime") as socket:
            created = await socket.receive_json(timeout=WAIT_S)
            response = await turn(socket, "<long>", {0: kill, 3: kill, 9: kill})
            assert response["output"][0]["content"][0]["text"] == LONG
            (item,) = response["output"]
            await socket.send_json({"type": "conversation.item.retrieve", "item_id": item["id"]})
            assert (await socket.receive_json(timeout=WAIT_S))["item"] == item
            await turn(socket, "<none>", {})
            await socket.send_json({"type": "session.update", "session": {}})
            assert (await socket.receive_json(timeout=WAIT_S))["session"]["id"] == created["session"]["id"]


async def test_a_session_of_a_client_secret_goes_on_when_its_time_is_over(
    scripted_server: Server, kill_frontends: Callable[[], None]
) -> None:
    """The secret lets nobody in any more by then; all frontends know one that another has made."""
    client: Any = OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key="none")
    made = client.realtime.client_secrets.create(session={"type": "realtime", "instructions": "Be brief."})
    url = f"{scripted_server.base_url}/v1/realtime"
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url, protocols=["realtime", f"openai-insecure-api-key.{made.value}"]) as socket:
            created = await socket.receive_json(timeout=WAIT_S)
            assert created["session"]["instructions"] == made.session.instructions == "Be brief."
        for lasts_s in (2, 8, 32):  # a longer one where a busy machine is not let in before the end of the shorter one
            until = int(time.time()) + lasts_s
            short = {"Authorization": "Bearer " + write_secret(until, "", "tiny", SessionFields(), digest_of(b""))}
            with suppress(aiohttp.WSServerHandshakeError):
                socket = await session.ws_connect(url, headers=short)
                break
        else:
            pytest.fail("it is not let in")
        await socket.receive_json(timeout=WAIT_S)
        while time.time() <= until + 1:
            await asyncio.sleep(0.05)
        kill_frontends()
        response = await turn(socket, "<long>", {5: kill_frontends})
        assert response["output"][0]["content"][0]["text"] == LONG
        await socket.close()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await session.ws_connect(url, headers=short)
