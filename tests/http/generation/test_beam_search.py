"""What goes with beam search: the rest is refused by its name, and not dropped in silence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation
from actorserve.http.errors import ApiError
from actorserve.http.generation.beam_search import check_beams, width_of
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest
from tests.http.bodies import HI, body_of
from tests.http.serving import Served

ASKING: list[tuple[str, Any]] = [
    *(("repetition_penalty", 1.1), ("frequency_penalty", 0.5), ("min_tokens", 3), ("return_token_ids", True)),
    *(("logprobs", 0), ("logprobs", 2), ("prompt_logprobs", 0), ("truncate_prompt_tokens", -1)),
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
