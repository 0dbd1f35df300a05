"""Every route and its whole answers, over a socket."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt
from actorserve.http.generation.job import Job
from actorserve.http.generation.times import JobTimes
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import HI, Served, serving

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
    assert await served.release() is job


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


def seeds_of(job: Job) -> list[int]:
    return [msgspec.msgpack.decode(one, type=Generation).sampling.seed for one in job.all_params()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "seed"),
    [
        ("/v1/completions", {"prompt": ["a"] * 4, "n": 2}, {"seed": 7}),
        ("/v1/chat/completions/batch", {"messages": [HI] * 4, "n": 2}, {"seed": 7}),
        ("/completion", {"prompt": ["a"] * 4, "n_cmpl": 2}, {"seed": 7}),
        ("/generate", {"text": ["a"] * 4}, {"sampling_params": {"n": 2, "sampling_seed": 7}}),
    ],
)
async def test_prompts_without_a_seed_are_drawn_apart(
    served: Served, path: str, body: dict[str, Any], seed: dict[str, Any], stream: bool
) -> None:
    client = await served.client()
    client.send("POST", path, {"sampling_params": {"n": 2}, "stream": stream, **body})
    first, *others = seeds_of(job := await served.job())
    assert others == [(first + ahead) % (1 << 64) for ahead in range(1, 8)]
    finish_all(job)
    await client.answer()
    client.send("POST", path, {**body, **seed, "stream": stream})
    assert seeds_of(await served.job()) == [7, 8] * 4


async def test_a_stream_that_is_gone_on_with_has_the_seeds_that_it_began_with(served: Served) -> None:
    for body, seeds in (({}, [9, 10]), ({"seed": 4}, [4, 4])):
        asked = json.dumps({"prompt": ["a", "a"], "stream": True, **body})
        origin = f"00000000000000aa.6553f100.{seeds[0]}.2"
        client = await served.client()
        client.send("POST", "/go_on", {"path": "/v1/completions", "body": asked, "origin": origin, "choices": [{}, {}]})
        assert seeds_of(await served.job()) == seeds


# --- other routes --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(("told", "expected"), [(None, "fp_1"), ("mine", "mine"), ("", None)])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_fingerprint_is_what_the_operator_says(stream: bool, told: str | None, expected: str | None) -> None:
    async with serving(fingerprint="fp_1", told_fingerprint=told) as served:
        client = await served.client()
        client.send("POST", "/v1/chat/completions", {"messages": HI, "stream": stream})
        finish_all(await served.job())
        body = (await client.answer()).body
        first = body.split(b"\n")[0].removeprefix(b"data: ") if stream else body
        assert json.loads(first).get("system_fingerprint") == expected


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
            **{"queue_time_ms": 1000, "time_to_first_token_ms": 2000, "generation_time_ms": 3000, "mean_itl_ms": 1500},
            "tokens_per_second": 0.6,
        }
        first = answer.events[0]["choices"][0]["delta"] if stream else answer.json["choices"][0]["message"]
        assert first["role"] == "bot" and ("usage" in last) is not stream


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_timings_are_told_to_who_asks(path: str, stream: bool) -> None:
    """By llama.cpp's names, in each event but the first, which has no token."""
    async with serving() as served:
        served.engine.job_times = JobTimes(
            arrival=10**9, scheduled=2 * 10**9, first_token=4 * 10**9, last_token=7 * 10**9
        )
        client = await served.client()
        client.send("POST", path, {"messages": HI, "prompt": "a", "timings_per_token": True, "stream": stream})
        finish_all(await served.job())
        answer = await client.answer()
        told = answer.events[1:] if stream and "chat" in path else answer.events if stream else [answer.json]
        assert told and [one["timings"]["predicted_n"] for one in told] == [3] * len(told)
        times = told[-1]["timings"]
        assert (times["prompt_ms"], times["predicted_ms"], times["predicted_per_second"]) == (2000, 3000, 2 / 3)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_operator_says_what_all_answers_tell(path: str) -> None:
    always: dict[str, Any] = {
        "enable_force_include_usage": True,
        "enable_per_request_metrics": True,
        "return_tokens_as_token_ids": True,
    }
    body = {"messages": HI, "prompt": "a", "logprobs": 1 if path == "/v1/completions" else True, "stream": True}
    async with serving(**always) as served:
        client = await served.client()
        client.send("POST", path, body | {"stream_options": {"include_usage": False}})
        job = await served.job()
        rendered(job)
        say(job, 0, "a", 1, Finish.STOP, logprobs=[TokenLogprobs(b"a", 7, -1.0, 1)])
        events = (await client.answer()).events
        assert all(event["usage"]["prompt_tokens"] for event in events) and events[-1]["metrics"]["total_time"] == 0
        assert "token_id:7" in json.dumps(events)


@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": False}}])
async def test_the_operator_says_that_streams_tell_usage_at_their_end(options: dict[str, Any]) -> None:
    async with serving(stream_response_default_include_usage=True) as served:
        client = await served.client()
        client.send("POST", "/v1/chat/completions", {"messages": HI, "stream": True} | options)
        job = await served.job()
        rendered(job)
        say(job, 0, "a", 1, Finish.STOP)
        *before, last = (await client.answer()).events
        assert last["usage"]["prompt_tokens"] and not any(event["usage"] for event in before)


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


@pytest.mark.parametrize("count", [1, 2])
async def test_each_conversation_has_its_own_prompt_told(served: Served, count: int) -> None:
    client = await served.client()
    asked = {"return_token_ids": True, "prompt_logprobs": 0, "return_prompt_text": True, "n": 2}
    client.send("POST", "/v1/chat/completions/batch", {"messages": [HI] * count, **asked})
    job = await served.job()
    for choice in job.choices:
        choice.prompt_ids = [choice.index // 2, 8]
    finish_all(job)
    body = (await client.answer()).json
    if count == 1:
        assert body["prompt_token_ids"] == [0, 8] and body["prompt_text"] == "text" and body["prompt_logprobs"]
        assert "prompt_text" not in body["choices"][0]
    else:
        assert [one["prompt_token_ids"] for one in body["choices"]] == [[0, 8], [0, 8], [1, 8], [1, 8]]
        assert all(one["prompt_text"] == "text" and one["prompt_logprobs"] for one in body["choices"])
        assert body["prompt_token_ids"] is body["prompt_logprobs"] is None and "prompt_text" not in body


@pytest.mark.parametrize("count", [1, 2])
async def test_each_choice_tells_its_prompt_as_sglang_has_it(served: Served, count: int) -> None:
    client, asked = await served.client(), {"return_prompt_token_ids": True, "n": 2}
    client.send("POST", "/v1/chat/completions/batch", {"messages": [HI] * count, **asked})
    job = await served.job()
    for choice in job.choices:
        choice.prompt_ids = [choice.index // 2, 8]
    finish_all(job)
    body = (await client.answer()).json
    assert [one["prompt_token_ids"] for one in body["choices"]] == [[0, 8], [0, 8], [1, 8], [1, 8]][: 2 * count]
    assert body["prompt_token_ids"] is None and body["choices"][0]["token_ids"] is None
    refused = await served.ask("POST", "/v1/chat/completions", {"messages": HI, **asked, "stream": True})
    assert refused.status == 400 and refused.error["param"] == "return_prompt_token_ids"


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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_slots_are_held_until_the_answer_is_handed_over(path: str) -> None:
    """A frontend that dies before has a successor that answers from them."""
    was_held: list[bool] = []

    @web.middleware
    async def look(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        was_held.append(served.engine.released.empty() and bool(served.engine.running))
        return response

    async with serving(more=[look]) as served:
        client = await served.client()
        asked = {"input": "Hello"} if path == "/v1/responses" else {"messages": HI, "max_tokens": 4}
        client.send("POST", path, asked)
        job = await served.job()
        rendered(job)
        say(job, 0, "yes", 1, Finish.STOP)
        assert (await client.answer()).status == 200
        assert await served.release() is job and was_held == [True]
