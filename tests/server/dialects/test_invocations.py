"""SageMaker's one path does what others do, by the body's fields."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import LONG
from tests.support.server import Server

HI = [{"role": "user", "content": "<none>"}]


def invoke(server: Server, session: str | None = None, **body: Any) -> requests.Response:
    headers = {} if session is None else {"X-Amzn-SageMaker-Session-Id": session}
    return requests.post(f"{server.base_url}/invocations", json=body, headers=headers, timeout=60)


def test_chat_and_completions(scripted_server: Server) -> None:
    chat = invoke(scripted_server, messages=HI).json()
    assert chat["object"] == "chat.completion" and chat["choices"][0]["message"]["content"] == QWEN.scripts["none"]
    text = invoke(scripted_server, prompt="<long>", max_tokens=2000).json()
    assert text["object"] == "text_completion" and text["choices"][0]["text"] == LONG
    tokens = invoke(scripted_server, token_ids=[1], sampling_params={"max_tokens": 2}).json()
    assert len(tokens["choices"][0]["token_ids"]) == 2
    streamed = invoke(scripted_server, messages=HI, stream=True)
    assert streamed.text.endswith("data: [DONE]\n\n") and streamed.headers["Content-Type"].startswith("text/event")


@pytest.mark.parametrize("body", [{}, {"input": "a"}, {"messages": []}, {"prompt": "a", "n": -1}])
def test_errors(scripted_server: Server, body: dict[str, Any]) -> None:
    answer = invoke(scripted_server, **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"]


def test_sessions(scripted_server: Server, kill_frontends: Callable[[], None]) -> None:
    """One is open until it is closed, whoever dies."""
    opened = invoke(scripted_server, "NEW_SESSION", requestType="NEW_SESSION")
    name, ends = opened.headers["X-Amzn-SageMaker-New-Session-Id"].split("; Expires=")
    assert opened.status_code == 200 and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", ends)
    assert invoke(scripted_server, name, messages=HI).status_code == 200
    kill_frontends()
    malformed = invoke(scripted_server, name, requestType="CLOSE", more=1)
    assert (malformed.status_code, malformed.json()["error"]["param"]) == (400, "more")
    nameless = invoke(scripted_server, requestType="CLOSE")
    assert nameless.status_code == 424 and "invalid session_id" in nameless.json()["error"]["message"]
    closed = invoke(scripted_server, name, requestType="CLOSE")
    assert (closed.status_code, closed.headers["X-Amzn-SageMaker-Closed-Session-Id"]) == (200, name)
    late = invoke(scripted_server, name, requestType="CLOSE")
    assert late.status_code == 400 and "session not found" in late.json()["error"]["message"]
