"""What a server says: JSON lines whatever happens, and one line for each request with its numbers."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp

from tests.support.client import http_client
from tests.support.server import Server, stopped
from tests.support.until import until
from tests.support.warm import run_command

PATIENCE_S = 30.0
CHAT = "/v1/chat/completions"
STAGES = ("queued_ms", "rendered_ms", "waiting_ms", "prefill_ms", "decode_ms")
SECRET = "not-for-logs"
SCRIPTED = ("--worker", "scripted")  # it starts without torch


def objects(server: Server) -> list[dict[str, Any]]:
    """All that a stopped server has said."""
    lines = [json.loads(line) for line in server.read_all().splitlines()]
    for line in lines:
        assert {"time", "level", "actor", "pid", "message"} <= set(line), line
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    return lines


def requests_of(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The lines of requests by their ids; none is told twice."""
    found = [line for line in lines if "total_ms" in line]
    by_id = {line["request_id"]: line for line in found}
    assert len(found) == len(by_id), found
    return by_id


def body(tokens: int = 8, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": SECRET}], "max_tokens": tokens, **more}


def named(name: str) -> dict[str, str]:
    return {"X-Request-Id": name}


def check_line(line: dict[str, Any], answer: dict[str, Any]) -> None:
    """The numbers of a whole answer's line."""
    usage, (choice, *_) = answer["usage"], answer["choices"]
    assert (line["status"], line["answer_id"], line["model"]) == (200, answer["id"], answer["model"])
    assert line["finish_reason"] == choice["finish_reason"] and line["client"] == "127.0.0.1"
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert all(line[stage] >= 0 for stage in STAGES)
    assert 0 < line["first_token_ms"] <= line["total_ms"]
    assert sum(line[stage] for stage in STAGES) <= line["total_ms"] + 0.01
    assert (line["preemptions"], line["deaths"]) == (0, 0)


def test_json_lines_of_requests() -> None:
    with (
        Server(*SCRIPTED, "--log-format", "json", "--api-key", SECRET) as server,
        http_client(server) as client,
    ):
        client.headers["Authorization"] = f"Bearer {SECRET}"
        prompt = [1 + n % 200 for n in range(80)]
        first = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}, headers=named("cold")).json()
        again = client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4}, headers=named("warm")).json()
        two = client.post(CHAT, json=body(n=2), headers=named("two")).json()
        with client.stream("POST", CHAT, json=body(stream=True), headers=named("streamed")) as stream:
            events = list(stream.iter_lines())
        message = client.post("/v1/messages", json=body(model="actorserve-demo"), headers=named("message")).json()
        response = client.post(
            "/v1/responses", json={"input": SECRET, "max_output_tokens": 16}, headers=named("r")
        ).json()
        behind = {"input": SECRET, "max_output_tokens": 16, "background": True}
        begun = client.post("/v1/responses", json=behind, headers=named("behind")).json()
        assert client.post(CHAT, json=body(top_p=SECRET), headers=named("wrong")).status_code == 400
        key = {"Authorization": "Bearer other"}
        assert client.post(CHAT, json=body(), headers=named("stranger") | key).status_code == 401
        with client.stream(
            "POST", CHAT, json=body(1500, stream=True, ignore_eos=True), headers=named("left")
        ) as stream:
            next(stream.iter_lines())
        client.get("/v1/models", headers=named("models"))
        assert client.post(CHAT, json=body(), headers=named("last")).status_code == 200
        server.wait_for('"request_id":"left"', since_start=True)
        server.stop()
        lines = objects(server)
    told = requests_of(lines)
    check_line(told["cold"], first)
    check_line(told["warm"], again)
    assert told["cold"]["cached_tokens"] == 0 and told["warm"]["cached_tokens"] == 64
    check_line(told["two"], two)
    assert told["two"]["completion_tokens"] == 16 and told["two"]["finish_reason"] == "length"
    assert json.loads(events[0].removeprefix("data: "))["id"] == told["streamed"]["answer_id"]
    assert told["streamed"]["completion_tokens"] == 8
    assert (told["message"]["answer_id"], told["message"]["endpoint"]) == (message["id"], "/v1/messages")
    assert (told["r"]["answer_id"], told["r"]["endpoint"]) == (response["id"], "/v1/responses")
    assert told["behind"]["answer_id"] == begun["id"] and begun["status"] != "completed"
    assert told["behind"]["completion_tokens"] == told["r"]["completion_tokens"] > 0
    assert told["wrong"]["status"] == 400 and told["wrong"]["level"] == "info"
    assert (told["stranger"]["status"], told["stranger"]["error"]) == (401, "invalid_api_key")
    left = told["left"]
    assert (left["status"], left["finish_reason"]) == (499, None) and 0 < left["completion_tokens"] < 1500
    assert "models" not in told and "last" in told
    assert not [line for line in lines if SECRET in json.dumps(line)]


def test_a_socket_that_is_closed_is_no_client_that_left() -> None:
    with Server(*SCRIPTED, "--log-format", "json") as server:
        asyncio.run(_talk(server, "closed", is_closed=True))
        asyncio.run(_talk(server, "lost", is_closed=False))
        for name in ("closed", "lost"):
            server.wait_for(f'"request_id":"{name}"', since_start=True)
        server.stop()
        told = requests_of(objects(server))
    assert (told["closed"]["status"], told["lost"]["status"]) == (101, 499)


async def _talk(server: Server, name: str, is_closed: bool) -> None:
    """One response over a WebSocket, which then is closed, or whose connection breaks off."""
    async with aiohttp.ClientSession() as session:
        url = f"{server.base_url}/v1/responses"
        async with session.ws_connect(url, headers=named(name)) as socket:
            await socket.send_json({"type": "response.create", "input": "hi", "max_output_tokens": 16})
            while (await socket.receive_json(timeout=PATIENCE_S))["type"] != "response.incomplete":
                pass
            if not is_closed:
                connection = socket._response.connection
                assert connection is not None and connection.transport is not None
                connection.transport.abort()


def test_json_lines_of_deaths() -> None:
    """Killed, also in the middle of a line, and by an exception: every line is an object, and tells its reason."""
    with (
        Server("--log-format", "json", "--debug", "--worker", "scripted", "--scripted-step-ms", "5") as server,
        http_client(server) as client,
    ):
        long = body(600, stream=True, ignore_eos=True)
        with client.stream("POST", CHAT, json=long, headers=named("long")) as stream:
            lines = stream.iter_lines()
            next(lines)
            for name, number in (("scheduler", signal.SIGUSR1), ("frontend-0", signal.SIGKILL)):
                server.replace(name, number)
            assert list(lines)[-2:] == ["data: [DONE]", ""]
        pid = server.pids()["renderer-0"]
        with open(f"/proc/{pid}/fd/2", "wb", buffering=0) as pipe:
            pipe.write(b'{"time":"2026-01-01T00:00:00.000Z","level":"info","act')
            os.kill(pid, signal.SIGKILL)
        server.wait_for("renderer-0 is up")
        server.stop()
        said = objects(server)
    told = requests_of(said)["long"]
    assert (told["status"], told["completion_tokens"], told["deaths"]) == (200, 600, 2)
    (fault,) = [line for line in said if "InjectedFault" in line["message"] and line["actor"] == "scheduler"]
    assert fault["level"] == "critical" and fault["exception"].startswith("Traceback (most recent call last):\n")
    deaths = [line for line in said if "it is started again" in line["message"]]
    assert [line["actor"] for line in deaths] == ["supervisor"] * 3 and {line["level"] for line in deaths} == {"error"}
    assert "InjectedFault: an exception was injected (SIGUSR1)" in deaths[0]["message"]
    (half,) = [line for line in said if line["message"].startswith('{"time":"2026')]
    assert (half["actor"], half["pid"], half["level"]) == ("renderer-0", pid, "warning")


def test_what_runs_in_the_background_is_told_by_the_successor() -> None:
    slow = ("--worker", "scripted", "--scripted-step-ms", "5")
    with (
        Server("--log-format", "json", *slow) as server,
        http_client(server) as client,
    ):
        asked = {"input": SECRET, "max_output_tokens": 600, "background": True, "model": "actorserve-demo"}
        begun = client.post("/v1/responses", json=asked, headers=named("behind")).json()
        for _ in range(2):
            server.replace("frontend-0")
        until(lambda: client.get(f"/v1/responses/{begun['id']}").json()["status"] != "in_progress")
        ended = client.get(f"/v1/responses/{begun['id']}").json()
        server.stop()
        lines = objects(server)
    told = requests_of([line for line in lines if line.get("request_id") == "behind"])["behind"]
    assert (told["answer_id"], told["endpoint"], told["client"]) == (begun["id"], "/v1/responses", "-")
    assert (told["status"], told["deaths"], told["model"]) == (200, 1, ended["model"])
    assert told["completion_tokens"] == ended["usage"]["output_tokens"] > 0
    assert 0 < told["first_token_ms"] <= told["total_ms"] and not [line for line in lines if SECRET in json.dumps(line)]


def test_load_and_throughput_are_told_whoever_dies() -> None:
    slow = ("--worker", "scripted", "--scripted-step-ms", "10", "--log-stats-interval", "0.2")
    with (
        Server("--log-format", "json", "--frontends", "2", *slow) as server,
        http_client(server) as client,
    ):
        with client.stream("POST", CHAT, json=body(3500, stream=True, ignore_eos=True)) as stream:
            lines = stream.iter_lines()  # kept: an iterator that is gone closes the stream
            next(lines)
            server.wait_for("1 running, 0 waiting")
            for name in ("scheduler", "frontend-0", "frontend-1"):
                server.replace(name)
                server.wait_for("1 running, 0 waiting")
        server.stop()
        told = [line for line in objects(server) if "generated_tokens_per_s" in line]
    assert {(line["actor"], line["level"]) for line in told} == {("supervisor", "info")}
    times = [line["time"] for line in told]
    assert len(set(times)) == len(times) and max(line["generated_tokens_per_s"] for line in told) > 0
    assert all(0 <= line["kv_use_percent"] <= 100 for line in told)


def test_text_lines_of_requests() -> None:
    with Server(*SCRIPTED) as server, http_client(server) as client:
        client.post(CHAT, json=body(), headers=named("one"))
        found = server.wait_for(r"^\d{4}-\d\d-\d\d [\d:.]{12} frontend-0    \| INFO request one: (.*)")[1]
        assert re.fullmatch(
            r"127.0.0.1 /v1/chat/completions 200; length, \d+ \+ 8 tokens; queued [\d.]+, rendered [\d.]+, "
            r"waiting [\d.]+, prefill [\d.]+, first token [\d.]+, decode [\d.]+, total [\d.]+ ms",
            found,
        ), found


def test_nobody_forges_a_line() -> None:
    """Whatever a client may send that is logged: the id of its request, its path, a name in an error."""
    forged = "a\nINFO forged\r\x1b[2J"
    with (
        Server(*SCRIPTED, "--log-level", "debug") as server,
        http_client(server) as client,
    ):
        asked = {CHAT: body(3), "/v1/responses": {"input": "hi", "max_output_tokens": 3}}
        for path, fields in asked.items():
            assert client.post(path, json={**fields, "request_id": f"{forged} {path}"}).status_code == 200
        assert client.post("/inference/v1/generate", json={"token_ids": [5], "request_id": forged * 9999}).is_success
        assert client.post("/v1/completions", json=body(prompt="", model=forged)).status_code == 404
        assert client.get("/%0AINFO%20forged").status_code == 404
        assert server.stop() == 0
        output = server.read_all()
    assert "forged" in output and "\x1b" not in output and "\r" not in output
    assert not [line for line in output.splitlines() if "| INFO forged" in line or len(line) > 4000]


def test_requests_are_told_only_if_wanted() -> None:
    with (
        Server(*SCRIPTED, "--no-enable-log-requests") as server,
        http_client(server) as client,
    ):
        client.post(CHAT, json=body(), headers=named("one"))
        server.stop()
        assert "one" not in re.findall(r"request (\w+)", server.read_all())


def test_a_server_that_cannot_start_says_so_in_its_form() -> None:
    ended = run_command("launch", "--port", "0", "--log-format", "json", "/nowhere")
    (line,) = ended.stdout.splitlines()
    said = json.loads(line)
    assert ended.returncode == 2 and said["level"] == "critical" and "/nowhere" in said["message"]


def test_a_request_is_named_alike_by_all_actors_and_its_prompt_is_for_who_debugs() -> None:
    options = ("--log-format", "json", "--log-level", "debug", "--max-log-len", "30")
    with Server(*options) as server, http_client(server) as client:
        prompt = "0123456789" * 5
        client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 3}, headers=named("mine"))
        client.post("/v1/completions", json={"prompt": "é" * 30, "max_tokens": 3}, headers=named("fits"))
        client.post(CHAT, json=body(3), headers=named("chat"))
        client.get("/v1/models", headers=named("models"))
        server.stop()
        lines = objects(server)
    told = [line for line in lines if line.get("request_id") == "mine"]
    actors = {"frontend-0", "renderer-0", "scheduler", "worker", "detokenizer-0"}
    assert {line["actor"] for line in told} == actors
    assert all("request mine" in line["message"] for line in told)
    assert requests_of(lines)["models"]["level"] == "debug"
    (asked,) = [line["message"] for line in told if "asks for" in line["message"]]
    assert asked == f"request mine asks for {prompt[:30]}…", "characters of the prompt itself"
    asks = {line["request_id"]: line["message"] for line in lines if "asks for" in line["message"]}
    assert asks["fits"] == f"request fits asks for {'é' * 30}"
    assert asks["chat"] == 'request chat asks for [{"role":"user","content":"not…'


def test_what_a_client_says_is_one_line_of_text() -> None:
    """A prompt forges no line, and does nothing to the terminal of who debugs."""
    with Server(*SCRIPTED, "--log-level", "debug") as server, http_client(server) as client:
        prompt = "é\nINFO request forged\x1b[31m\u2028\x85 end"
        client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}, headers=named("mine"))
        server.stop()
        (asked,) = [line for line in server.read_all().split("\n") if "asks for" in line]
    assert asked.endswith(r"DEBUG request mine asks for é\nINFO request forged\x1b[31m\u2028\x85 end")


def test_a_request_that_changes_its_frontend_is_told_once() -> None:
    """Given to the frontend that has its key, or gone on with by the successor of one that was killed."""
    slow = ("--worker", "scripted", "--scripted-step-ms", "5")
    with (
        Server("--log-format", "json", "--frontends", "2", *slow) as server,
        http_client(server) as client,
        ThreadPoolExecutor() as pool,
    ):
        for number in range(8):
            key = {"Idempotency-Key": f"key-{number}"}
            answers = [client.post(CHAT, json=body(2), headers=named(f"{kind}-{number}") | key) for kind in "ab"]
            assert answers[0].content == answers[1].content
        waiting = pool.submit(client.post, CHAT, json=body(300, ignore_eos=True), headers=named("waits"))
        until(lambda: waiting.done() or client.get("/load").json()["server_load"])
        assert not waiting.done()
        with stopped(server, "worker"):  # it waits for both
            for name in ("frontend-0", "frontend-1"):
                server.replace(name)
        assert waiting.result(PATIENCE_S).json()["usage"]["completion_tokens"] == 300
        server.stop()
        told = requests_of(objects(server))
    assert set(told) == {f"{kind}-{number}" for kind in "ab" for number in range(8)} | {"waits"}
    assert {line["status"] for line in told.values()} == {200}
    assert [told[f"{kind}-{n}"].get("replayed") for n in range(8) for kind in "ab"] == [None, True] * 8
    assert {line["actor"] for line in told.values()} == {"frontend-0", "frontend-1"}
    assert (told["waits"]["deaths"], told["waits"]["completion_tokens"]) == (1, 300)
    assert all(line["deaths"] == 0 for name, line in told.items() if name != "waits")
