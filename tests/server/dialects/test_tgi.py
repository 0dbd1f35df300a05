"""Text Generation Inference's API by a running server: huggingface_hub's client, and a stream whose frontends die."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import httpx2 as httpx
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import LONG
from tests.support.client import http_client
from tests.support.server import Server

NONE = QWEN.scripts["none"]


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> Iterator[httpx.Client]:
    with http_client(scripted_server) as made:
        yield made


def test_huggingfaces_client(scripted_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # nobody but this server is asked
    client = InferenceClient(base_url=scripted_server.base_url)
    assert client.text_generation("<none>") == NONE
    assert "".join(client.text_generation("<none>", stream=True)) == NONE
    told = client.text_generation("<none>", details=True)
    assert told.generated_text == NONE and told.details is not None
    assert told.details.finish_reason == "eos_token"
    *parts, last = client.text_generation("<none>", details=True, stream=True, max_new_tokens=3)
    assert last.details is not None and last.details.finish_reason == "length" and len(parts) == 2
    assert client.text_generation("<none>", typical_p=0.95) == NONE  # as LangChain asks unless it is told otherwise
    with pytest.raises(ValidationError, match=r"parameters\.typical_p"):
        client.text_generation("<none>", typical_p=1.5)


def test_a_death_of_frontends(client: httpx.Client, kill_frontends: Callable[[], None]) -> None:
    body = {"inputs": "<long>", "parameters": {"max_new_tokens": 2000, "details": True}}
    events = []
    with client.stream("POST", "/generate_stream", json=body) as answer:
        for number, line in enumerate(line for line in answer.iter_lines() if line.startswith("data: ")):
            if number == 20:
                kill_frontends()
            events.append(json.loads(line.removeprefix("data: ")))
    assert [event["index"] for event in events] == list(range(1, len(events) + 1))
    assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"] == LONG
    assert events[-1]["details"]["generated_tokens"] == len(events)


def test_a_schema_is_kept_to(client: httpx.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    body = {"inputs": "<none>", "parameters": {"grammar": {"type": "json", "value": schema}}}
    assert json.loads(client.post("/generate", json=body).json()["generated_text"]) == {"a": 1}


def test_what_the_page_is_asked_for_is_no_request_that_generates(client: httpx.Client, scripted_server: Server) -> None:
    """Both have one path; the log tells of those that make texts."""
    assert client.get("/").headers["Content-Type"].startswith("text/html")
    client.post("/", json={"inputs": "<none>"}, headers={"X-Request-Id": "beside-the-page"})
    scripted_server.wait_for(r"request beside-the-page: \S+ / 200; stop")
    assert not re.search(r"\S+ / 200(?!;)", scripted_server.output)
