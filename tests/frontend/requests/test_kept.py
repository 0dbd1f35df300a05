"""What a frontend keeps of a request until its answer is whole, and of how much it says so before."""

from __future__ import annotations

import msgspec
import pytest

from actorserve.actors.protocol.messages import Rendered
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.generation.job import Job

from ..others import Others


@pytest.mark.parametrize("told", [-1, 0])
async def test_listed_tokens_count_where_logprobs_of_prompts_are_told(others: Others, told: int) -> None:
    asked = Sampling(1, prompt_logprobs=told, logprob_token_ids=[1, 2, 3], lists_prompt=True)
    others.context.config = msgspec.structs.replace(others.context.config, max_prompt_logprobs=1)
    made = Job([TextPrompt("Hello")], [msgspec.msgpack.encode(Generation(asked))])
    others.engine.submit(made)
    others.put_prompt(made.refs)
    others.tell("renderer-0", Rendered(made.refs, 3))
    assert made.done.done() is (told == 0)
