"""When the server gives up, everybody who waits is told so at once, in the form of the API that was asked."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.certificates import OPENSSL, Certificates
from tests.support.client import http_session
from tests.support.selection import slow
from tests.support.server import READY, Server

WAIT_S = 60.0
ARGUMENTS = ("--worker", "scripted", "--scripted-step-ms", "10", "--max-model-len", "2048", "--max-restarts", "0")
PATIENT = ("--shutdown-timeout", "600")  # who waits for requests is not done within WAIT_S
CHAT = [{"role": "user", "content": "Tell me something."}]
LONG = 1900  # tokens
REASON = "cannot finish this request"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": CHAT, "max_tokens": LONG},
    "/v1/completions": {"prompt": "Once", "max_tokens": LONG},
    "/inference/v1/generate": {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": LONG, "ignore_eos": True}},
    "/v1/messages": {"messages": CHAT, "max_tokens": LONG, "model": "actorserve-demo"},
    "/v1/responses": {"input": "Tell me something.", "max_output_tokens": LONG},
}
ROWS = str(2 * len(BODIES))  # one of each kind whole, one streamed: what comes behind them is queued


@dataclass
class Answer:
    """What a client was told."""

    path: str
    status: int = 0
    whole: Any = None
    events: list[Any] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)


def body_of(path: str, **more: Any) -> dict[str, Any]:
    ignores = {} if path in ("/v1/messages", "/v1/responses", "/inference/v1/generate") else {"ignore_eos": True}
    return {**BODIES[path], **ignores, **more}


async def ask(session: aiohttp.ClientSession, told: Answer, **more: Any) -> Answer:
    """One request; whatever comes of it, until the end of the answer."""
    async with session.post(told.path, json=body_of(told.path, **more)) as response:
        told.status = response.status
        if response.content_type == "application/json":
            told.whole = await response.json()
            return told
        async for line in response.content:
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                told.events.append(data.decode() if data == b"[DONE]" else json.loads(data))
                if len(told.events) > 8:
                    told.begun.set()
    return told


def check_whole(told: Answer) -> None:
    """503: a router asks another server."""
    assert told.status == 503, told
    error = told.whole["error"]
    assert REASON in error["message"]
    if told.path == "/v1/messages":
        assert told.whole["type"] == "error" and error["type"] == "overloaded_error"
    else:
        assert error["type"] == "service_unavailable_error"


def check_stream(told: Answer) -> None:
    """It ends with an event that says so, and not like one that is finished."""
    assert told.status == 200, told
    if told.path == "/v1/messages":
        assert told.events[-1]["type"] == "error" and told.events[-1]["error"]["type"] == "overloaded_error"
        assert REASON in told.events[-1]["error"]["message"]
    elif told.path == "/v1/responses":
        assert told.events[-1]["type"] == "response.failed"
        assert REASON in told.events[-1]["response"]["error"]["message"]
    else:
        error, last = told.events[-2:]
        assert REASON in error["error"]["message"] and last == "[DONE]"


class RunningRequests:
    """Requests of all APIs that run, and some that wait behind them."""

    def __init__(self, session: aiohttp.ClientSession, background: bool) -> None:
        self.session = session
        self.wholes = [Answer(path) for path in BODIES]
        self.streams = [Answer(path) for path in BODIES]
        self.background = [Answer("/v1/responses")] if background else []
        self.queued = [Answer("/v1/completions"), Answer("/v1/messages")]

    async def begin(self) -> None:
        """Return when all but the queued ones generate."""
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(ask(self.session, told)) for told in self.wholes]
        self.tasks += [loop.create_task(ask(self.session, told, stream=True)) for told in self.streams]
        for told in self.streams:
            await told.begun.wait()
        await self._are(running=int(ROWS))
        for told in self.background:
            self.tasks.append(loop.create_task(ask(self.session, told, background=True, stream=True)))
        self.tasks.append(loop.create_task(ask(self.session, self.queued[0])))
        self.tasks.append(loop.create_task(ask(self.session, self.queued[1], stream=True)))
        await self._are(running=int(ROWS), waiting=len(self.background) + len(self.queued))

    async def _are(self, **wanted: int) -> None:
        while True:
            async with self.session.get("/metrics") as response:
                lines = [line.rpartition(" ") for line in (await response.text()).splitlines()]
            found = {name.partition("{")[0]: float(value) for name, _, value in lines if not name.startswith("#")}
            if all(found[f"vllm:num_requests_{name}"] == count for name, count in wanted.items()):
                return
            await asyncio.sleep(0.01)  # the scheduler writes its gauges when it turns: nothing can be waited on

    async def check(self) -> None:
        await asyncio.gather(*self.tasks)
        for told in (*self.wholes, *self.queued):
            check_whole(told)
        for told in (*self.streams, *self.background):
            check_stream(told)


async def all_are_told(
    server: Server,
    kill: Callable[[], None],
    trust: ssl.SSLContext | bool = True,
    *,
    background: bool = True,
    status: int = 1,
    why: str = "gives up",
) -> None:
    """`background`: also who reads the events of a response in the background, which end with their frontend."""
    async with http_session(server, trust) as session:
        clients = RunningRequests(session, background)
        await clients.begin()
        kill()
        await clients.check()
    assert await asyncio.to_thread(server.wait) == status
    assert why in server.read_all()


@pytest.mark.parametrize(
    "name",
    [
        "frontend-0",
        *slow("worker", "scheduler", "renderer-0", "detokenizer-0"),
    ],
)
async def test_everybody_is_told(name: str) -> None:
    """Also the clients of the frontend that may not come back: it tells them in one more life."""
    with Server(*ARGUMENTS, *PATIENT, "--frontends", "2", "--max-num-seqs", ROWS) as server:
        background = not name.startswith("frontend")
        await all_are_told(server, lambda: os.kill(server.pids()[name], signal.SIGKILL), background=background)


@pytest.mark.slow
async def test_everybody_is_told_where_all_die_at_once() -> None:
    with Server(*ARGUMENTS, *PATIENT, "--frontends", "2", "--max-num-seqs", ROWS) as server:

        def kill() -> None:
            for pid in server.pids().values():
                os.kill(pid, signal.SIGKILL)

        await all_are_told(server, kill, background=False)


@pytest.mark.parametrize("name", ["worker", *slow("frontend-0")])
async def test_also_in_the_middle_of_a_drain(name: str) -> None:
    with Server(*ARGUMENTS, *PATIENT, "--max-num-seqs", ROWS) as server:

        def kill() -> None:
            pid = server.pids()[name]
            server.signal(signal.SIGTERM)
            server.wait_for("the server stops")
            os.kill(pid, signal.SIGKILL)

        await all_are_told(server, kill, background=name == "worker")


@pytest.mark.slow
async def test_also_where_the_supervisor_itself_has_a_mistake() -> None:
    command = (sys.executable, str(Path(__file__).resolve().parents[2] / "supervisor" / "tree" / "fake_launch.py"))
    env = {"FAKE_MISTAKE": "1", "REAL_ACTORS": "1"}
    with Server(*ARGUMENTS, *PATIENT, "--frontends", "2", "--max-num-seqs", ROWS, command=command, env=env) as server:
        await all_are_told(server, lambda: os.kill(server.pids()["renderer-0"], signal.SIGKILL), why="has failed")


async def test_requests_for_which_a_drain_has_no_more_time() -> None:
    with Server(*ARGUMENTS, "--shutdown-timeout", "0.5", "--max-num-seqs", ROWS) as server:
        await all_are_told(server, lambda: server.signal(signal.SIGTERM), status=0, why="get an error")


@pytest.mark.slow
async def test_a_frontend_that_stands_still_has_its_clients_told_by_its_successor() -> None:
    with Server(*ARGUMENTS, *PATIENT, "--frontends", "2", "--max-num-seqs", ROWS) as server:

        def kill() -> None:
            os.kill(server.pids()["frontend-0"], signal.SIGSTOP)
            os.kill(server.pids()["worker"], signal.SIGKILL)

        await all_are_told(server, kill, background=False)


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl here")
async def test_also_by_tls(tmp_path: Path) -> None:
    files = Certificates(tmp_path)
    with Server(*ARGUMENTS, *PATIENT, "--max-num-seqs", ROWS, *files.options()) as server:
        await all_are_told(server, lambda: os.kill(server.pids()["worker"], signal.SIGKILL), files.context())


async def test_prompts_that_are_rendered_calls_and_bodies_that_have_not_come() -> None:
    with Server(*ARGUMENTS, *PATIENT) as server:
        async with http_session(server) as session:
            pids = server.pids()
            os.kill(pids["renderer-0"], signal.SIGSTOP)
            prompts = [Answer(path) for path in BODIES]
            tasks = [asyncio.create_task(ask(session, told, stream=True)) for told in prompts]
            call = asyncio.create_task(session.post("/tokenize", json={"prompt": "Hello"}))
            never = asyncio.Event()

            async def half() -> Any:
                yield b'{"messages": '
                await never.wait()

            begun = asyncio.create_task(
                session.post("/v1/messages", data=half(), headers={"Content-Type": "application/json"})
            )
            while await load(session) < len(prompts):
                await asyncio.sleep(0.01)  # until they are all at the renderer
            os.kill(pids["worker"], signal.SIGKILL)
            for told in await asyncio.gather(*tasks):
                check_whole(told)
            async with await call as response:
                assert response.status == 503 and REASON in await response.text()
            async with await begun as response:
                kind = (await response.json())["error"]["type"]
                assert (response.status, kind) == (503, "overloaded_error")
        assert await asyncio.to_thread(server.wait) == 1


async def load(session: aiohttp.ClientSession) -> int:
    async with session.get("/load") as response:
        return int((await response.json())["server_load"])


async def test_who_has_come_before_the_server_could_start() -> None:
    """The frontend is up, and the worker never will be."""
    while not await stopped_before_it_could_start():
        pass  # the worker was quicker than its signal; the test's time-out ends this


async def stopped_before_it_could_start() -> bool:
    """Whether the worker could be stopped before it was up; what a client is told then is checked."""
    slow = ("--threads", "1", "--max-restarts", "0")  # to start: a worker with a model
    with Server(*slow, *PATIENT, wait=False) as server:
        url = await asyncio.to_thread(server.wait_for, r"listening on (\S+),")
        while "worker" not in (pids := server.pids()):
            await asyncio.sleep(0.001)  # nothing tells that a process has its name
        os.kill(pids["worker"], signal.SIGSTOP)
        await asyncio.to_thread(server.wait_for, "frontend-0 is up")
        server.base_url = f"http://{url[1]}"
        async with http_session(server) as session:
            told = Answer("/v1/completions")
            task = asyncio.create_task(ask(session, told, stream=True))
            while await load(session) < 1 and not task.done():
                await asyncio.sleep(0.01)
            if "worker is up" in server.output:
                os.kill(pids["worker"], signal.SIGCONT)
                await task
                return False
            os.kill(pids["worker"], signal.SIGKILL)
            check_whole(await task)
        assert await asyncio.to_thread(server.wait) == 1
        assert not READY.search(server.read_all())
        return True
