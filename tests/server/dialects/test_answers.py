"""What OpenAI's client is told beside texts, by a running server; and that deaths are counted."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from tests.server.api.test_tool_calls import QWEN
from tests.server.dialects.conftest import LONG
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(scripted_server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{scripted_server.base_url}/v1", api_key="-", max_retries=0) as made:
        yield made


def say(script: str) -> list[Any]:
    return [{"role": "user", "content": f"<{script}>"}]


def test_a_name_a_fingerprint_and_the_prompt(client: OpenAI) -> None:
    told = {"return_prompt_text": True, "return_metrics": True}
    answer = client.chat.completions.create(
        model="tiny", messages=say("none"), extra_headers={"X-Request-Id": "mine"}, extra_body=told
    )
    body: Any = answer.model_dump()
    assert answer.id == "chatcmpl-mine" and (answer.system_fingerprint or "").startswith("fp_")
    assert body["prompt_text"] == "<none>" and answer.choices[0].message.content == QWEN.scripts["none"]
    metrics = body["metrics"]
    parts = metrics["queue_time"] + metrics["prefill_time"] + metrics["decode_time"]
    assert parts == pytest.approx(metrics["total_time"]) and parts > 0 and metrics["deaths_survived"] == 0
    text = client.completions.create(model="tiny", prompt=["<none>", "<one>"], extra_body=told)
    assert [choice.model_dump()["prompt_text"] for choice in text.choices] == ["<none>", "<one>"]
    assert text.system_fingerprint == answer.system_fingerprint and not text.id.endswith("mine")


def test_deaths_are_told(client: OpenAI, scripted_server: Server) -> None:
    text, last = "", None
    stream = client.chat.completions.create(
        model="tiny", messages=say("long"), stream=True, extra_body={"return_metrics": True}
    )
    for number, event in enumerate(stream):
        text += "".join(choice.delta.content or "" for choice in event.choices)
        last = event.model_dump()
        if number == 5:
            os.kill(scripted_server.pids()["worker"], signal.SIGKILL)
    assert text == LONG and last is not None and last["metrics"]["deaths_survived"] == 1


def test_several_conversations(client: OpenAI) -> None:
    body = {"model": "tiny", "messages": [say("none"), say("long")]}
    answer = client.post("/chat/completions/batch", body=body, cast_to=object)
    choices: Any = answer["choices"]  # type: ignore[index]
    assert [choice["message"]["content"] for choice in choices] == [QWEN.scripts["none"], LONG]
