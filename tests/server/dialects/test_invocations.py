"""SageMaker's one path does what others do, by the body's fields."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import LONG
from tests.support.server import Server

HI = [{"role": "user", "content": "<none>"}]


def invoke(server: Server, **body: Any) -> requests.Response:
    return requests.post(f"{server.base_url}/invocations", json=body, timeout=60)


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
