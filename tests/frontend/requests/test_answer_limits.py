"""What a frontend keeps of a request until its answer is whole, and of how much it says so before."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.messages import Cancel, Delta, Rendered, TokenLogprobs
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.choice import Choice
from actorserve.http.generation.job import Job
from actorserve.http.output.answer import last_state
from actorserve.shm.table.hidden_states import HiddenStates

from ..others import MODEL, Others, end

ONE = TokenLogprobs(b"a", 1, -0.5, 1, [(b"a", 1, -0.5)])
HIDDEN = 4


def asking(others: Others, sampling: Sampling, count: int = 1, **about: Any) -> Job:
    """A request whose prompts are rendered."""
    made = Job([TextPrompt("Hello")] * count, [msgspec.msgpack.encode(Generation(sampling))])
    for name, value in about.items():
        setattr(made, name, value)
    others.engine.submit(made)
    others.put_prompt(made.refs)
    others.tell("renderer-0", Rendered(made.refs, 3))
    return made


def limit(others: Others, **options: int) -> None:
    others.context.config = msgspec.structs.replace(others.context.config, **options)


async def test_logprobs_of_prompts_are_no_more_than_a_frontend_keeps(others: Others) -> None:
    """Those of all of a request's prompts together."""
    limit(others, max_prompt_logprobs=2 * 3 * 5)
    for prompts in (2, 3):
        asked = asking(others, Sampling(1, prompt_logprobs=4), prompts)
        assert asked.done.done() is (prompts == 3)
        others.engine.release(asked)
    with pytest.raises(ApiError, match="5 of each of 9 tokens, its own included, are more than the 30 ") as refused:
        await asked.started
    assert (refused.value.status, refused.value.param) == (400, "prompt_logprobs")
    assert others.received("scheduler")[-1] == Cancel(asked.refs)


@pytest.mark.parametrize("told", [-1, 0])
async def test_many_prompts_are_not_summed_at_each_of_them(
    others: Others, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frontend's loop would stand still for half a second, for a request of 2048."""
    sums: list[Job] = []
    monkeypatch.setattr(Job, "prompt_tokens", property(sums.append))
    asked = asking(others, Sampling(1, prompt_logprobs=told), 3)
    assert not sums and asked.rendered_tokens == 3 * 3


@pytest.mark.parametrize("told", [-1, 0])
async def test_listed_tokens_count_where_logprobs_of_prompts_are_told(others: Others, told: int) -> None:
    limit(others, max_prompt_logprobs=1)
    sampling = Sampling(1, prompt_logprobs=told, logprob_token_ids=[1, 2, 3], lists_prompt=True)
    assert asking(others, sampling).done.done() is (told == 0)


class Watching:
    """A stream that takes what comes."""

    def update(self, choice: Choice) -> None:
        choice.take()


@pytest.mark.parametrize(
    ("streamed", "tells_all", "ends"), [(False, False, True), (True, False, False), (True, True, True)]
)
async def test_logprobs_of_answers_are_no_more_than_a_frontend_keeps(
    others: Others, streamed: bool, tells_all: bool, ends: bool
) -> None:
    """Those that have come, of all choices together; a stream gives them away, unless each event tells all."""
    limit(others, max_answer_logprobs=2 * 4)
    asked = asking(others, Sampling(1, logprobs=1), 2, tells_all=tells_all)
    if streamed:
        asked.listen(Watching())
    first, second = asked.refs
    others.tell("detokenizer-0", Delta(first, 0, "aa", 2, logprobs=[ONE] * 2))
    others.tell("detokenizer-0", Delta(second, 0, "aa", 2, logprobs=[ONE] * 2))
    assert not asked.done.done()
    others.tell("detokenizer-0", Delta(second, 2, "a", 3, logprobs=[ONE]))
    assert asked.done.done() is ends
    if ends:
        with pytest.raises(ApiError, match=r"2 of each of 5 tokens of the answers.* more than the 8 ") as refused:
            await asked.done
        assert (refused.value.status, refused.value.param) == (400, "logprobs")


@pytest.fixture
async def states() -> AsyncIterator[tuple[Others, HiddenStates]]:
    """Of a server that tells hidden states, and where a worker writes them."""
    made = Others(hidden=HIDDEN)
    area = made.contexts["scheduler"].hidden_states()
    assert area is not None
    yield made, area
    made.memory.close()


async def test_hidden_states_are_no_more_than_a_frontend_keeps(states: tuple[Others, HiddenStates]) -> None:
    """Where those of all tokens are told: as many as there may be."""
    others, _ = states
    sampling = Sampling(1, hidden_states=True)
    tokens = 3 + MODEL.max_model_len
    limit(others, max_hidden_states=HIDDEN * tokens)
    for prompts, tells_all, refused in ((1, True, False), (2, False, False), (2, True, True)):
        asked = asking(others, sampling, prompts, tells_all=tells_all)
        assert asked.done.done() is refused
        others.engine.release(asked)
    said = f"{HIDDEN} numbers of each of {2 * tokens} tokens.* more than the {HIDDEN * tokens} "
    with pytest.raises(ApiError, match=said) as raised:
        await asked.started
    assert (raised.value.status, raised.value.param) == (400, "return_hidden_states")


@pytest.mark.parametrize("tells_all", [False, True])
async def test_of_hidden_states_a_frontend_keeps_what_is_told(
    states: tuple[Others, HiddenStates], tells_all: bool
) -> None:
    """Of chats and completions the last token's row; of an answer of one token nothing was computed."""
    others, area = states
    asked = asking(others, Sampling(1, hidden_states=True), 2, tells_all=tells_all)
    rows = array("f", range(6 * HIDDEN)).tobytes()  # a step that is not told has computed one more
    for ref in asked.refs:
        area.write_rows(ref, 0, 6, HIDDEN, rows)
    first, second = asked.refs
    short = msgspec.structs.replace(end(second), tokens=1)
    others.tell("detokenizer-0", end(first), short)
    await asked.done
    found = [choice.hidden_states for choice in asked.choices]
    if tells_all:
        assert found == [(6, HIDDEN, rows)] * 2
    else:
        assert found == [(1, HIDDEN, rows[16 * 4 : 16 * 5]), (0, HIDDEN, b"")]
        assert [last_state(choice)["hidden_states"] for choice in asked.choices] == [[16.0, 17.0, 18.0, 19.0], []]
