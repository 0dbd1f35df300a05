"""Sessions of completions: when a turn takes the place of others."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import TokenPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.http.generation.prepare import ask_completion
from actorserve.http.openai.completions import CompletionAnswer
from actorserve.http.openai.schemas import CompletionRequest, SessionParams
from actorserve.http.openai.session_turns import TurnFormat
from actorserve.http.openai.sessions import Continued, OpenSessionRequest, Sessions
from actorserve.http.output.answer import Answer
from tests.http.fakes import FakeEngine, rendered, say
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
    sessions.started(turn, name, sessions.begun(turn, name))
    (whole,) = turn.asked.prompts
    assert isinstance(whole, TokenPrompt)
    sessions.keep(turn, name, whole.tokens, [9])


async def tokens_behind(sessions: Sessions, name: str) -> list[int]:
    (prompt,) = (await go_on(sessions, [8], rid=name)).asked.prompts
    assert isinstance(prompt, TokenPrompt)
    return prompt.tokens


async def test_no_jump_of_the_clock_ends_or_prolongs_a_session(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await answered(sessions, "one", [1, 2])
    now, unix = time.monotonic(), time.time()
    monkeypatch.setattr(time, "time", lambda: unix + 1e6)
    assert await tokens_behind(sessions, "one") == [1, 2, 9, 8]
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    with pytest.raises(ApiError, match="no session 's' is open"):
        await tokens_behind(sessions, "one")


async def test_a_turn_that_is_refused_takes_nobodys_place(sessions: Sessions) -> None:
    """By its length, or by what is looked at before it is begun, as limits of its key."""
    await answered(sessions, "one", [1, 2])
    with pytest.raises(ApiError, match="has 5 tokens"):
        await go_on(sessions, [1, 2, 3, 4, 5], replace=True)
    turn = await go_on(sessions, [3], replace=True)
    assert await tokens_behind(sessions, "one") == [1, 2, 9, 8]
    stood = sessions.begun(turn, "two")
    assert await tokens_behind(sessions, "one") == [1, 2, 9, 8], "a renderer may refuse it"
    sessions.started(turn, "two", stood)
    with pytest.raises(ApiError, match="no turn 'one'"):
        await tokens_behind(sessions, "one")


async def test_what_is_being_answered_is_replaced_too(sessions: Sessions) -> None:
    slow = await go_on(sessions, [1])
    sessions.begun(slow, "slow")
    other = await go_on(sessions, [2], replace=True)
    stood = sessions.begun(other, "other")
    await answered(sessions, "later", [3])
    sessions.started(other, "other", stood)
    assert await tokens_behind(sessions, "later") == [3, 9, 8], "it was begun behind that which replaces others"
    sessions.keep(slow, "slow", [1], [9])
    with pytest.raises(ApiError, match="no turn 'slow'"):
        await tokens_behind(sessions, "slow")


async def test_a_session_is_of_the_model_of_its_first_turn(sessions: Sessions) -> None:
    await answered(sessions, "one", [1], model=1)
    with pytest.raises(ApiError, match="another model"):
        await go_on(sessions, [2], model=0)


def form_of(sessions: Sessions, turn: Continued, job: Job, name: str) -> TurnFormat:
    return TurnFormat(CompletionAnswer(Answer("tiny", False, 0, 0), job), job, sessions, turn, name)


async def test_what_a_renderer_refuses_replaces_nothing(sessions: Sessions) -> None:
    await answered(sessions, "one", [1])
    turn = await go_on(sessions, [2], replace=True)
    job = turn.asked.new_job()
    form_of(sessions, turn, job, "refused")
    job.fail(ApiError(400, "prompt: it is too long."))
    await asyncio.sleep(0)
    assert await tokens_behind(sessions, "one") == [1, 9, 8]


@pytest.mark.parametrize("ends", [False, True])
async def test_what_has_begun_replaces_others(sessions: Sessions, ends: bool) -> None:
    """Also where its end comes with its first token."""
    await answered(sessions, "one", [1])
    turn = await go_on(sessions, [2], replace=True)
    job = turn.asked.new_job()
    form = form_of(sessions, turn, job, "two")
    rendered(job)
    job.choices[0].prompt_ids = [2]
    say(job, 0, "a", 1, Finish.STOP if ends else 0)
    job.choices[0].ids = [7]
    form.update(job.choices[0])
    with pytest.raises(ApiError, match="no turn 'one'"):
        await tokens_behind(sessions, "one")
    assert not ends or await tokens_behind(sessions, "two") == [2, 7, 8]
