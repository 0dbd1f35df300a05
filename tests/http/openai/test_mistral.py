"""What Mistral's clients write otherwise than OpenAI's: it is the same, or refused by its name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topics.prompts import ChatPrompt
from actorserve.http.generation.job import Job
from tests.http.fakes import finish_all
from tests.http.serving import HI, PATIENCE_S, Served

PATH = "/v1/chat/completions"
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
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = await served.ask("POST", PATH, {"messages": HI, **fields})
    assert (answer.status, answer.error["param"]) == (400, param), answer.body
