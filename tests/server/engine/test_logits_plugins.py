"""--logits-processors: what they change, what they see, and that one that fails or hangs ends its own request alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.plugins import logits_processors
from tests.support.server import Server

PROMPT = "The capital of France is"
FILE = Path(logits_processors.__file__)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """What requests name is imported by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FILE.parents[3]))
        plugins = ("--logits-processors", f"{FILE}:Only", "tests.support.plugins.logits_processors:Never")
        limits = ("--logits-processor-timeout", "2", "--threads", "1", "--log-level", "warning")
        with Server(*plugins, *limits, "--logits-processor-pattern", r"tests\.support\.[\w.]+") as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.base_url, timeout=60) as made:
        yield made


def ask(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 6, "return_token_ids": True, "ignore_eos": True}
    return client.post("/v1/completions", json=body | fields)


def ids(answer: httpx.Response) -> list[int]:
    assert answer.status_code == 200, answer.text
    found: list[int] = answer.json()["choices"][0]["token_ids"]
    return found


def test_they_change_what_is_drawn(client: httpx.Client) -> None:
    plain = ids(ask(client))
    assert ids(ask(client, vllm_xargs={"only": 77})) == [77] * 6
    assert plain[0] not in ids(ask(client, vllm_xargs={"never": plain[0]}))
    named = {"qualname": "tests.support.plugins.logits_processors.Without", "args": [plain[0]]}
    assert plain[0] not in ids(ask(client, logits_processors=[named]))
    chat = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3, "vllm_xargs": {"only": 77}}
    drawn = client.post("/v1/chat/completions", json=chat | {"return_token_ids": True}).json()["choices"][0]
    assert drawn["token_ids"] == [77] * 3
    assert ids(ask(client)) == plain


@pytest.mark.parametrize("how", ["raises", "loops", "sleeps", "nothing", "params"])
def test_one_that_fails_ends_its_own_request(client: httpx.Client, server: Server, how: str) -> None:
    worker = server.pids()["worker"]
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(ask, client, max_tokens=40)
        failed = ask(client, vllm_xargs={"fails": how})
        assert len(ids(other.result())) == 40
    error = failed.json()["error"]
    assert failed.status_code == 500 and error["code"] == "logits_processor_failed" and "Only" in error["message"]
    server.wait_for(r"row \d+ ends: the logits processor .*Only")
    assert server.pids()["worker"] == worker


def test_a_row_goes_on_with_them_after_a_death(client: httpx.Client, server: Server) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ask, client, max_tokens=400, vllm_xargs={"only": 77})
        server.replace("worker")
        assert ids(running.result()) == [77] * 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logits_processors": ["os.system"]}, "logits_processors[0]"),
        ({"logits_processors": ["tests.support.plugins.logits_processors.Without", "x"]}, "logits_processors[1]"),
        ({"logits_processors": [{"qualname": 1}]}, "logits_processors[0].qualname"),
        ({"logits_processors": ["tests.support.x"] * 17}, "logits_processors"),
        ({"vllm_xargs": {"x": "y" * 40_000}}, "stop"),
    ],
)
def test_what_cannot_be(client: httpx.Client, fields: dict[str, Any], param: str) -> None:
    answer = ask(client, **fields)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


def test_a_name_that_is_nothing_ends_its_request(client: httpx.Client) -> None:
    failed = ask(client, logits_processors=["tests.support.nothing.there"])
    assert failed.status_code == 500 and "tests.support.nothing.there" in failed.json()["error"]["message"]
