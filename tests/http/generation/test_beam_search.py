"""What goes with beam search: the rest is refused by its name, and not dropped in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.beam_search import Beam, BeamSearch, check_beams, width_of
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.sampling import max_tokens_of
from actorserve.http.generation.job import Job
from actorserve.http.generation.prepare import ask_completion
from actorserve.http.middleware.context import ACCOUNT
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest
from tests.http.bodies import HI, body_of
from tests.http.fakes import FakeEngine, finish_all
from tests.http.serving import SETTINGS, Served, serving

ASKING: list[tuple[str, Any]] = [
    *(("repetition_penalty", 1.1), ("frequency_penalty", 0.5), ("min_tokens", 3), ("return_token_ids", True)),
    *(("logprob_token_ids", [5]), ("prompt_logprobs", 0), ("truncate_prompt_tokens", -1)),
    ("return_hidden_states", True),
    *(("guided_json", {"type": "object"}), ("regex", "a"), ("structured_outputs", {"regex": "a"}), ("stop", ["a"])),
]


@pytest.mark.parametrize(("field", "value"), ASKING, ids=str)
def test_what_cannot_be_had_is_named(field: str, value: Any) -> None:
    request = decode(CompletionRequest, body_of(prompt="a", use_beam_search=True, **{field: value}))
    with pytest.raises(ApiError, match=f"{field} cannot be combined with use_beam_search") as refused:
        check_beams(request)
    assert refused.value.param == field


def test_a_budget_of_no_thinking_asks_for_something() -> None:
    for budget, is_refused in ((0, True), (-1, False)):
        request = decode(ChatRequest, body_of(messages=HI, use_beam_search=True, thinking_token_budget=budget))
        if is_refused:
            with pytest.raises(ApiError, match="thinking_token_budget"):
                check_beams(request)
        else:
            check_beams(request)


def test_what_changes_nothing_passes() -> None:
    plain: dict[str, Any] = {"repetition_penalty": 1, "frequency_penalty": 0, "min_tokens": 0, "stop": [], "regex": ""}
    for kind, fields in ((CompletionRequest, {"prompt": "a"}), (ChatRequest, {"messages": HI, "tools": []})):
        request = decode(kind, body_of(use_beam_search=True, n=3, logprobs=False, **fields, **plain))
        check_beams(request)
        assert width_of(request) == 3


async def test_the_priority_is_that_of_the_request(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi", "use_beam_search": True, "max_tokens": 2, "priority": -7})
    (params,) = (await served.job()).params
    assert msgspec.msgpack.decode(params, type=Generation).priority == -7
    client.leave()


async def test_who_leaves_is_charged_for_what_was_made() -> None:
    """As whoever stays; but nobody for a search that fails."""
    key = Account(0, "key", b"digest")

    @web.middleware
    async def with_key(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[ACCOUNT] = key
        return await handler(request)

    async with serving(more=[with_key]) as served:
        asked = {"prompt": "hi", "use_beam_search": True, "n": 2, "max_tokens": 4}
        client = await served.client()
        client.send("POST", "/v1/completions", asked)
        for step in range(3):  # it leaves in the third
            made = await served.job()
            if step < 2:
                for choice in made.choices:
                    choice.logprobs = [TokenLogprobs(b"x", 5, -1.0, 1, [(b"x", 5, -1.0), (b"y", 6, -2.0)])]
                finish_all(made)
                await served.release()
        assert not served.engine.charged
        client.leave()
        await served.release()
        prompt, _ = await served.engine.tokenize(TextPrompt("hi"), False)
        assert served.engine.charged == [("key", len(prompt), 4)]
        served.engine.refusal = ApiError(503, "no room")
        assert (await served.ask("POST", "/v1/completions", asked)).status == 503
        assert len(served.engine.charged) == 1


@pytest.mark.parametrize(("top", "named"), [(0, {}), (1, {}), (7, {"return_tokens_as_token_ids": True})])
async def test_logprobs_are_those_of_a_beams_tokens(served: Served, top: int, named: dict[str, Any]) -> None:
    """Without the token that ends it, which is no part of the text; and as many likely ones as are asked for."""
    asked = {"messages": HI, "use_beam_search": True, "n": 1, "max_tokens": 4, "logprobs": True, "top_logprobs": top}
    asking = asyncio.create_task(served.ask("POST", "/v1/chat/completions", asked | named))
    end = SETTINGS.end_tokens[0]
    steps = [
        [(b"x", 5, -1.0), (b"y", 6, -2.0)],
        [(b"z", 7, -0.5), (b"y", 6, -3.0)],
        [(b"", end, -0.25), (b"x", 5, -4.0)],
    ]
    for best in steps:
        made = await served.job()
        drawn = msgspec.msgpack.decode(made.params[0], type=Generation).sampling
        assert drawn.logprobs == max(2, top)
        for choice in made.choices:
            choice.logprobs = [TokenLogprobs(best[0][0], best[0][1], best[0][2], 1, best)]
        finish_all(made)
        await served.release()
    content = (await asking).json["choices"][0]["logprobs"]["content"]
    texts = ("token_id:5", "token_id:7") if named else ("x", "z")
    assert [(one["token"], one["logprob"]) for one in content] == list(zip(texts, (-1.0, -0.5), strict=True))
    assert [len(one["top_logprobs"]) for one in content] == [min(top, 2)] * 2


async def search(
    engine: FakeEngine, account: Account | None, steps: int, **fields: Any
) -> tuple[list[Job], list[Beam]]:
    """So many steps at most, of which each finds that a beam has ended and two that go on; what they asked for."""
    body = decode(CompletionRequest, body_of(prompt="a", use_beam_search=True, n=2, **fields))
    own = BeamSearch(engine, body, ask_completion(body, SETTINGS, "id"), [2], account=account)
    running = asyncio.create_task(own.run(TextPrompt("a"), max_tokens_of(body), SETTINGS.max_model_len))
    made: list[Job] = []
    while not running.done():
        asked = asyncio.ensure_future(engine.jobs.get())
        await asyncio.wait([running, asked], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            asked.cancel()
            break
        made.append(asked.result())
        assert len(made) <= steps
        told = [TokenLogprobs(b"x", 5, -1.0, 1, [(b"", 2, -3.0), (b"x", 5, -1.0), (b"y", 6, -2.0)])]
        for choice in made[-1].choices:
            choice.logprobs = told
        finish_all(made[-1])
    return made, running.result()[1]


async def test_a_key_bounds_what_a_search_may_have() -> None:
    """Its priority, too, though the search's own requests are nobody's."""
    asked = {"max_tokens": 30, "priority": -7}
    limited = Account(0, "name", b"digest", max_tokens=3, priority=4)
    made, _ = await search(FakeEngine(), limited, 3, length_penalty=9.0, **asked)
    assert len(made) == 3 and msgspec.msgpack.decode(made[0].params[0], type=Generation).priority == 4
    unlimited = msgspec.structs.replace(limited, max_tokens=None, priority=None)
    made, _ = await search(FakeEngine(), unlimited, 30, length_penalty=9.0, **asked)
    assert len(made) == 30 and msgspec.msgpack.decode(made[0].params[0], type=Generation).priority == -7


async def test_of_those_who_have_ended_the_best_are_told() -> None:
    """Of each step one: with a penalty that favours long ones the last are, without one the first."""
    _, longest = await search(FakeEngine(), None, 12, max_tokens=12, length_penalty=9.0)
    assert [(len(beam.tokens), beam.reason) for beam in longest] == [(12, "length"), (12, "length")]
    made, shortest = await search(FakeEngine(), None, 12, max_tokens=12, length_penalty=0.0)
    assert len(made) < 12 and [len(beam.tokens) for beam in shortest] == [0, 1]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/inference/v1/generate", {"sampling_params": {"use_beam_search": True}}, "sampling_params.use_beam_search"),
        ("/inference/v1/generate", {"sampling_params": {"length_penalty": 2}}, "length_penalty"),
        ("/v1/chat/completions/batch", {"use_beam_search": True}, "use_beam_search"),
        ("/v1/chat/completions/batch", {"length_penalty": 2}, "length_penalty"),
    ],
)
async def test_where_there_is_none(served: Served, path: str, body: dict[str, Any], param: str) -> None:
    prompt = {"messages": [HI]} if "chat" in path else {"token_ids": [1]}
    answer = await served.ask("POST", path, prompt | body)
    assert (answer.status, answer.error["param"]) == (400, param)
