"""Chunks of which the client brings back what was told, before an engine that the test plays."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.choice import Choice
from actorserve.http.openai.derendering import AT_A_TIME, StreamState, replay
from tests.http.output.turns import OthersTurns
from tests.http.serving import HI, Served, serving

WORDS = {5: "<think>", 6: " Paris", 7: " is"}  # a text's first space is left out, as by SentencePiece


async def detokenize(tokens: list[int], skip_special: bool = False) -> str:
    return "".join(WORDS[token] for token in tokens).removeprefix(" ")


@pytest.mark.parametrize(
    ("path", "request_", "field"),
    [
        ("/v1/completions", {"completion_request": {}}, "text"),
        ("/v1/chat/completions", {"chat_request": {"messages": HI}}, "reasoning"),
    ],
)
async def test_a_prompt_that_is_told_beside_the_first_chunk_alone(
    path: str, request_: dict[str, Any], field: str
) -> None:
    """As engines do it: behind it a first word has its space, and it says that the answer begins in thinking."""
    async with serving(reasoning_parser="qwen3") as served:
        served.engine.detokenize = detokenize  # type: ignore[method-assign]
        state, told = None, []
        for token, prompt in ((6, [7, 7, 7, 7, 7, 5, 7]), (7, None), (6, None)):
            chunk = {"choices": [{"token_ids": [token]}], "prompt_token_ids": prompt}
            body = {"stream": True, "generate_chunk": chunk, "stream_state": state, **request_}
            answer = (await served.ask("POST", f"{path}/derender", body)).json
            state, (choice,) = answer["stream_state"], answer["chunk"]["choices"]
            told.append(choice.get("delta", choice)[field])
        assert told == [" Paris", " is", " Paris"]


@pytest.mark.parametrize(("reason", "told"), [("abort", "abort"), ("length", "length"), ("stop", None), (None, None)])
@pytest.mark.parametrize(
    ("path", "answers"), [("/v1/chat/completions", "generate_response"), ("/v1/completions", "generate_responses")]
)
async def test_an_answer_that_ended_before_its_first_token(
    served: Served, path: str, answers: str, reason: str | None, told: str | None
) -> None:
    """A text that has come to its end has the token that says so."""
    given: dict[str, Any] = {"choices": [{"token_ids": [], "finish_reason": reason}]}
    answer = await served.ask("POST", f"{path}/derender", {answers: [given] if answers.endswith("s") else given})
    if told is None:
        assert answer.status == 400 and "token_ids of choice 0 must not be empty" in answer.error["message"]
    else:
        (choice,) = answer.json["choices"]
        assert choice["finish_reason"] == told and not choice.get("message", {"content": choice.get("text")})["content"]


async def test_others_have_a_turn_while_parts_are_read_again() -> None:
    many = 3 * AT_A_TIME
    state = StreamState(token_ids=[5] * many, parts=[1] * many)
    with OthersTurns() as turns:
        assert await replay(Choice(0), state, "a" * many + "news") == "news"
    assert turns.count == 3


async def test_parts_of_no_token_are_refused() -> None:
    """But one: the end tells what is left of a character."""
    assert await replay(Choice(0), StreamState(token_ids=[5], parts=[1, 1]), "ab") == ""
    with pytest.raises(ApiError, match="parts has 3 items for 1 token_ids"):
        await replay(Choice(0), StreamState(token_ids=[5], parts=[0, 0, 0]), "")
