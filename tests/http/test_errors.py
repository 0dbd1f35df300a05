"""What a client is told where it cannot be answered, over a socket."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError, overloaded
from actorserve.http.generation.prepare import MAX_SEQUENCES
from tests.http.fakes import rendered, say
from tests.http.serving import HI, Served


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token(served: Served, stream: bool) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "stream": stream})
    (await served.job()).fail(ApiError(400, "The prompt is too long.", "prompt"))
    answer = await client.answer()
    assert answer.status == 400
    error = {"message": "The prompt is too long.", "type": "invalid_request_error", "param": "prompt", "code": None}
    assert answer.error == error
    assert served.engine.running == []


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_ends_with(served: Served, stream: bool) -> None:
    for finish, status, retry in ((Finish.REJECTED, 503, "1"), (Finish.ERROR, 500, None), (Finish.GRAMMAR, 500, None)):
        client = await served.client()
        client.send("POST", "/v1/completions", {"prompt": "hi", "stream": stream, "n": 2})
        say(await served.job(), 1, "", 0, finish)
        answer = await client.answer()
        assert (answer.status, answer.headers.get("retry-after")) == (status, retry) and answer.error
        assert served.engine.running == []


SCHEMA = {"type": "object"}
NAMED = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
BY_SCHEMA: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HI, "response_format": NAMED}, "response_format"),
    ("/v1/completions", {"prompt": "hi", "guided_json": SCHEMA}, "guided_json"),
    (
        "/v1/messages",
        {"messages": HI, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config.format",
    ),
    (
        "/v1/responses",
        {"input": "hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
        "text.format",
    ),
    (
        "/inference/v1/generate",
        {"token_ids": [1], "sampling_params": {"structured_outputs": {"json": SCHEMA}}},
        "structured_outputs",
    ),
]


@pytest.mark.parametrize(("path", "body", "field"), BY_SCHEMA, ids=[path for path, _, _ in BY_SCHEMA])
async def test_a_grammar_that_fails_on_the_way_is_no_answer(
    served: Served, path: str, body: dict[str, Any], field: str
) -> None:
    """Whole it is a 500, and in a stream an error behind the text that there was."""
    for stream in (False, True):
        client = await served.client()
        client.send("POST", path, body | {"stream": stream})
        job = await served.job()
        assert job.rendering["constrained_by"] == field
        rendered(job)
        say(job, 0, '{"a":', 2)
        say(job, 0, "", 3, Finish.GRAMMAR)
        answer = await client.answer()
        text = answer.body.decode()
        assert f"{field}: its grammar became too complex" in text
        assert '"stop"' not in text and "response.completed" not in text
        assert answer.status == (200 if stream else 500) and ("data: " in text) is stream


async def test_no_room(served: Served) -> None:
    served.engine.refusal = overloaded("Full.")
    for path, body in (("/v1/completions", {"prompt": "hi"}), ("/tokenize", {"prompt": "hi"})):
        answer = await served.ask("POST", path, body)
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert answer.error["type"] == "service_unavailable_error"
    assert served.engine.released.empty(), "what was never taken is not released"


async def test_a_mistake_of_ours(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    client = await served.client()
    served.engine.refusal = ConnectionRefusedError("deep inside")
    for failure in (RuntimeError("deep inside"), ConnectionRefusedError("deep inside"), TimeoutError()):
        served.engine.refusal = failure
        caplog.clear()
        answer = await client.ask("POST", "/tokenize", {"prompt": "hi"})
        assert answer.status == 500 and answer.error["type"] == "server_error" and b"deep" not in answer.body
        assert len(answer.headers["x-request-id"]) == 32
        (record,) = caplog.records
        assert record.levelno == logging.ERROR and record.getMessage() == "POST /tokenize failed" and record.exc_info
    assert (await client.ask("GET", "/health")).status == 200, "the connection is kept"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "hi", "n": 0}, "n"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 9, "n": 128}, "prompt"),
        ("/v1/chat/completions", {}, "messages"),
        ("/v1/chat/completions", {"messages": HI, "top_logprobs": 3}, "top_logprobs"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": HI}, "prompt"),
        ("/tokenize", {"prompt": None, "messages": None}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
        ("/tokenize", {"messages": HI, "chat_template": "a"}, "chat_template"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 70]}, "tokens"),
    ],
)
async def test_a_bad_field(served: Served, path: str, body: Any, param: str) -> None:
    answer = await served.ask("POST", path, body)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert served.engine.jobs.empty() and not served.engine.asked


@pytest.mark.parametrize("rank", ["1", "-1", "a", "9" * 4301, "\xff", "\u0663".encode().decode("latin-1")])
async def test_an_engine_that_is_none(served: Served, rank: str) -> None:
    answer = await served.ask("POST", "/v1/completions", {"prompt": "hi"}, X_Data_Parallel_Rank=rank)
    assert (answer.status, answer.error["param"]) == (400, "X-data-parallel-rank")


async def test_an_error_names_a_field_that_the_request_has(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(tokens: list[int], skip_special: bool = False) -> str:
        raise ApiError(400, "Token id 5000 is out of vocabulary (0 to 999).", "tokens")

    monkeypatch.setattr(served.engine, "detokenize", refuse)
    answer = await served.ask("POST", "/v1/completions", {"prompt": [5000], "echo": True})
    assert (answer.status, answer.error["param"]) == (400, "prompt")

    score = {"query": [1], "items": [[5000]], "label_token_ids": [3]}
    client = await served.client()
    client.send("POST", "/generative_scoring", score)
    (await served.job()).fail(ApiError(400, "Token id 5000 is out of vocabulary (0 to 999).", "prompt"))
    answer = await client.answer()
    assert (answer.status, answer.error["param"]) == (400, "items")
    served.engine.refusal = ApiError(400, "prompt: it is too long.", "prompt")
    answer = await served.ask("POST", "/generative_scoring", score | {"items": ["hi"]})
    assert (answer.status, answer.error["param"]) == (400, "items")


async def test_as_many_sequences_as_are_taken(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": ["a"] * (MAX_SEQUENCES // 128), "n": 128})
    assert len((await served.job()).choices) == MAX_SEQUENCES


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
async def test_a_model_that_is_not_served(served: Served, path: str, body: dict[str, Any]) -> None:
    answer = await served.ask("POST", path, {**body, "model": "other"})
    assert answer.status == 404
    assert (answer.error["param"], answer.error["code"]) == ("model", "model_not_found")


@pytest.mark.parametrize("path", ["/v1/models/other", "/v1/complete"])
async def test_anthropics_clients_read_their_errors_of_paths_that_are_not_its_alone(served: Served, path: str) -> None:
    client = await served.client()
    client.send("GET", path, None, Anthropic_Version="2023-06-01")
    answer = await client.answer()
    told = answer.json
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error") and told["request_id"]
    assert answer.headers["request-id"] == told["request_id"]
    client = await served.client()
    client.send("GET", path, None)
    answer = await client.answer()
    assert answer.error["type"] == "invalid_request_error" and "request-id" not in answer.headers
