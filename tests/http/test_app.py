"""Every route, its whole answers and its errors, over a socket."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import ChatPrompt, Finish, TextPrompt, TokenPrompt
from actorserve.actors.protocol.request import Generation
from actorserve.http.errors import ApiError, overloaded
from actorserve.http.generation.prepare import MAX_SEQUENCES
from actorserve.http.generation.times import JobTimes
from tests.http.serving import HI, Served, finish_all, rendered, say, serving

USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}


# --- whole answers -------------------------------------------------------------------------------------------------


async def test_a_chat(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/chat/completions", {"messages": HI, "model": "alias/name"}, X_Request_Id="mine")
    job = await served.job()
    (prompt,), (params,) = job.prompts, job.params
    assert isinstance(prompt, ChatPrompt)
    assert job.rendering.items() >= {("max_tokens", None), ("truncate_prompt_tokens", None)}
    generation = msgspec.msgpack.decode(params, type=Generation)
    assert generation.request_id == "mine" and not generation.stream
    rendered(job)
    say(job, 0, "yes", 1)
    say(job, 0, "!", 3, Finish.STOP, stop_reason=7)
    answer = await client.answer()
    body = answer.json
    assert answer.status == 200 and body.pop("id").startswith("chatcmpl-") and body.pop("created") > 1_700_000_000
    message: dict[str, Any] = {"role": "assistant", "content": "yes!", "refusal": None}
    message |= {"reasoning": None, "reasoning_content": None}
    ends = {"logprobs": None, "finish_reason": "stop", "stop_reason": 7}
    assert body == {
        "object": "chat.completion",
        "model": "alias/name",
        "choices": [{"index": 0, "message": message, "token_ids": None, **ends}],
        "usage": USAGE,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
    }
    assert served.engine.released.get_nowait() is job


async def test_a_completion(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "truncate_prompt_tokens": 9, "request_id": "r"})
    job = await served.job()
    assert job.prompts == [TextPrompt("hi")]
    assert job.rendering.items() >= {("max_tokens", 16), ("truncate_prompt_tokens", 9)}
    assert msgspec.msgpack.decode(job.params[0], type=Generation).request_id == "r"
    rendered(job)
    say(job, 0, "yes", 3, Finish.STOP_STRING, stop_reason="end")
    body = (await client.answer()).json
    assert body.pop("id").startswith("cmpl-") and body.pop("created")
    choice = {"index": 0, "text": "yes", "logprobs": None, "finish_reason": "stop", "stop_reason": "end"}
    choice |= dict.fromkeys(("token_ids", "prompt_token_ids", "prompt_logprobs"))  # not asked for
    assert body == {"object": "text_completion", "model": "tiny", "choices": [choice], "usage": USAGE}


async def test_choices_are_in_order_however_they_end(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": ["a", "b"], "n": 2})
    job = await served.job()
    assert len(job.prompts) == len(job.params) == 2 and len(job.choices) == 4
    rendered(job)
    for index in (3, 0, 2, 1):
        say(job, index, f"t{index}", index + 1, Finish.LENGTH if index else Finish.STOP)
    body = (await client.answer()).json
    assert [choice["text"] for choice in body["choices"]] == ["t0", "t1", "t2", "t3"]
    assert [choice["finish_reason"] for choice in body["choices"]] == ["stop", "length", "length", "length"]
    usage = body["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 10, 20)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}, "each prompt counts once"


async def test_other_requests_go_on_meanwhile(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi"})
    job = await served.job()
    assert (await served.ask("GET", "/load")).json == {"server_load": 1}
    finish_all(job)
    assert (await client.answer()).status == 200
    assert (await served.ask("GET", "/load")).json == {"server_load": 0}


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_token(served: Served, stream: bool) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "stream": stream})
    (await served.job()).fail(ApiError(400, "The prompt is too long.", "prompt"))
    answer = await client.answer()
    assert answer.status == 400
    error = {"message": "The prompt is too long.", "type": "invalid_request_error", "param": "prompt", "code": 400}
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


# --- other routes --------------------------------------------------------------------------------------------------


async def test_tokenize(served: Served) -> None:
    answer = await served.ask("POST", "/tokenize", {"prompt": "hi", "messages": None})
    assert answer.json == {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}
    more = {"messages": HI, "prompt": None, "add_generation_prompt": False, "return_token_strs": True}
    assert (await served.ask("POST", "/tokenize", more)).json["token_strs"] == ["a", "b"]
    await served.ask("POST", "/tokenize", {"prompt": "", "add_special_tokens": False})
    text, chat, bare = served.engine.asked
    assert text == TextPrompt("hi") and bare == TextPrompt("", False)
    assert isinstance(chat, ChatPrompt) and not chat.add_generation_prompt


async def test_detokenize(served: Served) -> None:
    assert (await served.ask("POST", "/detokenize", {"tokens": [1, 2]})).json == {"prompt": "text", "content": "text"}
    assert served.engine.asked == [[1, 2]]


async def test_prompts_as_token_ids(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": [[1], [2, 3]]})
    assert (await served.job()).prompts == [TokenPrompt([1]), TokenPrompt([2, 3])]


async def test_models(served: Served) -> None:
    body = (await served.ask("GET", "/v1/models")).json
    assert (body["object"], body["first_id"], body["last_id"], body["has_more"]) == (
        "list",
        "tiny",
        "alias/name",
        False,
    )
    tiny, alias = body["data"]
    assert (tiny["id"], tiny["object"], tiny["created"], tiny["root"]) == ("tiny", "model", 1_700_000_000, "tiny")
    assert (await served.ask("GET", "/v1/models/tiny")).json == tiny
    for path in ("alias/name", "alias%2Fname"):
        assert (await served.ask("GET", f"/v1/models/{path}")).json == alias
    answer = await served.ask("GET", "/v1/models/other")
    assert answer.status == 404 and answer.error["code"] == "model_not_found"


async def test_operations(served: Served) -> None:
    assert (await served.ask("GET", "/health")).json == {"status": "ok"}
    assert (await served.ask("GET", "/ping")).status == (await served.ask("POST", "/ping")).status == 200
    assert set((await served.ask("GET", "/version")).json) == {"version"}
    assert (await served.ask("GET", "/ready")).json == {"status": "ready"}
    served.engine.missing = ["worker-0: starting"]
    answer = await served.ask("GET", "/ready")
    assert answer.status == 503 and answer.json["waiting_for"] == ["worker-0: starting"]
    answer = await served.ask("GET", "/metrics")
    parts, content_type = served.engine.metrics()
    assert (answer.body, answer.headers["content-type"]) == (b"".join(parts), content_type)


async def test_others_have_their_turn_between_the_parts_of_a_scrape(served: Served) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    turns: list[int] = []

    def parts() -> Iterator[bytes]:
        for part in range(4):
            seen.append(len(turns))
            loop.call_soon(turns.append, part)
            yield b"%d\n" % part

    served.engine.metrics = lambda accept="": (parts(), "text/plain")  # type: ignore[method-assign]
    assert (await served.ask("GET", "/metrics")).body == b"0\n1\n2\n3\n"
    assert seen == [0, 1, 2, 3]


GETS = ["/health", "/ping", "/ready", "/version", "/load", "/metrics", "/v1/models", "/v1/models/tiny"]
POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", GETS)
async def test_head_is_get_without_a_body(served: Served, path: str) -> None:
    client = await served.client()
    head = await client.ask("HEAD", path)
    answer = await client.ask("GET", path)  # nothing of a body is in its way
    assert head.status == answer.status == 200
    assert head.headers["content-length"] == answer.headers["content-length"]


@pytest.mark.parametrize("path", GETS + POSTS)
async def test_a_method_that_is_not_allowed(served: Served, path: str) -> None:
    client = await served.client()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "GET" if path in POSTS else "TRACE"):
        answer = await client.ask(method, path)
        allowed = set(answer.headers["allow"].split(","))
        assert answer.status == 405 and answer.error["message"] == f"Method Not Allowed: {method} {path}"
        assert allowed >= ({"POST"} if path in POSTS else {"GET", "HEAD"}) and method not in allowed
    if path in POSTS:
        assert (await client.ask("HEAD", path)).status == 405


@pytest.mark.parametrize("path", ["/pag", "/v1", "/v1/", "/v1/chat/", "/health/x"])
async def test_a_route_that_is_none(served: Served, path: str) -> None:
    for method in ("GET", "POST"):
        answer = await served.ask(method, path)
        assert answer.status == 404 and answer.error["message"] == f"Not Found: {method} {path}"


async def test_many_at_once(served: Served) -> None:
    async def one(number: int) -> None:
        client = await served.client()
        client.send("POST", "/v1/completions", {"prompt": str(number), "stream": number % 2 == 0})
        answer = await client.answer()
        events = answer.events if number % 2 == 0 else [answer.json]
        assert "".join(choice["text"] for event in events for choice in event["choices"]) == f"{number}0"

    tasks = [asyncio.ensure_future(one(number)) for number in range(40)]
    for _ in tasks:
        job = await served.job()
        (prompt,) = job.prompts
        assert isinstance(prompt, TextPrompt)
        finish_all(job, prompt.text)
    await asyncio.gather(*tasks)
    for _ in tasks:
        await served.release()
    assert served.engine.running == []


async def test_what_others_have_and_is_missing_here_is_not_found(served: Served) -> None:
    """Clients that compact a conversation by a request do it themselves where there is no such path."""
    for method, path, status in (
        ("POST", "/v1/responses/compact", 404),
        ("GET", "/v1/responses/resp_compact", 404),
        ("POST", "/v1/responses/resp_1", 405),
    ):
        answer = await served.ask(method, path, {"model": "tiny", "input": "hi"} if method == "POST" else None)
        assert answer.status == status and answer.error["message"]


# --- what else an answer tells -------------------------------------------------------------------------------------


async def test_a_clients_own_name_is_in_the_answers_id() -> None:
    async with serving(fingerprint="fp_1") as served:
        for headers, fields in (({"X_Request_Id": "mine"}, {}), ({}, {"request_id": "mine"})):
            client = await served.client()
            client.send("POST", "/v1/chat/completions", {"messages": HI, **fields}, **headers)
            finish_all(await served.job())
            body = (await client.answer()).json
            assert body["id"] == "chatcmpl-mine" and body["system_fingerprint"] == "fp_1"
        client.send(
            "POST", "/v1/completions", {"prompt": "a", "stream": True}, X_Request_Id="mine", Idempotency_Key="k"
        )
        finish_all(await served.job())
        (event, *_) = [line for line in (await client.answer()).body.split(b"\n") if line.startswith(b"data")]
        told = json.loads(event.removeprefix(b"data: "))
        assert told["id"].startswith("cmpl-") and "mine" not in told["id"]  # who repeats it may call it otherwise


@pytest.mark.parametrize("stream", [False, True])
async def test_times_are_told_to_who_asks(stream: bool) -> None:
    async with serving(response_role="bot") as served:
        served.engine.job_times = JobTimes(
            arrival=10**9, scheduled=2 * 10**9, first_token=4 * 10**9, last_token=7 * 10**9, deaths=1
        )
        client = await served.client()
        client.send("POST", "/v1/chat/completions", {"messages": HI, "return_metrics": True, "stream": stream})
        finish_all(await served.job())
        answer = await client.answer()
        last = answer.events[-1] if stream else answer.json
        assert last["metrics"] == {
            **{"queue_time": 1, "time_to_first_token": 3, "prefill_time": 2, "decode_time": 3, "total_time": 6},
            **{"preemptions": 0, "deaths_survived": 1},
        }
        first = answer.events[0]["choices"][0]["delta"] if stream else answer.json["choices"][0]["message"]
        assert first["role"] == "bot" and ("usage" in last) is not stream


@pytest.mark.parametrize("stream", [False, True])
async def test_several_conversations_at_once(served: Served, stream: bool) -> None:
    other = [{"role": "user", "content": "ho"}]
    client = await served.client()
    client.send("POST", "/v1/chat/completions/batch", {"messages": [HI, other], "n": 2, "stream": stream})
    job = await served.job()
    assert [json.loads(prompt.messages) for prompt in job.prompts if isinstance(prompt, ChatPrompt)] == [HI, other]
    finish_all(job)
    answer = await client.answer()
    choices = [choice for event in answer.events for choice in event["choices"]] if stream else answer.json["choices"]
    assert {choice["index"] for choice in choices} == {0, 1, 2, 3}
    for messages, param in (
        ([], "messages"),
        (HI, "messages[0]"),
        ([HI, []], "messages[1]"),
        ([HI, [{"role": "user"}]], "messages[1][0].content"),
    ):
        refused = await served.ask("POST", "/v1/chat/completions/batch", {"messages": messages})
        assert refused.status == 400 and refused.error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [("chat/completions", {"messages": HI}), ("completions", {"prompt": "hi"})])
async def test_the_prompts_text(served: Served, path: str, body: dict[str, Any], stream: bool) -> None:
    client = await served.client()
    asked = {**body, "return_prompt_text": True, "stream": stream, "vllm_xargs": {"plugin": 1}}
    client.send("POST", f"/v1/{path}", asked)
    job = await served.job()
    job.choices[0].prompt_ids = [7, 8]
    finish_all(job)
    answer = await client.answer()
    told = answer.events[0] if stream else answer.json
    place = told if path.startswith("chat") else told["choices"][0]
    assert place["prompt_text"] == "text" and served.engine.asked == [[7, 8]]
    assert "token_ids" not in told["choices"][0] or told["choices"][0]["token_ids"] is None


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/v1/completions", 401), ("POST", "/nowhere", 404), ("PUT", "/health", 405)]
)
async def test_an_error_that_needs_no_body_waits_for_a_short_one(method: str, path: str, status: int) -> None:
    """With its end read, what comes next on the connection is known from its first byte, and outlives its frontend."""
    async with serving(api_keys=["one"]) as served:
        client = await served.client()
        key = {} if status == 401 else {"X_Api_Key": "one"}
        client.send(method, path, b"0123", **key, Content_Length="8")
        told = asyncio.create_task(client.answer())
        await served.ask("GET", "/health")
        assert not told.done()
        client.raw(b"4567")
        answer = await told
        assert answer.status == status and answer.headers.get("connection") != "close"
        assert (await client.ask("GET", "/health")).status == 200
        client.send(method, path, b"0", **key, Content_Length=str(1 << 20))  # nobody waits for that
        answer = await client.answer()
        assert answer.status == status and answer.headers["connection"] == "close"
