"""Sessions of completions: when a turn takes the place of others."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.protocol.topics.prompts import TokenPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.prepare import ask_completion
from actorserve.http.openai.schemas import CompletionRequest, SessionParams
from actorserve.http.openai.sessions import Continued, OpenSessionRequest, Sessions
from tests.http.fakes import FakeEngine
from tests.http.serving import SETTINGS

OURS = "ours"


@pytest.fixture
def sessions() -> Sessions:
    made = Sessions(FakeEngine())
    made.open(OpenSessionRequest(capacity_of_str_len=4), "s", OURS)
    return made


async def go_on(sessions: Sessions, prompt: list[int], model: int = 0, **params: Any) -> Continued:
    body = CompletionRequest(prompt=list(prompt), session_params=SessionParams(id="s", **params))
    return await sessions.go_on(body, ask_completion(body, SETTINGS, "r"), OURS, model, False)


async def answered(sessions: Sessions, name: str, prompt: list[int], **params: Any) -> None:
    """A turn to its end, whose answer has one token."""
    turn = await go_on(sessions, prompt, **params)
    sessions.begun(turn, name)
    (whole,) = turn.asked.prompts
    assert isinstance(whole, TokenPrompt)
    sessions.keep(turn, name, whole.tokens, [9])


async def tokens_behind(sessions: Sessions, name: str) -> list[int]:
    (prompt,) = (await go_on(sessions, [8], rid=name)).asked.prompts
    assert isinstance(prompt, TokenPrompt)
    return prompt.tokens


async def test_a_turn_that_is_refused_takes_nobodys_place(sessions: Sessions) -> None:
    """By its length, or by what is looked at before it is begun, as limits of its key."""
    await answered(sessions, "one", [1, 2])
    with pytest.raises(ApiError, match="has 5 tokens"):
        await go_on(sessions, [1, 2, 3, 4, 5], replace=True)
    turn = await go_on(sessions, [3], replace=True)
    assert await tokens_behind(sessions, "one") == [1, 2, 9, 8]
    sessions.begun(turn, "two")
    with pytest.raises(ApiError, match="no turn 'one'"):
        await tokens_behind(sessions, "one")


async def test_what_is_being_answered_is_replaced_too(sessions: Sessions) -> None:
    slow = await go_on(sessions, [1])
    sessions.begun(slow, "slow")
    sessions.begun(await go_on(sessions, [2], replace=True), "other")
    sessions.keep(slow, "slow", [1], [9])
    with pytest.raises(ApiError, match="no turn 'slow'"):
        await tokens_behind(sessions, "slow")


async def test_a_session_is_of_the_model_of_its_first_turn(sessions: Sessions) -> None:
    await answered(sessions, "one", [1], model=1)
    with pytest.raises(ApiError, match="another model"):
        await go_on(sessions, [2], model=0)
