"""Answers of /v1/messages and the model's length: what is beyond it is no error, and the prompt is counted at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError
from tests.http.fakes import rendered, say
from tests.http.serving import HI, Served

BODY: dict[str, Any] = {"messages": HI, "max_tokens": 1000}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("tokens", "reason"), [(59, "model_context_window_exceeded"), (1000, "max_tokens")])
async def test_who_ended_it(served: Served, stream: bool, tokens: int, reason: str) -> None:
    client = await served.client()
    client.send("POST", "/v1/messages", BODY | {"stream": stream})
    job = await served.job()
    assert job.rendering.items() >= {("max_tokens", None), ("cap", 1000)}
    rendered(job)
    say(job, 0, "yes", tokens, Finish.LENGTH)
    answer = await client.answer()
    if stream:
        assert f'"stop_reason":"{reason}"'.encode() in answer.body
    else:
        assert answer.json["stop_reason"] == reason


async def test_a_prompt_that_is_too_long_is_told_in_the_words_that_clients_look_for(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/messages", BODY)
    job = await served.job()
    job.fail(ApiError(400, "This model takes 64 tokens.", "messages", "context_length_exceeded"))
    error = (await client.answer()).json["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"] == "prompt is too long: This model takes 64 tokens."


async def test_a_stream_begins_with_what_is_known_of_the_prompt(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/messages", BODY | {"stream": True})
    job = await served.job()
    rendered(job, 5)
    say(job, 0, "yes", 3, Finish.STOP)
    first = (await client.answer()).body.split(b"\n\n")[0].partition(b"data: ")[2]
    usage = json.loads(first)["message"]["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 2, 0)


async def test_models_say_how_long_they_are(served: Served) -> None:
    """Under Anthropic's names, too."""
    from anthropic.types import ModelInfo

    model = (await served.ask("GET", "/v1/models/tiny")).json
    assert (model["max_input_tokens"], model["max_tokens"]) == (64, 64)
    assert (model["type"], model["display_name"], model["created_at"]) == ("model", "tiny", "2023-11-14T22:13:20Z")
    assert model["lifecycle"] == "active" and model.keys() >= ModelInfo.model_fields.keys()
    ModelInfo.model_validate(model)
