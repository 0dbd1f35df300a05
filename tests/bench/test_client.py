"""Requests against a server that answers well, badly, or not at all: each is in the figures, by its kind."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from actorserve.actors.bench.client_tls import OWN, ClientTls
from actorserve.actors.bench.load.client import Target
from actorserve.actors.bench.load.prompts import Prompt
from actorserve.actors.bench.load.session import counter, first_model, probe, run_load
from actorserve.actors.bench.results.metrics import figures
from actorserve.actors.bench.server import ServerError, wait_ready
from tests.support.certificates import OPENSSL, Certificates

from .fake import Fake, event

PROMPT = Prompt("some words", 6)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        yield server


def load(fake: Fake, count: int = 1, limit: int | None = None, **options: Any) -> dict[str, Any]:
    """The figures of so many requests at once."""
    target = Target(fake.base_url, "fake", **options)
    records, duration = asyncio.run(run_load(target, [PROMPT] * count, [0.0] * count, limit))
    return figures(records, duration)


@pytest.mark.parametrize("continuous", [True, False])
def test_tokens_are_counted(fake: Fake, continuous: bool) -> None:
    found = load(fake, 5, continuous_usage=continuous)
    assert (found["completed"], found["output_tokens"], found["prompt_tokens"], found["chunks"]) == (5, 30, 35, 15)
    assert found["token_counts"] == {"chunk" if continuous else "total": 5}
    body = fake.bodies[0]
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ("some words", 6, True)


def test_no_more_at_once_than_allowed(fake: Fake) -> None:
    target = Target(fake.base_url, "fake")
    records, _ = asyncio.run(run_load(target, [PROMPT] * 12, [0.0] * 12, 3))
    at_once = [sum(one.started <= other.started < one.ended for one in records) for other in records]
    assert max(at_once) == 3


def test_refusals_are_counted_beside_answers(fake: Fake) -> None:
    fake.refuse = lambda number, body: 503 if number % 3 == 0 else None
    found = load(fake, 9)
    assert (found["completed"], found["errors"]) == (6, {"http 503": 3})
    assert "not now" in found["error_examples"]["http 503"]


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"data: {nonsense\n\n", "malformed event"),
        (b'data: {"choices": 3}\n\n', "malformed event"),
        (b'data: {"choices": [{"text": "\xff"}]}\n\n', "malformed event"),
        (b'data: {"error": {"message": "too bad"}}\n\n', "error event"),
        (event(text="x", tokens=1), "broken off"),
        (event(text="x", tokens=1) + b'data: {"cho', "broken off"),
        (b"data: [DONE]\n\n", "no tokens"),
    ],
)
def test_what_is_wrong_with_an_answer_has_a_name(fake: Fake, said: bytes, kind: str) -> None:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        await response.write(said)

    fake.behave = behave
    assert load(fake, 2)["errors"] == {kind: 2}


def finished(*, tokens: int | None = None) -> bytes:
    """The chunk without a text that says why the answer ended; some servers put their only usage into it."""
    return event(text="", tokens=tokens).replace(b'"text": ""', b'"text": "", "finish_reason": "length"')


@pytest.mark.parametrize("tail", [b"", b"data: [DONE]\n\n"])
def test_an_answer_that_tells_its_end_needs_no_done(fake: Fake, tail: bytes) -> None:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        for _ in range(3):
            await response.write(event(text="ab"))
        await response.write(finished(tokens=6) + tail)

    fake.behave = behave
    found = load(fake, 2)
    assert (found["completed"], found["errors"], found["output_tokens"]) == (2, {}, 12)
    assert (found["chunks"], found["token_counts"]) == (6, {"total": 2})  # the end is no chunk of six tokens


def test_an_end_that_is_cut_is_none(fake: Fake) -> None:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        await response.write(event(text="ab") + finished() + b'data: {"choices": [], "us')

    fake.behave = behave
    assert load(fake)["errors"] == {"broken off": 1}


def test_a_usage_beside_the_last_text_is_of_all(fake: Fake) -> None:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        await response.write(event(text="ab") + event(text="ab", tokens=5) + b"data: [DONE]\n\n")

    fake.behave = behave
    found = load(fake)
    assert (found["chunks"], found["output_tokens"], found["token_counts"]) == (2, 5, {"total": 1})


def test_a_kept_connection_that_was_closed_is_no_failure(fake: Fake) -> None:
    fake.hang_up_after = 2
    found = load(fake, 6, limit=1)
    assert (found["completed"], found["errors"], len(fake.bodies)) == (6, {}, 6)
    assert fake.hung_up >= 2


def test_a_new_connection_that_is_closed_is_one(fake: Fake) -> None:
    fake.hang_up_after = 0
    found = load(fake, 3, limit=1)
    assert (found["errors"], fake.hung_up) == ({"broken off": 3}, 3)


def test_a_server_that_dies_in_the_middle(fake: Fake) -> None:
    async def die(response: web.StreamResponse, body: dict[str, Any]) -> None:
        await response.write(event(text="x", tokens=1))
        assert response._req is not None and response._req.transport is not None
        response._req.transport.abort()

    fake.behave = die
    assert load(fake, 3)["errors"] == {"broken off": 3}


def test_a_server_that_is_gone() -> None:
    with Fake() as fake:
        pass
    assert load(fake, 2)["errors"] == {"no connection": 2}


def test_a_server_that_says_nothing(fake: Fake) -> None:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    fake.behave = behave
    assert load(fake, 2, timeout_s=0.2)["errors"] == {"timeout": 2}


def test_a_server_that_refuses_what_openai_does_not_know_is_asked_without_it(fake: Fake) -> None:
    def refuse(number: int, body: dict[str, Any]) -> int | None:
        return 400 if "ignore_eos" in body or "continuous_usage_stats" in body["stream_options"] else None

    fake.refuse = refuse
    found = asyncio.run(probe(Target(fake.base_url, "fake", salt="x"), PROMPT))
    assert (found.salt, found.continuous_usage, found.ignore_eos) == ("", False, False)


def test_a_server_that_refuses_a_salt_alone_counts_as_before(fake: Fake) -> None:
    fake.refuse = lambda number, body: 422 if "cache_salt" in body else None
    found = asyncio.run(probe(Target(fake.base_url, "fake", salt="x"), PROMPT))
    assert (found.salt, found.continuous_usage, found.ignore_eos) == ("", True, True)


def test_cached_tokens_are_counted_where_they_are_told(fake: Fake) -> None:
    assert load(fake)["cached_share"] is None

    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        usage = {"prompt_tokens": 8, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}
        told = json.dumps({"choices": [], "usage": usage})
        await response.write(event(text="ab") + f"data: {told}\n\ndata: [DONE]\n\n".encode())

    fake.behave = behave
    assert load(fake, 2)["cached_share"] == 0.75


def test_a_server_that_answers_nothing_is_not_measured(fake: Fake) -> None:
    fake.refuse = lambda number, body: 401
    with pytest.raises(ServerError, match=r"http 401.*not now"):
        asyncio.run(probe(Target(fake.base_url, "fake"), PROMPT))


def test_without_a_tokenizer_words_are_counted(fake: Fake) -> None:
    count, by = counter(Target(fake.base_url, "fake"), None)
    assert (count("one two three"), by) == (3, "words")


@pytest.mark.parametrize("readiness", ["/ready", "/health"])
def test_a_server_is_waited_for_wherever_it_says_that_it_is_ready(readiness: str) -> None:
    with Fake(readiness) as fake:
        fake.unready = 2
        wait_ready(fake.base_url, 30)
        assert fake.asked_ready == 3


def test_a_server_that_only_lists_its_models_is_ready() -> None:
    with Fake("/elsewhere") as fake:
        wait_ready(fake.base_url, 30)
        assert fake.asked_ready == 0 and fake.asked_models == 1


def test_whoever_is_asked_by_proxy_is_measured_so(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was started here, or is on this machine, is not."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", fake.base_url)
    elsewhere = "http://far.example:8000"  # which nobody looks up: the proxy would
    wait_ready(elsewhere, 30)
    records, _ = asyncio.run(run_load(Target(elsewhere, "fake"), [PROMPT], [0.0]))
    assert not records[0].error and fake.bodies
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(ServerError, match="not ready"):
        wait_ready(elsewhere, 0.0)
    for tls in (OWN, ClientTls()):
        wait_ready(fake.base_url, 30, tls)
        assert first_model(fake.base_url, {}, tls) == "fake"
        assert counter(Target(fake.base_url, "fake", tls=tls), None)[1] == "words"


@pytest.mark.parametrize("models", [[], "fake", {"data": None}, {"data": ["fake"]}, {"data": []}])
def test_a_list_of_no_models_names_none(models: Any, fake: Fake) -> None:
    fake.models = models
    with pytest.raises(ServerError, match=r"/v1/models names no model \(.*\); --model does"):
        first_model(fake.base_url, {}, OWN)


@pytest.mark.parametrize("status", [401, 403])
def test_a_gateway_that_wants_a_key_for_every_path_is_ready(fake: Fake, status: int) -> None:
    fake.wants = ("Bearer right", status)
    wait_ready(fake.base_url, 0.0)
    assert fake.asked_ready == 0
    fake.unready = 1
    wait_ready(fake.base_url, 30, headers={"Authorization": "Bearer right"})
    assert fake.asked_ready == 2  # with the key it says whether it is


@pytest.mark.skipif(OPENSSL is None, reason="there is no openssl command to make certificates with")
def test_a_server_that_was_started_here_may_have_any_certificate(tmp_path: Path) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*Certificates(tmp_path).server)
    with Fake(tls=tls) as fake:
        with pytest.raises(ServerError, match="not ready"):
            wait_ready(fake.base_url, 0.0)
        wait_ready(fake.base_url, 30, OWN)
        assert load(fake, tls=OWN)["completed"] == 1


def test_a_port_at_which_no_http_is_spoken_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                while connection.recv(4096):
                    pass

        greeting = threading.Thread(target=greet)
        greeting.start()
        with pytest.raises(ServerError, match="no answer"):
            wait_ready(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.0)
        greeting.join()


def test_a_server_that_is_not_ready_in_time(fake: Fake) -> None:
    fake.unready = 10**9
    with pytest.raises(ServerError, match=r"not ready within 0\.3 s"):
        wait_ready(fake.base_url, 0.3)
