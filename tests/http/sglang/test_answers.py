"""What an answer of SGLang's /generate tells beside its text, of which long parts are written in turns."""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Delta, TokenLogprobs
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.generation.choice import Choice, read_state
from actorserve.http.generation.job import Job
from actorserve.http.generation.logprobs import ENTRIES
from actorserve.http.generation.times import JobTimes
from actorserve.http.output.answer import Answer
from actorserve.http.sglang.answers import SglangAnswer
from actorserve.http.sglang.schemas import SglangGenerateRequest
from tests.http.fakes import finish_all
from tests.http.output.turns import OthersTurns
from tests.http.serving import HI, serving

ASKED: dict[str, Any] = {"text": "a", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}


async def test_each_answer_tells_its_prompts_logprobs() -> None:
    """Of several to a prompt, too, of which the first alone is told them by the engine."""
    async with serving() as served:
        client = await served.client()
        client.send("POST", "/generate", ASKED | {"sampling_params": {"n": 2}})
        job = await served.job()
        job.choices[0].prompt_logprobs[1] = TokenLogprobs(b"b", 8, -0.5, 1, [(b"b", 8, -0.5)])
        for choice in job.choices:
            choice.prompt_tokens, choice.prompt_ids = 2, [7, 8]
        finish_all(job)
        for one in (await client.answer()).json:
            about = one["meta_info"]
            assert about["input_token_logprobs"] == [[None, 7, None], [-0.5, 8, None]]
            assert about["input_top_logprobs"] == [None, [[-0.5, 8, None]]]


async def test_others_have_turns_while_a_long_prompt_is_written() -> None:
    most = 4 * ENTRIES
    job = Job([], [b""])
    job.choices = [Choice(0, prompt_tokens=most, prompt_ids=[7] * most)]
    job.choices[0].prompt_logprobs.update(dict.fromkeys(range(1, most), TokenLogprobs(b"b", 8, -0.5, 1, [])))
    body = msgspec.convert(ASKED, SglangGenerateRequest)
    answer = SglangAnswer(Answer("m", False, 1, 1), job, lambda job: JobTimes(), body)

    with OthersTurns() as others:
        await answer.write_long()
    about = json.loads(msgspec.json.encode(answer.whole()))["meta_info"]
    assert len(about["input_token_logprobs"]) == len(about["input_top_logprobs"]) == most
    assert others.count == 8


async def test_hidden_states_stand_apart_for_prompt_and_answer() -> None:
    async with serving(enable_return_hidden_states=True) as served:
        client = await served.client()
        client.send("POST", "/generate", {"text": "a", "return_hidden_states": [True]})
        job = await served.job()
        assert job.tells_all
        (choice,) = job.choices
        choice.prompt_tokens, choice.tokens = 2, 3
        choice.hidden_states = 6, 1, array("f", range(6)).tobytes()  # a step that is not told has computed one more
        finish_all(job)
        about = (await client.answer()).json["meta_info"]
        assert about["hidden_states"] == [[[0.0], [1.0]], [2.0], [3.0]]


async def test_a_streams_last_events_are_written_one_by_one() -> None:
    async with serving() as served:
        client = await served.client()
        client.send("POST", "/generate", ASKED | {"text": ["a", "b"], "stream": True})
        job = await served.job()
        for choice in job.choices:
            choice.prompt_tokens, choice.prompt_ids = 2, [7, 8]
        finish_all(job)
        *_, first, second, done = (await client.answer()).chunks
        assert done == b"data: [DONE]\n\n"
        for index, event in enumerate((first, second)):
            part = json.loads(event.removeprefix(b"data: "))
            assert part["index"] == index and part["meta_info"]["input_token_logprobs"][0] == [None, 7, None]


async def test_a_successor_goes_on_behind_the_last_event_that_was_written() -> None:
    body = msgspec.convert(ASKED | {"stream": True}, SglangGenerateRequest)

    def answer(*states: int) -> SglangAnswer:
        job = Job([TextPrompt("a"), TextPrompt("b")], [b""])
        for choice, state in zip(job.choices, states, strict=True):
            choice.skip(*read_state(state)[:2])
            choice.add(Delta(0, 0, "text", 2))
            choice.ids, choice.finish_reason = [1, 2], "stop"
        made = SglangAnswer(Answer("m", False, 1, 1), job, lambda job: JobTimes(), body)
        for choice in job.choices:
            made.update(choice)
        return made

    whole = answer(0, 0)
    events, states = [], []
    async for choice, event in whole.ends():
        events.append(event)
        states.append(whole.state(choice))
    assert b'"output_ids":[1,2]' in events[0] and len(events) == 2
    assert [event async for _, event in answer(states[0], 0).ends()] == events[1:]
    assert [event async for _, event in answer(*states).ends()] == []


@pytest.mark.parametrize(
    ("path", "body"),
    [("/generate", {"text": "a"}), ("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": HI})],
)
async def test_hidden_states_of_a_server_that_tells_none(path: str, body: dict[str, Any]) -> None:
    async with serving() as served:
        answer = await served.ask("POST", path, body | {"return_hidden_states": True})
        assert (answer.status, answer.error["param"]) == (400, "return_hidden_states")
        assert "--enable-return-hidden-states" in answer.error["message"]
