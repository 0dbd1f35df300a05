"""What Mistral's clients write otherwise than OpenAI's: it is the same, or refused by its name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.output.events import Arguments, CallStart, JoinedCalls
from actorserve.http.output.parsers.registry import make_parser
from tests.http.fakes import finish_all, rendered, say
from tests.http.serving import HI, PATIENCE_S, Served, serving

PATH = "/v1/chat/completions"
FIM = "/v1/fim/completions"
INFILLS: dict[str, Any] = {"special_tokens": lambda: {"[PREFIX]": 3, "[SUFFIX]": 4}, "vocab_size": 100}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
BEGUN = [*HI, {"role": "assistant", "content": "Well", "prefix": True}]


async def asked(served: Served, **fields: Any) -> Job:
    """What the engine is asked."""
    answer = asyncio.ensure_future(served.ask("POST", PATH, {"messages": HI, **fields}))
    job = await served.job()
    finish_all(job)
    assert (await asyncio.wait_for(answer, PATIENCE_S)).status == 200
    return job


async def test_the_same_by_other_names(served: Served) -> None:
    job = await asked(served, tools=TOOLS, tool_choice="any", random_seed=7)
    same = await asked(served, tools=TOOLS, tool_choice="required", seed=7)
    assert job.rendering == same.rendering and job.rendering["constrained_by"] == "tool_choice"
    seeds = [msgspec.msgpack.decode(one.params[0], type=Generation).sampling.seed for one in (job, same)]
    assert seeds == [7, 7]


async def test_the_answer_goes_on_with_what_is_begun(served: Served) -> None:
    job = await asked(served, messages=BEGUN)
    prompt = job.prompts[0]
    assert isinstance(prompt, ChatPrompt) and prompt.continue_final_message and not prompt.add_generation_prompt
    plain = (await asked(served, messages=[*HI, {"role": "assistant", "content": "Well", "prefix": False}])).prompts[0]
    assert isinstance(plain, ChatPrompt) and not plain.continue_final_message


async def test_thinking_is_asked_for(served: Served) -> None:
    prompt = (await asked(served, prompt_mode="reasoning", safe_prompt=False)).prompts[0]
    assert isinstance(prompt, ChatPrompt) and b"enable_thinking" in msgspec.msgpack.encode(prompt)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"safe_prompt": True}, "safe_prompt"),
        ({"prompt_mode": "other"}, "prompt_mode"),
        ({"random_seed": 1 << 70}, "random_seed"),
        ({"random_seed": "x"}, "random_seed"),
        ({"random_seed": 1, "seed": 2}, "random_seed"),
        ({"messages": [{**HI[0], "prefix": True}]}, "messages[0].prefix"),
        ({"messages": [*BEGUN, *HI]}, "messages[1].prefix"),
        ({"messages": [*HI, {"role": "assistant", "content": "x", "prefix": 1}]}, "messages[1].prefix"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"guardrails": [{"block_on_error": True}]}, "guardrails"),
        ({"top_prompt_logprobs": 2}, "top_prompt_logprobs"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await served.ask("POST", PATH, {"messages": HI, **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


# --- calls of a stream -----------------------------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
CALLS = f"I look.\n{CALL % 'Oslo'}\n{CALL % 'Rome'}"
AGENTS = ["mistral-client-python/3.7.0", "mistral-client-typescript/1.2", "ai-sdk/mistral/3.0.69 runtime/x"]


async def streamed(agent: str, text: str, finish: Finish = Finish.STOP, **fields: Any) -> list[Any]:
    """The deltas of a text that comes letter by letter."""
    async with serving(tool_parser="hermes") as served:
        client = await served.client()
        client.send("POST", PATH, {"messages": HI, "tools": TOOLS, "stream": True, **fields}, User_Agent=agent)
        job = await served.job()
        rendered(job)
        for letter in text:
            say(job, 0, letter)
            for _ in range(3):  # turns of the loop, in which it is written
                await asyncio.sleep(0)
        say(job, 0, "", 1, finish)
        return [event["choices"][0]["delta"] for event in (await client.answer()).events if event["choices"]]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("fields", [{}, {"stream_options": {"continuous_usage_stats": True, "include_usage": True}}])
async def test_mistrals_clients_are_told_a_call_in_one_part(agent: str, fields: dict[str, Any]) -> None:
    deltas = await streamed(agent, CALLS, **fields)
    assert all("content" in delta for delta in deltas), "which they add to what came before"
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "weather"), (1, "weather")]
    assert [call["function"]["arguments"] for call in calls] == ['{"city": "Oslo"}', '{"city": "Rome"}']
    assert "".join(delta.get("content") or "" for delta in deltas).strip() == "I look."


async def test_a_call_that_is_cut_is_told_as_far_as_it_came() -> None:
    deltas = await streamed(AGENTS[0], CALLS[:60], Finish.LENGTH)
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert call["function"]["name"] == "weather" and '{"city": "Oslo"}'.startswith(call["function"]["arguments"])


@pytest.mark.parametrize("agent", ["OpenAI/Python 3.5.0", "python-httpx/0.28", "x mistral-client-python/3.7.0", ""])
async def test_all_others_are_told_its_name_once(agent: str) -> None:
    calls = [call for delta in await streamed(agent, CALLS) for call in delta.get("tool_calls", ())]
    assert len(calls) > 4 and [call["index"] for call in calls if "name" in call["function"]] == [0, 1]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PATH, {"messages": HI}),
        (PATH, {"messages": HI, "stream_options": {"include_usage": True}}),
        (PATH, {"messages": HI, "tools": TOOLS, "n": 2}),
        (FIM, {"prompt": "def a():"}),
    ],
)
async def test_a_streams_last_event_tells_usage(path: str, fields: dict[str, Any]) -> None:
    async with serving(tool_parser="hermes", **INFILLS) as served:
        client = await served.client()
        client.send("POST", path, {"stream": True, **fields}, User_Agent="ai-sdk-mistral/4.0.87 ai-sdk/5")
        finish_all(await served.job())
        events = (await client.answer()).events
    assert all(event["choices"] for event in events), "of which its clients read the first"
    assert all("content" in event["choices"][0]["delta"] for event in events), "which they add to what came before"
    ends = [event for event in events if event["choices"][0]["finish_reason"]]
    assert [event["usage"]["completion_tokens"] for event in ends] == [3] * fields.get("n", 1)
    assert not any(event.get("usage") for event in events if event not in ends)


@pytest.mark.parametrize("agent", [*AGENTS, "OpenAI/Python 3.5.0"])
async def test_errors_are_in_its_form(served: Served, agent: str) -> None:
    client = await served.client()
    client.send("POST", PATH, {"messages": HI, "temperature": 9}, User_Agent=agent)
    answer = await client.answer()
    message = "temperature must be between 0 and 2, not 9.0."
    error = {"message": message, "type": "invalid_request_error", "param": "temperature", "code": None}
    assert answer.json == ({"object": "error", **error} if agent in AGENTS else {"error": error})


@pytest.mark.parametrize("agent", [*AGENTS, "OpenAI/Python 3.5.0"])
@pytest.mark.parametrize(("path", "body"), [(PATH, {"messages": HI}), (FIM, {"prompt": "def a():"})])
async def test_errors_within_a_stream_are_in_its_form(agent: str, path: str, body: dict[str, Any]) -> None:
    async with serving(**INFILLS) as served:
        client = await served.client()
        client.send("POST", path, {**body, "stream": True}, User_Agent=agent)
        job = await served.job()
        rendered(job)
        say(job, 0, "Well", 1)
        job.fail(ApiError(503, "The server ends."))
        *_, last = (await client.answer()).events
    error = {"message": "The server ends.", "type": "service_unavailable_error", "param": None, "code": None}
    assert last == ({"object": "error", **error} if agent in AGENTS else {"error": error})


async def test_of_a_text_between_two_other_clients_are_told_usage_as_they_ask(served: Served) -> None:
    for agent, told in (("OpenAI/Python 3.5.0", True), (AGENTS[0], False)):
        client = await served.client()
        asked = {"prompt": "def a():", "stream": True, "stream_options": {"include_usage": True}}
        client.send("POST", FIM, asked, User_Agent=agent)
        finish_all(await served.job())
        *_, last = (await client.answer()).events
        assert (not last["choices"]) == told and last["usage"]["completion_tokens"] == 3


THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]


@pytest.mark.parametrize("agent", [*AGENTS, "OpenAI/Python 3.5.0"])
@pytest.mark.parametrize("stream", [False, True])
async def test_mistrals_clients_are_told_thinking_as_a_part_of_the_content(agent: str, stream: bool) -> None:
    async with serving(reasoning_parser="qwen3") as served:
        client = await served.client()
        client.send("POST", PATH, {"messages": HI, "stream": stream}, User_Agent=agent)
        job = await served.job()
        rendered(job)
        for text, finish in (("<think>Hm.</think>", 0), ("Yes.", Finish.STOP)):
            say(job, 0, text, 1, finish)
        answer = await client.answer()
    if stream:
        told = [event["choices"][0]["delta"] for event in answer.events if event["choices"]]
        thoughts, said = ([one for one in told if isinstance(one.get("content"), kind)] for kind in (list, str))
        content = [part for one in thoughts for part in one["content"]] + ["".join(one["content"] for one in said)]
    else:
        told = [answer.json["choices"][0]["message"]]
        content = told[0]["content"]
    if agent in AGENTS:
        assert content == [*THOUGHT, "Yes." if stream else {"type": "text", "text": "Yes."}]
        assert not any(one.get("reasoning_content") for one in told)
    else:
        assert content == (["Yes."] if stream else "Yes.")
        assert any(one.get("reasoning_content") == "Hm." for one in told)


@pytest.mark.parametrize("cut", range(0, len(CALLS), 3))
def test_whoever_goes_on_tells_what_was_not_whole(cut: int) -> None:
    whole = JoinedCalls(make_parser(reasoning=None, tools="hermes", schemas={}, opened=False, named=None))
    text = [piece for letter in CALLS for piece in whole.feed(letter)] + whole.finish()
    parser = JoinedCalls(make_parser(reasoning=None, tools="hermes", schemas={}, opened=False, named=None))
    told = parser.feed(CALLS[:cut]) + parser.feed(CALLS[cut:]) + parser.finish()
    calls = [piece for piece in told if isinstance(piece, CallStart | Arguments)]
    assert calls == [piece for piece in text if isinstance(piece, CallStart | Arguments)] and len(calls) == 4


# --- what stands between two texts -----------------------------------------------------------------------------------


async def test_a_text_between_two_is_told_as_a_message() -> None:
    async with serving(**INFILLS) as served:
        client = await served.client()
        client.send("POST", FIM, {"prompt": "def a():", "suffix": "a()", "random_seed": 7})
        job = await served.job()
        (prompt,) = job.prompts
        assert isinstance(prompt, TextPrompt) and prompt.text == "[SUFFIX]a()[PREFIX]def a():"
        assert msgspec.msgpack.decode(job.params[0], type=Generation).sampling.seed == 7
        assert job.rendering["max_tokens"] is None, "up to the model's length"
        finish_all(job)
        body = (await client.answer()).json
    assert (body["object"], body["choices"][0]["message"]["content"]) == ("chat.completion", "yes0")
    assert body["id"].startswith("chatcmpl-") and body["choices"][0]["message"]["role"] == "assistant"


async def test_its_stream_is_that_of_a_chat(served: Served) -> None:
    client = await served.client()
    client.send("POST", FIM, {"prompt": "def a():", "stream": True, "max_tokens": 9})
    job = await served.job()
    assert job.rendering["max_tokens"] == 9
    finish_all(job)
    events = (await client.answer()).events
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "yes0"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"suffix": "b"}, "suffix"),
        ({"echo": True}, "echo"),
        ({"random_seed": 1, "seed": 2}, "random_seed"),
        ({"random_seed": 1 << 70}, "random_seed"),
    ],
)
async def test_of_it_what_cannot_be_is_refused_by_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await served.ask("POST", FIM, {"prompt": "a", **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


async def test_times_of_a_streamed_transcript_are_refused_by_their_name() -> None:
    speech = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=1, frames=2)
    hears = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0, speech=speech)
    fields = {"file": "a", "stream": "true", "timestamp_granularities": "segment"}
    parts = [f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{fields[name]}\r\n' for name in fields]
    async with serving(encoder=hears) as served:
        about = {"User_Agent": AGENTS[0], "Content_Type": "multipart/form-data; boundary=x"}
        body = f"{''.join(parts)}--x--\r\n".encode()
        answer = await served.ask("POST", "/v1/audio/transcriptions", body, **about)
    assert (answer.status, answer.json["param"]) == (400, "timestamp_granularities")


async def test_mistrals_clients_are_told_what_a_model_can() -> None:
    about = {"chat_template": "x"}
    async with serving(tool_parser="hermes", tokenizer_info=about, **INFILLS) as served:
        plain = (await served.ask("GET", "/v1/models/tiny")).json
        assert plain["type"] == "model" and plain["capabilities"] is None
        told = (await served.ask("GET", "/v1/models/tiny", User_Agent=AGENTS[0])).json
        (card, _) = (await served.ask("GET", "/v1/models", User_Agent=AGENTS[0])).json["data"]
    assert card == told and (told["type"], told["max_context_length"]) == ("base", 64)
    can = {name for name, there in told["capabilities"].items() if there}
    assert can == {"completion_chat", "completion_fim", "function_calling"}
