"""The chat's client against a server that answers as it is told to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from actorserve.actors.chat.client import ChatError, Client, Piece
from tests.bench.fake import Fake
from tests.support.server import Server

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def fake() -> Iterator[Fake]:
    with Fake() as server:
        yield server


def chunk(finish_reason: str | None = None, **delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def sends(*parts: bytes) -> Any:
    async def behave(response: web.StreamResponse, body: dict[str, Any]) -> None:
        for part in parts:
            await response.write(part)

    return behave


def heard(fake: Fake, **options: Any) -> list[Piece]:
    client = Client(f"{fake.base_url}/v1/", "key")
    pieces = list(client.answer("m", HELLO, options))
    fake.finished = client.finish_reason  # type: ignore[attr-defined]
    return pieces


def test_thinking_and_text_in_pieces(fake: Fake) -> None:
    fake.behave = sends(
        chunk(role="assistant", content=""),
        chunk(reasoning="hm"),
        chunk(reasoning_content="!"),
        chunk(content="é")[:30],
        chunk(content="é")[30:] + chunk("length", content="b"),
        b'data: {"choices": [], "usage": {}}\n\ndata: [DONE]\n\n',
    )
    assert heard(fake, max_tokens=2) == [("hm", True), ("!", True), ("é", False), ("b", False)]
    assert fake.bodies[0] == {"model": "m", "messages": HELLO, "stream": True, "max_tokens": 2}


def test_what_follows_a_prompt_comes_in_pieces(fake: Fake) -> None:
    texts = [{"index": 0, "text": "", "finish_reason": None}, {"text": "é b"}, {"text": "", "finish_reason": "stop"}]
    events = [b"data: " + json.dumps({"choices": [one]}).encode() + b"\n\n" for one in texts]
    fake.behave = sends(*events, b"data: [DONE]\n\n")
    client = Client(fake.base_url, None)
    assert list(client.complete("m", "a ", {"max_tokens": 2})) == [("é b", False)] and client.finish_reason == "stop"
    assert fake.bodies[0] == {"model": "m", "prompt": "a ", "stream": True, "max_tokens": 2}


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([chunk(content="a")], "^the answer was broken off$"),
        ([chunk(content="a"), b'data: {"error": {"message": "no memory"}}\n\n'], "^no memory$"),
        ([b'data: {"error": "no\\u001b[2J memory"}\n\n'], "^no␛\\[2J memory$"),
        ([b"data: nonsense\n\n"], "no chunk of an answer"),
    ],
)
def test_an_answer_that_breaks(fake: Fake, parts: list[bytes], words: str) -> None:
    fake.behave = sends(*parts)
    with pytest.raises(ChatError, match=words):
        heard(fake)


@pytest.mark.parametrize(("status", "words"), [(401, "ACTORSERVE_API_KEY"), (503, "^not now$")])
def test_a_refusal(fake: Fake, status: int, words: str) -> None:
    fake.refuse = lambda number, body: status
    with pytest.raises(ChatError, match=words):
        heard(fake)


def test_what_a_real_server_says_is_wrong(demo_server: Server) -> None:
    with pytest.raises(ChatError, match="temperature"):
        list(Client(demo_server.base_url, None).answer("actorserve-demo", HELLO, {"temperature": -1}))
    assert Client(demo_server.base_url.removeprefix("http://"), None).models() == ["actorserve-demo"]


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ChatError, match="cannot be reached: Connection refused"):
            Client(f"http://127.0.0.1:{taken.getsockname()[1]}", None).models()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:99999", "://", "http://[::1:8000"])
def test_no_address(url: str) -> None:
    with pytest.raises(ChatError, match=r"is no address|no number from"):
        Client(url, None)


@pytest.mark.parametrize("key", ["a\nb", "a\n", "schlüssel"])
def test_what_cannot_be_a_key_is_said_before_it_is_sent(key: str) -> None:
    with pytest.raises(ChatError, match="the key has characters that no key can have"):
        Client("http://127.0.0.1:9", key)


def test_hosts_and_paths_with_other_letters(fake: Fake) -> None:
    for host in ("a..b", f"{'a' * 64}.example"):
        with pytest.raises(ChatError, match="is no name of a host"):
            Client(f"http://{host}", None)
    with pytest.raises(ChatError, match="404"):
        list(Client(f"{fake.base_url}/ü b", None).answer("m", HELLO, {}))
