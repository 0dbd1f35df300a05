"""/v1/responses over a WebSocket with the openai client, and across deaths of the frontends that serve it: each event
is told once, and the next response goes on from the last, also where that is kept by the connection alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from openai import OpenAI

from tests.server.api.test_tool_calls import PARIS, TOOLS
from tests.server.dialects.conftest import LONG
from tests.support.server import WAIT_S, Server, stopped

TOOL = {"type": "function", **TOOLS[0]["function"]}


def test_openais_client(scripted_server: Server) -> None:
    pytest.importorskip("websockets")
    client: Any = OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key="none")
    with client.responses.connect() as connection:
        connection.response.create(model="tiny", input="<one>", tools=[TOOL], store=False)
        response = next(event for event in connection if event.type == "response.completed").response
        (call,) = response.output
        assert call.type == "function_call" and json.loads(call.arguments) == PARIS
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "<none>"}
        connection.response.create(model="tiny", input=[output], previous_response_id=response.id)
        following = next(event for event in connection if event.type == "response.completed").response
        assert following.previous_response_id == response.id
        assert client.responses.retrieve(following.id).output == following.output
        connection.response.create(model="tiny", input="<one>", temperature=9)
        error = connection.recv()
        assert (error.type, error.status, error.error.param) == ("error", 400, "temperature")


async def turn(socket: ClientWebSocketResponse, at: dict[int, Callable[[], None]], **fields: Any) -> dict[str, Any]:
    """Ask, and do something behind some of the events; the response at its end."""
    await socket.send_json({"type": "response.create", "store": False} | fields)
    numbers: list[int] = []
    text = kind = ""
    while kind != "response.completed":
        if len(numbers) in at:
            at[len(numbers)]()
        message = await socket.receive(timeout=WAIT_S)
        assert message.type is WSMsgType.TEXT, (message, numbers)
        event = json.loads(message.data)
        kind = event["type"]
        numbers.append(event["sequence_number"])
        text += event["delta"] if kind == "response.output_text.delta" else ""
    response = dict(event["response"])
    assert numbers == list(range(len(numbers)))
    assert text == response["output"][0]["content"][0]["text"]
    return response


async def test_a_connection_goes_on_when_its_frontend_dies(
    scripted_server: Server, kill_frontends: Callable[[], None]
) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{scripted_server.base_url}/v1/responses") as socket:
            await socket.send_json({"type": "nothing"})  # from the first answer on it is sure to be written down
            assert (await socket.receive_json(timeout=WAIT_S))["type"] == "error"
            kill_frontends()
            first = await turn(socket, {0: kill_frontends, 1: kill_frontends, 9: kill_frontends}, input="<long>")
            assert first["output"][0]["content"][0]["text"] == LONG
            kill_frontends()
            second = await turn(socket, {}, input="<long>", previous_response_id=first["id"])
            assert second["output"][0]["content"][0]["text"] == LONG


async def test_one_goes_on_from_a_response_whichever_frontend_keeps_it(
    scripted_server: Server, kill_frontends: Callable[[], None]
) -> None:
    """By connections to both, behind the deaths of both, and by requests of their own."""
    url, short = f"{scripted_server.base_url}/v1/responses", {"input": "<one>", "store": True}
    async with aiohttp.ClientSession() as session:
        sockets: dict[str, tuple[ClientWebSocketResponse, str]] = {}
        others: list[ClientWebSocketResponse] = []
        while len(sockets) < 2:
            assert len(others) < 64, "all connections are one frontend's"
            others.append(await session.ws_connect(url))
            name = (await turn(others[-1], {}, **short))["id"]
            sockets[name[:7]] = others[-1], name  # resp_, and the frontend's number
        for _ in range(2):
            names = [name for _, name in sockets.values()]
            for owner, (socket, _) in sockets.items():
                for name in names:
                    following = await turn(socket, {}, previous_response_id=name, **short)
                    assert following["previous_response_id"] == name and following["id"].startswith(owner)
                    sockets[owner] = socket, following["id"]
            kill_frontends()
        for _, name in sockets.values():
            async with session.post(url, json={"previous_response_id": name, **short}) as answer:
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["previous_response_id"] == name


async def test_a_cancel_is_heeded_once_whatever_waits_before_it(
    scripted_server: Server, kill_frontends: Callable[[], None]
) -> None:
    """Also by a successor that reads it again, behind another lane's response: it is no error of the client's."""
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{scripted_server.base_url}/v1/responses") as socket:
            create = {"type": "response.create", "store": False, "input": "<long>"}
            await socket.send_json({**create, "stream_id": "a"})
            assert (await socket.receive_json(timeout=WAIT_S))["type"] == "response.created"
            with stopped(scripted_server, "worker"):
                await socket.send_json({**create, "stream_id": "b"})
                await socket.send_json({"type": "response.cancel", "stream_id": "a"})
                while (event := await socket.receive_json(timeout=WAIT_S))["type"] != "response.failed":
                    assert event["stream_id"] == "a"
                kill_frontends()
            while (event := await socket.receive_json(timeout=WAIT_S))["type"] != "response.completed":
                assert event["stream_id"] == "b"
            assert event["response"]["output"][0]["content"][0]["text"] == LONG
            assert (await turn(socket, {}, input="<long>"))["output"][0]["content"][0]["text"] == LONG


async def test_a_response_is_cancelled_whichever_life_of_its_frontend_is_told(
    scripted_server: Server, kill_frontends: Callable[[], None]
) -> None:
    """And once: a successor that reads messages again cancels nothing that comes behind."""
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{scripted_server.base_url}/v1/responses") as socket:
            for _ in range(2):
                await socket.send_json({"type": "response.create", "store": False, "input": "<long>"})
                assert (await socket.receive_json(timeout=WAIT_S))["type"] == "response.created"
                with stopped(scripted_server, "worker"):
                    kill_frontends()
                    await socket.send_json({"type": "response.cancel"})
                    while (event := await socket.receive_json(timeout=WAIT_S))["type"] != "response.failed":
                        assert event["type"] != "response.completed"
                    kill_frontends()
                response = await turn(socket, {1: kill_frontends}, input="<long>")
                assert response["output"][0]["content"][0]["text"] == LONG
