"""A hang is a death: actors that stand still are replaced, and only the request that did it pays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import psutil
import pytest

from actorserve.actors.runtime.in_flight import MOST_TRIES
from tests.support.client import http_session
from tests.support.selection import slow
from tests.support.server import Server

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TEMPLATE = (
    "{% for message in messages %}{% if message.content == 'hang' %}" + ENDLESS + "{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path: Path = tmp_path_factory.mktemp("template") / "template.jinja"
    path.write_text(TEMPLATE)
    arguments = ("--chat-template", str(path), "--hang-timeout", "2", "--step-timeout", "4", "--threads", "1")
    with Server(*arguments) as running:
        yield running


async def ask(session: aiohttp.ClientSession, content: str) -> tuple[int, str]:
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0}
    async with session.post("/v1/chat/completions", json=body) as response:
        return response.status, await response.text()


async def ask_all(server: Server, *contents: str) -> list[tuple[int, str]]:
    async with http_session(server) as session:
        return await asyncio.gather(*(ask(session, content) for content in contents))


async def test_an_endless_template_costs_its_own_request_alone(server: Server) -> None:
    capital = "What is the capital of France?"
    answers = await ask_all(server, capital, "hang", capital, "hang", capital)
    assert [status for status, _ in answers] == [200, 422, 200, 422, 200]
    assert all("Paris" in text for status, text in answers if status == 200)
    assert all("within 2 s" in text and "messages" in text for status, text in answers if status == 422)
    server.wait_for("renderer-0 ended .* its loop stood still", since_start=True)


@pytest.mark.parametrize("name", ["renderer-0", "scheduler", *slow("detokenizer-0", "worker")])
async def test_an_actor_that_is_stopped_is_replaced_and_no_request_fails(server: Server, name: str) -> None:
    old = server.pids()[name]
    os.kill(old, signal.SIGSTOP)
    answers = await ask_all(server, *["What is the capital of France?"] * 4)
    assert all(status == 200 and "Paris" in text for status, text in answers), answers
    await asyncio.to_thread(server.wait_for, f"{name} is up")
    assert server.pids()[name] != old


async def test_a_frontend_that_is_stopped_is_replaced(server: Server) -> None:
    os.kill(server.pids()["frontend-0"], signal.SIGSTOP)
    await asyncio.to_thread(server.wait_for, "frontend-0 is up")
    ((status, _),) = await ask_all(server, "Hello!")
    assert status == 200


async def test_a_request_on_which_renderers_die_is_given_up_with_its_name(tmp_path: Path) -> None:
    """The kernel kills the renderer each time it works on it (as when it runs out of memory)."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    with Server("--chat-template", str(path), "--hang-timeout", "50", "--threads", "1") as server:
        deadly = asyncio.create_task(ask_all(server, "hang"))
        for _ in range(MOST_TRIES):
            await wait_until_busy(server, "renderer-0")
            os.kill(server.pids()["renderer-0"], signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, "renderer-0 is up")
        ((status, text),) = await deadly
        assert status == 500 and "died on this prompt" in text
        name = server.wait_for(r"request (\w+) is given up")[1]
        assert name in text
        async with http_session(server) as session:
            metrics = await (await session.get("/metrics")).text()
        assert 'actorserve:requests_given_up_total{actor="renderer-0"} 1.0' in metrics
        ((status, text),) = await ask_all(server, "What is the capital of France?")
        assert status == 200 and "Paris" in text


async def wait_until_busy(server: Server, name: str) -> None:
    """Until the actor has used some CPU time of its own: it is in the endless loop."""
    process = psutil.Process(server.pids()[name])
    before = process.cpu_times().user
    while process.cpu_times().user < before + 0.1:
        await asyncio.sleep(0.01)  # nothing tells what another process does
