"""Token ids in, token ids out (/inference/v1/generate), and what completions have in common with it, over a socket."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from actorserve.actors.protocol.topics.prompts import TokenPrompt
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.job import Job
from actorserve.http.openai.completions import CompletionAnswer
from actorserve.http.openai.derendering import begins_inside
from actorserve.http.openai.rendering import rendered as rendered_request
from actorserve.http.openai.schemas import CompletionRequest
from actorserve.http.output.answer import Answer, AnswerOptions
from tests.http.fakes import rendered, say
from tests.http.serving import SETTINGS, Served, events_of

PATH = "/inference/v1/generate"
TOLD = [TokenLogprobs(b"a", 7, -0.5, 1)]


async def test_it_goes_up_to_the_models_length_unless_told(served: Served) -> None:
    for params, limit in (({}, None), ({"max_tokens": 5}, 5)):
        client = await served.client()
        client.send("POST", PATH, {"token_ids": [1, 2], "sampling_params": params})
        job = await served.job()
        assert job.prompts == [TokenPrompt([1, 2])] and job.rendering["max_tokens"] == limit
        client.leave()


async def test_a_token_stands_for_likely_ones_where_none_are_asked_for(served: Served) -> None:
    client = await served.client()
    client.send("POST", PATH, {"token_ids": [1], "sampling_params": {"logprobs": 0}})
    job = await served.job()
    rendered(job)
    say(job, 0, "", 1, Finish.LENGTH, logprobs=TOLD)
    (choice,) = (await client.answer()).json["choices"]
    own = {"token": "token_id:7", "logprob": -0.5, "bytes": [97], "token_id": 7}
    assert choice["logprobs"]["content"] == [own | {"rank": 1, "top_logprobs": [own]}]


async def test_without_text_there_are_no_stop_strings(served: Served) -> None:
    body = {"token_ids": [1], "sampling_params": {"detokenize": False, "stop": ["end"]}}
    answer = await served.ask("POST", PATH, body)
    assert answer.status == 400 and answer.error["param"] == "stop"


async def test_what_render_makes_is_taken(served: Served) -> None:
    """Of llama.cpp's fields, too: how far a prompt has come is told by chats and completions alone."""
    told = {"return_progress": True, "timings_per_token": True, "return_prompt_text": True, "user": "a"}
    body = decode(CompletionRequest, msgspec.json.encode({"prompt": [1, 2], "stream": True, **told}))
    client = await served.client()
    client.send("POST", PATH, rendered_request(body, ([1, 2], None), "abc", SETTINGS))
    job = await served.job()
    assert job.prompts == [TokenPrompt([1, 2])]
    client.leave()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("options", "usages"),
    [
        ({"include_usage": False, "continuous_usage_stats": True}, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True),
        ({"continuous_usage_stats": True}, True),
    ],
)
async def test_who_wants_no_usage_is_told_none(
    served: Served, path: str, options: dict[str, Any], usages: bool
) -> None:
    client = await served.client()
    asked = {"prompt": "hi"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "hi"}]}
    client.send("POST", path, {**asked, "stream": True, "stream_options": options})
    job = await served.job()
    rendered(job)
    say(job, 0, "a", 1)
    say(job, 0, "b", 2, Finish.LENGTH)
    events = (await client.answer()).events
    assert [bool(event.get("usage")) for event in events] == [usages] * len(events)
    assert (events[-1]["choices"] == []) == usages


@pytest.mark.parametrize(("side", "first"), [(None, False), ("left", False), ("right", True)])
async def test_which_side_is_cut_off(served: Served, side: str | None, first: bool) -> None:
    client = await served.client()
    body = {"prompt": [1, 2, 3], "truncate_prompt_tokens": 2, "truncation_side": side}
    client.send("POST", "/v1/completions", body)
    rendering = (await served.job()).rendering
    assert (rendering["truncate_prompt_tokens"], rendering["keep_first"]) == (2, first)
    client.leave()
    assert (await served.ask("POST", "/v1/completions", body | {"truncation_side": "up"})).status == 400


async def test_offsets_are_those_of_the_text(served: Served) -> None:
    """Of a character that several tokens make, each begins where it does."""
    pieces = [b"a", b"\xf0\x9f", b"\x8e", b"\x89b", b" c"]
    told = [TokenLogprobs(text, number, -1.0, 1) for number, text in enumerate(pieces)]
    text, offsets = "a\U0001f389b c", [0, 1, 1, 1, 3]
    for as_ids, expected in ((False, offsets), (True, [0, 10, 20, 30, 40])):
        client = await served.client()
        body = {"prompt": "hi", "logprobs": 0, "stream": True, "return_tokens_as_token_ids": as_ids}
        client.send("POST", "/v1/completions", body)
        job = await served.job()
        rendered(job)
        for number, one in enumerate(told, 1):
            last = number == len(told)
            say(job, 0, text if last else "", number, Finish.LENGTH if last else 0, logprobs=[one])
        choices = [event["choices"][0] for event in (await client.answer()).events]
        assert [one for choice in choices for one in choice["logprobs"]["text_offset"]] == expected
        assert "".join(choice["text"] for choice in choices) == text


async def test_offsets_behind_an_echo(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "x\U0001f389y", "logprobs": 0, "echo": True})
    job = await served.job()
    rendered(job, 4)
    prompt = [TokenLogprobs(text, number, -1.0, 1) for number, text in enumerate((b"\xf0\x9f", b"\x8e\x89", b"y"))]
    job.choices[0].prompt_logprobs.update(enumerate(prompt, 1))
    say(job, 0, "z", 1, Finish.LENGTH, logprobs=[TokenLogprobs(b"z", 9, -1.0, 1)])
    (choice,) = (await client.answer()).json["choices"]
    told: dict[str, Any] = choice["logprobs"]
    assert told["tokens"][0] == "x" and told["text_offset"] == [0, 1, 1, 2, 3]


@pytest.mark.parametrize(("echo", "offsets"), [(None, [2]), (["pr"], [4])])
async def test_offsets_go_on_behind_what_a_predecessor_said(echo: list[str] | None, offsets: list[int]) -> None:
    job = Job([TokenPrompt([1, 2])], [b""])
    wants = AnswerOptions(logprobs=True, echo=echo)
    writer = CompletionAnswer(Answer("tiny", False, 0, 0, wants), job)
    choice = job.choices[0]
    rendered(job, 2)
    choice.prompt_logprobs[1] = TokenLogprobs(b"r", 5, -1.0, 1)
    choice.skip(2, 2)
    told = [TokenLogprobs(text, number, -1.0, 1) for number, text in enumerate((b"a", b"b", b"c"))]
    say(job, 0, "abc", 3, Finish.LENGTH, logprobs=told)
    (event,) = events_of(writer.update(choice) + writer.closing())
    assert event["choices"][0]["text"] == "c" and event["choices"][0]["logprobs"]["text_offset"] == offsets


async def test_a_tokens_own_logprob_comes_first(served: Served) -> None:
    """Some clients take the first, others the largest number; and another token may have the same text."""
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "logprobs": 3})
    job = await served.job()
    rendered(job)
    best = [(b"b", 1, -0.1), (b"a", 2, -0.2), (b"c", 3, -0.3)]
    say(job, 0, "a", 1, Finish.LENGTH, logprobs=[TokenLogprobs(b"a", 7, -5.0, 9, best)])
    (choice,) = (await client.answer()).json["choices"]
    (told,) = choice["logprobs"]["top_logprobs"]
    assert list(told.items()) == [("a", -5.0), ("b", -0.1), ("token_id:2", -0.2), ("c", -0.3)]


async def test_an_error_does_not_repeat_a_name_of_any_length(served: Served) -> None:
    answer = await served.ask("POST", "/v1/completions", {"prompt": "hi", "model": "m" * 50_000})
    assert answer.status == 404 and answer.error["code"] == "model_not_found" and len(answer.body) < 1000


@pytest.mark.parametrize(("parser", "opened"), [(None, False), ("plugin", False), ("deepseek_r1", True)])
def test_a_prompt_leaves_its_answer_inside_thinking_whose_marks_are_known(parser: str | None, opened: bool) -> None:
    assert begins_inside(replace(SETTINGS, reasoning_parser=parser), "hi") is opened
