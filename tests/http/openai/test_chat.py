"""What a chat answer has where it is asked for: an end inside the last event, what was said before, forced calls."""

from __future__ import annotations

import re
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import HI, Answer, Served, serving, text_of

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CONTINUOUS: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
SAID = {"role": "assistant", "content": [{"type": "text", "text": "One, "}, {"type": "text", "text": "two"}]}


async def ask(served: Served, *texts: str, finish: int = Finish.STOP, **fields: Any) -> Answer:
    """The answer to a model that says these texts, of one token each."""
    client = await served.client()
    client.send("POST", "/v1/chat/completions", {"messages": HI, **fields})
    job = await served.job()
    rendered(job)
    for number, text in enumerate(texts, 1):
        say(job, 0, text, number, finish if number == len(texts) else 0)
    return await client.answer()


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
@pytest.mark.parametrize("fields", [{}, {"logprobs": True}, {"return_token_ids": True}])
async def test_with_continuous_usage_each_event_has_more_tokens(
    served: Served, fields: dict[str, Any], finish: int
) -> None:
    *events, last = (await ask(served, "a", "b", "c", finish=finish, **CONTINUOUS, **fields)).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == [0, 3] or counts == sorted(set(counts)), "what is ready at once is one event"
    assert "".join(event["choices"][0]["delta"]["content"] for event in events) == "abc"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(events) - 1) + ["stop" if finish is Finish.STOP else "length"]
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 3


async def test_an_end_without_text_is_an_event_with_continuous_usage_too(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/chat/completions", {"messages": HI, **CONTINUOUS})
    job = await served.job()
    rendered(job)
    say(job, 0, "a", 1)
    await client.head()
    say(job, 0, "", 2, Finish.STOP)
    body = (await client.rest()).decode()
    assert body.count('"finish_reason":"stop"') == 1 and '"delta":{},' in body


async def test_echo_puts_what_was_said_before_the_answer(served: Served) -> None:
    going_on: dict[str, Any] = {"messages": [*HI, SAID], "continue_final_message": True}
    for echo, expected in ((True, "One, two, three"), (False, ", three"), (None, ", three")):
        whole = await ask(served, ", th", "ree", echo=echo, **going_on)
        assert whole.json["choices"][0]["message"]["content"] == expected
        streamed = await ask(served, ", th", "ree", echo=echo, stream=True, **going_on)
        texts = [event["choices"][0]["delta"].get("content", "") for event in streamed.events]
        assert "".join(texts) == expected
    nothing = await ask(served, "yes", echo=True)
    assert nothing.json["choices"][0]["message"]["content"] == "yes", "a user's words are not the assistant's"


async def test_where_ids_are_told_the_end_has_a_list_of_them_too(served: Served) -> None:
    """Who reads the events that have one finds the reason there."""
    streamed = await ask(served, "a", "b", stream=True, return_token_ids=True)
    _, *behind = [event["choices"][0] for event in streamed.events]
    assert all("token_ids" in choice for choice in behind)
    assert (behind[-1]["token_ids"], behind[-1]["finish_reason"]) == ([], "stop")


@pytest.mark.parametrize("listed", [False, True])
async def test_the_drawn_token_stands_behind_those_that_are_listed(served: Served, listed: bool) -> None:
    client = await served.client()
    more = {"logprob_token_ids": [5, 6]} if listed else {"top_logprobs": 2}
    client.send("POST", "/v1/chat/completions", {"messages": HI, "logprobs": True, **more})
    job = await served.job()
    rendered(job)
    best = [(b"b", 5, -3.0), (b"c", 6, -4.0)]
    told = [TokenLogprobs(b"a", 7, -1.0, 1, best), TokenLogprobs(b"c", 6, -4.0, 9, best)]
    say(job, 0, "ac", 2, Finish.STOP, logprobs=told)
    content = (await client.answer()).json["choices"][0]["logprobs"]["content"]
    found = [[one["token"] for one in entry["top_logprobs"]] for entry in content]
    assert found == [["b", "c", "a"] if listed else ["b", "c"], ["b", "c"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_each_conversation_has_its_own_echo(served: Served, stream: bool) -> None:
    messages = [[*HI, SAID], HI, [*HI, {"role": "assistant", "content": "TWO "}]]
    asked = {"messages": messages, "echo": True, "continue_final_message": True, "n": 2, "stream": stream}
    client = await served.client()
    client.send("POST", "/v1/chat/completions/batch", asked)
    finish_all(await served.job(), "-")
    answer = await client.answer()
    if stream:
        texts = [text_of(answer.events, index) for index in range(6)]
    else:
        texts = [choice["message"]["content"] for choice in answer.json["choices"]]
    assert texts == [f"{said}-{index}" for index, said in enumerate(("One, two", "One, two", "", "", "TWO ", "TWO "))]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_was_asked_for_by_name_ends_with_stop(stream: bool) -> None:
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, text, reason in (
        (named, '{"city": "Oslo"}', "stop"),
        ("required", '[{"name": "weather", "parameters": {"city": "Oslo"}}]', "tool_calls"),
        ("auto", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>', "tool_calls"),
    ):
        async with serving(tool_parser="hermes") as served:
            answer = await ask(served, text, tools=[TOOL], tool_choice=choice, stream=stream)
        if stream:
            assert answer.events[-1]["choices"][0]["finish_reason"] == reason
            continue
        (said,) = answer.json["choices"]
        assert said["finish_reason"] == reason and said["message"]["content"] is None
        (call,) = said["message"]["tool_calls"]
        assert call["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}


async def test_an_unlimited_budget_needs_no_thinking() -> None:
    """-1 is no budget."""
    async with serving() as served:
        assert (await ask(served, "yes", thinking_token_budget=-1)).status == 200
        refused = await served.ask("POST", "/v1/chat/completions", {"messages": HI, "thinking_token_budget": 5})
        assert refused.status == 400 and refused.error["param"] == "thinking_token_budget"
    async with serving(reasoning_parser="qwen3") as served:
        client = await served.client()
        for given, budget in ((-1, None), (0, 0), (7, 7)):
            client.send("POST", "/v1/chat/completions", {"messages": HI, "thinking_token_budget": given})
            job = await served.job()
            assert job.rendering["thinking_budget"] == budget
            rendered(job)
            say(job, 0, "a", 1, Finish.STOP)
            assert (await client.answer()).status == 200
        below = await served.ask("POST", "/v1/chat/completions", {"messages": HI, "thinking_token_budget": -2})
        assert below.status == 400 and below.error["param"] == "thinking_token_budget"


async def test_without_reasoning_its_fields_are_null() -> None:
    """Clients read them without asking whether they are there."""
    async with serving(reasoning_parser="qwen3", tool_parser="hermes") as served:
        for text, fields, expected in (
            ("yes", {}, None),
            ("<think>hm</think>yes", {}, "hm"),
            ("<think>hm</think>yes", {"include_reasoning": False}, None),
            ('<tool_call>{"name": "weather", "arguments": {}}</tool_call>', {"tools": [TOOL]}, None),
        ):
            body = (await ask(served, text, **fields)).json
            message = body["choices"][0]["message"]
            assert (message["reasoning"], message["reasoning_content"]) == (expected, expected)
            assert "system_fingerprint" not in body, "a string, or not there"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("parser", ["qwen3", None])
async def test_thinking_that_is_left_out_has_no_logprobs_and_no_ids(parser: str | None, stream: bool) -> None:
    """They would tell its tokens; without a parser nothing is left out, and the prompt's are the client's own."""
    async with serving(reasoning_parser=parser) as served:
        client = await served.client()
        hidden = {"include_reasoning": False, "return_token_ids": True}
        client.send("POST", "/v1/chat/completions", {"messages": HI, "logprobs": True, "stream": stream, **hidden})
        job = await served.job()
        rendered(job)
        job.choices[0].prompt_ids = [1, 2]
        job.choices[0].ids.append(5)
        say(job, 0, "<think>", 1, logprobs=[TokenLogprobs(b"<think>", 5, -1.0, 1)])
        job.choices[0].ids.append(6)
        say(job, 0, "hm</think>yes", 2, Finish.STOP, logprobs=[TokenLogprobs(b"hm", 6, -1.0, 1)])
        answer = await client.answer()
    told = [one for event in (answer.events if stream else [answer.json]) for one in event["choices"]]
    tokens = [one["token"] for choice in told if choice["logprobs"] for one in choice["logprobs"]["content"]]
    assert bool(tokens) == (parser is None)
    ids = [token for choice in told for token in choice.get("token_ids") or ()]
    assert ids == ([5, 6] if parser is None else [])
    body = answer.events[0] if stream else answer.json
    assert body["prompt_token_ids"] == [1, 2]


@pytest.mark.parametrize("stream", [False, True])
async def test_to_whom_an_answer_is_said_is_no_part_of_it(stream: bool) -> None:
    """Functionary says it without tools, too, or where none may be called; what looks like calls is part of it then."""
    none: dict[str, Any] = {"tools": [TOOL], "tool_choice": "none"}
    call = '>>>weather\n{"city": "Oslo"}'
    for text, content, more in (
        ("all\nHello.", "Hello.", {}),
        ("Hello\nyou.", "Hello\nyou.", {}),
        (f">>>all\nDo it so:\n{call}", f"Do it so:\n{call}", {}),
        (f"all\nDo it so:\n{call}", f"Do it so:\n{call}", none),
    ):
        async with serving(tool_parser="functionary") as served:
            answer = await ask(served, text, stream=stream, **more)
        choices = [one for event in (answer.events if stream else [answer.json]) for one in event["choices"]]
        assert {one["finish_reason"] for one in choices} - {None} == {"stop"}
        assert "".join(one.get("delta", one.get("message")).get("content", "") for one in choices) == content


@pytest.mark.parametrize("tier", ["auto", "flex", None])
async def test_the_tier_is_told_to_who_asks_for_one(served: Served, tier: str | None) -> None:
    """There is one."""
    for stream in (False, True):
        answer = await ask(served, "a", service_tier=tier, stream=stream)
        for body in answer.events if stream else [answer.json]:
            assert body.get("service_tier") == (None if tier is None else "default")


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ("auto", '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]weather[ARGS]{}'),
        ("auto", '[TOOL_CALLS][{"name": "weather", "arguments": {}, "id": "x"}, {"name": "weather", "arguments": {}}]'),
        ("required", '[{"name": "weather", "parameters": {}}, {"name": "weather", "parameters": {}}]'),
        ({"type": "function", "function": {"name": "weather"}}, "{}"),
    ],
)
async def test_calls_of_mistral_have_short_ids(choice: Any, text: str) -> None:
    """Its templates, and clients that check what they send, take 9 letters or digits."""
    async with serving(tool_parser="mistral") as served:
        answers = [await ask(served, text, tools=[TOOL], tool_choice=choice, stream=stream) for stream in (False, True)]
    whole = [call["id"] for one in answers[0].json["choices"] for call in one["message"].get("tool_calls", ())]
    deltas = [one["delta"] for event in answers[1].events for one in event["choices"]]
    streamed = [call["id"] for delta in deltas for call in delta.get("tool_calls", ()) if "id" in call]
    for ids in (whole, streamed):
        assert ids and len(set(ids)) == len(ids) and all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in ids)


async def test_an_id_that_mistral_has_given_itself_is_kept() -> None:
    async with serving(tool_parser="mistral") as served:
        answer = await ask(served, "[TOOL_CALLS]weather[CALL_ID]abc123XYZ[ARGS]{}", tools=[TOOL])
    assert answer.json["choices"][0]["message"]["tool_calls"][0]["id"] == "abc123XYZ"
