"""Keys with limits, over frontends that are killed: what is counted is what clients were given, to the token."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx2 as httpx
import pytest

from tests.support.client import http_client, http_session, metrics_at_rest
from tests.support.server import Server
from tests.support.streams.pieces import Pieces, post
from tests.support.until import until

FRONTENDS = 3
BUDGET = 2500
OPTIONS = ("--worker", "scripted", "--admin-api-key", "admin", "--max-model-len", "128", "--max-restarts", "1000")
KEYS = f"""\
keys:
  - {{name: plain, key: sk-plain}}
  - {{name: bounded, key: sk-bounded, budget: {BUDGET}}}
  - {{name: rated, key: sk-rated, requests_per_minute: 20}}
  - {{name: narrow, key: sk-narrow, concurrent: 2}}
  - {{name: counted, key: sk-counted, tokens_per_minute: 40, max_tokens: 7, models: [actorserve-demo], priority: 3}}
  - {{name: small, key: sk-small, budget: 100}}
  - {{name: moved, key: sk-moved}}
  - {{name: elsewhere, key: sk-elsewhere, models: [another]}}
"""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    path.write_text(KEYS)
    return path


@pytest.fixture(scope="module")
def server(keys: Path) -> Iterator[Server]:
    with Server("--key-file", str(keys), "--frontends", str(FRONTENDS), *OPTIONS) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as client:
        yield client


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name if name == 'admin' else f'sk-{name}'}"}


def complete(client: httpx.Client, name: str, **fields: Any) -> httpx.Response:
    body = {"prompt": "One, two", "max_tokens": 4, **fields}
    return client.post("/v1/completions", headers=bearer(name), json=body)


def usage(client: httpx.Client, name: str) -> dict[str, Any]:
    (found,) = client.get("/v1/usage", headers=bearer(name)).json()["data"]
    return dict(found)


class Crowd:
    """Clients of one key, and what they were given."""

    def __init__(self, server: Server, name: str, seed: int) -> None:
        self.server, self.name = server, name
        self.random = random.Random(seed)
        self.given: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.kills = 0

    async def run(self, requests: int, at_once: int, kill_each: int) -> None:
        left = iter(range(requests))
        timeout = aiohttp.ClientTimeout(total=60)
        async with http_session(self.server) as session:

            async def one() -> None:
                for number in left:
                    if kill_each and number % kill_each == kill_each - 1:
                        self.kill()
                    await self.ask(session, number, timeout)

            await asyncio.gather(*(one() for _ in range(at_once)))

    def kill(self) -> None:
        pid = self.server.pids().get(f"frontend-{self.random.randrange(FRONTENDS)}")
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self.kills += 1

    async def ask(self, session: aiohttp.ClientSession, number: int, timeout: aiohttp.ClientTimeout) -> None:
        """Until it is answered, or there is nothing left of the key's budget."""
        streamed = number % 3 == 0
        body = {
            "prompt": "One, two, three" * (1 + number % 4),
            "max_tokens": 1 + number % 23,
            "n": 1 + number % 2,
            "stream": streamed,
            "stream_options": {"include_usage": True} if streamed else None,
        }
        while True:
            async with session.post("/v1/completions", json=body, headers=bearer(self.name), timeout=timeout) as got:
                answer = await got.read()
                status = got.status
            if status == 200:
                break
            code = json.loads(answer)["error"]["code"]
            assert status == 429, answer
            if code == "insufficient_quota":
                self.statuses[code] += 1
                return
            await asyncio.sleep(0.02)
        self.statuses["answered"] += 1
        said = [line[6:] for line in answer.splitlines() if line.startswith(b"data: {")] if streamed else [answer]
        told = json.loads(said[-1])["usage"]
        self.given.update({name: told[name] for name in ("prompt_tokens", "completion_tokens")})


def settled(client: httpx.Client, name: str) -> dict[str, Any]:
    """What it has used when nothing of it runs any more; what a client has left ends a little later."""
    until(lambda: not usage(client, name)["running"])
    return usage(client, name)


def check_exact(server: Server, client: httpx.Client, name: str, count: tuple[int, int, int], seed: int) -> Crowd:
    crowd = Crowd(server, name, seed)
    asyncio.run(crowd.run(*count))
    found = settled(client, name)
    assert found["requests"] == crowd.statuses["answered"]
    assert {one: found[one] for one in ("prompt_tokens", "completion_tokens")} == dict(crowd.given)
    assert found["reserved_tokens"] == 0
    return crowd


def test_what_is_charged_is_what_was_given(server: Server, client: httpx.Client) -> None:
    crowd = check_exact(server, client, "plain", (150, 8, 15), 1)
    assert crowd.statuses == {"answered": 150} and crowd.kills >= 5
    scraped = client.get("/metrics").text
    assert f'actorserve:key_requests_total{{key="plain"}} {150}' in scraped
    assert f'actorserve:key_generation_tokens_total{{key="plain"}} {crowd.given["completion_tokens"]}' in scraped


def test_what_another_server_has_given_is_not_charged_again(server: Server, client: httpx.Client) -> None:
    """Nor counted among the tokens of sequences that have ended here."""

    def counted() -> float:
        lines = metrics_at_rest(client).splitlines()
        return sum(float(one.split()[1]) for one in lines if one.startswith("vllm:request_generation_tokens_sum"))

    body = json.dumps({"prompt": "One, two", "max_tokens": 20, "ignore_eos": True, "n": 2, "stream": True}).encode()
    pieces = Pieces(post(server, "/v1/completions", body, bearer("moved")))
    whole, before = settled(client, "moved")["completion_tokens"], counted()
    assert whole == 40
    _, trail = pieces.up_to(len(pieces) // 2)
    asked = trail.go_on("/v1/completions", body, "moved")
    given = sum(len(choice["tokens"]) for choice in json.loads(asked)["choices"])
    Pieces(post(server, "/go_on", asked, bearer("moved"))).up_to(-1, trail)
    assert settled(client, "moved")["completion_tokens"] - whole == counted() - before == whole - given < whole


def test_a_budget_is_never_exceeded(server: Server, client: httpx.Client) -> None:
    crowd = check_exact(server, client, "bounded", (150, 8, 15), 2)
    used = sum(crowd.given.values())
    assert crowd.statuses["answered"] and crowd.statuses["insufficient_quota"] and crowd.kills >= 5
    assert BUDGET - 200 < used <= BUDGET
    last = complete(client, "bounded", prompt=[5], max_tokens=120)
    if BUDGET - used >= 2:  # what is left is given, and not a token more
        assert last.json()["usage"]["total_tokens"] == BUDGET - used
        last = complete(client, "bounded", prompt=[5])
    assert last.status_code == 429 and last.json()["error"]["code"] == "insufficient_quota"
    assert "Retry-After" not in last.headers
    refused = usage(client, "bounded")["refused"]["budget"]
    assert refused > 0
    assert complete(client, "small", prompt=[[5] * 60, [5] * 60]).status_code == 429  # a renderer counts its tokens
    assert usage(client, "small")["refused"]["budget"] == 1


def test_requests_a_minute_over_all_frontends(server: Server, client: httpx.Client) -> None:
    """Each request comes by a connection of its own; frontends die meanwhile."""
    crowd = Crowd(server, "rated", 3)
    answers = []
    for number in range(26):
        with http_client(server) as alone:
            answers.append(complete(alone, "rated"))
        if number % 6 == 5:
            crowd.kill()
    assert [one.status_code for one in answers] == [200] * 20 + [429] * 6
    first, last = answers[0], answers[-1]
    assert (
        first.headers["x-ratelimit-limit-requests"] == "20" and first.headers["x-ratelimit-remaining-requests"] == "19"
    )
    assert last.headers["x-ratelimit-remaining-requests"] == "0"
    assert 1 <= int(last.headers["Retry-After"]) <= 61 and last.headers["x-ratelimit-reset-requests"].endswith("s")
    assert last.json()["error"]["type"] == "rate_limit_error" and "20 requests a minute" in last.text
    found = usage(client, "rated")
    assert (found["requests"], found["requests_last_minute"], found["refused"]["requests"]) == (20, 20, 6)


def test_requests_at_once_follow_their_sequences(server: Server, client: httpx.Client) -> None:
    """A frontend's death ends none of them: there is room when they have ended, and not before."""
    with http_client(server) as one, http_client(server) as other:
        body = {"prompt": "One", "max_tokens": 120, "ignore_eos": True, "stream": True}
        with (
            one.stream("POST", "/v1/completions", headers=bearer("narrow"), json=body) as first,
            other.stream("POST", "/v1/completions", headers=bearer("narrow"), json=body) as second,
        ):
            assert (first.status_code, second.status_code) == (200, 200)
            Crowd(server, "narrow", 4).kill()
            refused = complete(client, "narrow")
            running = usage(client, "narrow")["running"]
            assert (refused.status_code == 429) == (running == 2) or running < 2
            for stream in (first, second):
                assert "".join(stream.iter_text()).rstrip().endswith("[DONE]")
    settled(client, "narrow")
    assert complete(client, "narrow").status_code == 200


def test_tokens_a_minute_and_what_else_a_key_says(server: Server, client: httpx.Client) -> None:
    answers = [complete(client, "counted", max_tokens=50, ignore_eos=True) for _ in range(6)]
    given = [one.json()["usage"] for one in answers if one.status_code == 200]
    assert {one["completion_tokens"] for one in given} == {7}
    sizes = [one["total_tokens"] for one in given]
    assert sum(sizes[:-1]) < 40 <= sum(sizes), "at the limit nothing more is let in"
    assert answers[-1].status_code == 429 and answers[-1].headers["x-ratelimit-remaining-tokens"] == "0"
    assert usage(client, "counted")["tokens_last_minute"] == sum(sizes)
    refused = complete(client, "elsewhere", model="actorserve-demo")
    assert refused.status_code == 404 and refused.json()["error"]["code"] == "model_not_found"
    assert client.get("/v1/models", headers=bearer("elsewhere")).json()["data"] == []
    for path in ("/props", "/slots", "/model_info", "/get_model_info", "/get_server_info", "/tokenizer_info"):
        told = [client.get(path, headers=bearer(name)).status_code for name in ("counted", "elsewhere")]
        assert told == [200, 404], path


def test_usage_is_a_keys_own_or_the_admins(server: Server, client: httpx.Client) -> None:
    assert client.get("/v1/usage").status_code == 401
    names = [one["name"] for one in client.get("/v1/usage", headers=bearer("admin")).json()["data"]]
    assert names == ["plain", "bounded", "rated", "narrow", "counted", "small", "moved", "elsewhere"]
    assert usage(client, "narrow")["limits"] == {"concurrent": 2}
    assert client.post("/reset_prefix_cache", headers=bearer("plain")).status_code == 403
    assert client.get("/v1/models", headers=bearer("admin")).status_code == 401


def test_the_file_is_read_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    with (
        Server("--key-file", str(keys), "--frontends", str(FRONTENDS), *OPTIONS) as server,
        http_client(server) as client,
    ):
        assert complete(client, "plain").status_code == 200
        keys.write_text("keys: [{name: plain}]")
        server.wait_for(
            r"--key-file: \S+, line 1: key: an entry has either key or sha256; the keys that were read before"
        )
        assert complete(client, "plain").status_code == 200
        keys.write_text("keys: [{name: other, key: sk-other}, {name: plain, key: sk-plain, requests_per_minute: 1}]")
        server.wait_for("--key-file was read again: 2 keys")
        assert complete(client, "other").status_code == 200 and complete(client, "narrow").status_code == 401
        assert settled(client, "plain")["requests"] == 2, "what it has used stays with its name"
        os.kill(server.pid, signal.SIGHUP)
        server.wait_for("--key-file was read again: 2 keys")
        assert complete(client, "plain").status_code == 429
        names = [one["name"] for one in client.get("/v1/usage", headers=bearer("admin")).json()["data"]]
        assert names[-1] == "other" and "narrow" in names


@pytest.mark.slow
def test_ten_thousand_requests_over_four_frontends(tmp_path: Path) -> None:
    """`bounded` has less than they want: it is used up, and not exceeded."""
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS.replace(str(BUDGET), "150000"))
    with Server("--key-file", str(path), "--frontends", "4", *OPTIONS) as server, http_client(server) as client:
        crowd = check_exact(server, client, "plain", (5000, 16, 100), 5)
        assert crowd.statuses == {"answered": 5000}
        crowd = check_exact(server, client, "bounded", (5000, 16, 100), 6)
        assert crowd.statuses["insufficient_quota"] and 150_000 - 400 < sum(crowd.given.values()) <= 150_000
