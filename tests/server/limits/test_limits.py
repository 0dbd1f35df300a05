"""Answers whose messages would be too long for a lane, and schemas that are none: the server goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.server import Server

SERVER_OPTIONS = ("--threads", "1", "--tool-call-parser", "qwen3_coder")


def test_many_tokens_with_many_others_at_once(server: Server) -> None:
    """Both ways at once, since 1,500 steps with logprobs take seconds."""
    before = server.pids()
    body = {"prompt": "hi", "logprobs": 20, "max_tokens": 1500, "ignore_eos": True, "temperature": 0}
    with http_client(server) as client, ThreadPoolExecutor() as pool:
        whole = pool.submit(client.post, "/v1/completions", json=body)
        asked = {**body, "stream": True, "stream_interval": 65536}
        with client.stream("POST", "/v1/completions", json=asked) as stream:
            assert sum(line.startswith("data: {") for line in stream.iter_lines()) > 5
        assert len(whole.result().json()["choices"][0]["logprobs"]["tokens"]) == 1500
    assert server.pids() == before


@pytest.mark.parametrize("kind", [5, True, ["string", {}], [3]])
@pytest.mark.parametrize("stream", [False, True])
def test_schemas_of_tools_that_are_none(server: Server, kind: Any, stream: bool) -> None:
    before = server.pids()
    call = "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>"
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": kind}}}}
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": function}],
        "structured_outputs": {"choice": [call]},
        "stream": stream,
    }
    with http_client(server) as client:
        answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200 and '"tool_calls"' in answer.text and server.pids() == before


GROWING = (
    "{% set n = namespace(l=[]) %}{% for i in range(100000) %}{% set n.l = n.l + ['x' * 999999 ~ i] %}{% endfor %}"
)


def test_a_renderer_that_ran_out_of_memory_is_replaced() -> None:
    """Python may be broken then. It answers first; that counts as nobody's death, however often it happens."""
    with Server("--worker", "scripted", "--trust-request-chat-template", "--max-restarts", "1") as server:
        body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
        for _ in range(2):
            before = server.pids()["renderer-0"]
            answer = httpx.post(
                f"{server.base_url}/v1/chat/completions", json={**body, "chat_template": GROWING}, timeout=120
            )
            assert answer.status_code == 400 and "too much memory" in answer.text
            server.wait_for(f"renderer-0 ended .pid {before}, exit status 75.*it is replaced")
            server.wait_for("renderer-0 is up")
            answer = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=120)
            assert answer.status_code == 200 and server.pids()["renderer-0"] != before
