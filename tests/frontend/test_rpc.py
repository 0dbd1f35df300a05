"""Calls: what fails leaves nothing behind that counts as one."""

from __future__ import annotations

import asyncio

import pytest

from actorserve.actors.frontend.rpc import Calls
from actorserve.actors.protocol.messages import Message
from actorserve.actors.protocol.topics.administration import Resume
from actorserve.actors.protocol.topics.calls import Detokenize, Detokenized, Tokenize, Tokenized
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError

MOST = 2


class Renderer:
    """Which takes what it is asked, or cannot be asked."""

    def __init__(self) -> None:
        self.refuses = True
        self.asked: list[Message] = []

    def ask(self, message: Message, model: int) -> None:
        if self.refuses:
            raise ValueError("too long for its lane")
        self.asked.append(message)


async def detokenized(calls: Calls, renderer: Renderer) -> str:
    """As many calls as there may be are answered."""
    renderer.refuses, renderer.asked = False, []
    texts = asyncio.gather(*(calls.detokenize([1]) for _ in range(MOST)))
    while len(renderer.asked) < MOST and not texts.done():
        await asyncio.sleep(0)
    for message in renderer.asked:
        assert isinstance(message, Detokenize)
        calls.answer(message.call, Detokenized(message.call, "a"))
    return "".join(await texts)


async def test_a_call_that_cannot_be_made_is_none() -> None:
    renderer = Renderer()
    calls = Calls(0, 1, MOST, renderer.ask, [])
    for _ in range(MOST):
        with pytest.raises(ValueError, match="too long"):
            await calls.detokenize([1])
    assert await detokenized(calls, renderer) == "a" * MOST


async def test_an_answer_in_parts_is_joined_whoever_died_between_them() -> None:
    """A renderer's successor says all of it again."""
    renderer = Renderer()
    calls = Calls(0, 1, MOST, renderer.ask, [])
    renderer.refuses = False
    asked = asyncio.ensure_future(calls.pooled_ids(TextPrompt("long"), "input", 9))
    while not (renderer.asked or asked.done()):
        await asyncio.sleep(0)
    (message,) = renderer.asked
    assert isinstance(message, Tokenize) and message.pools == 9
    for start, more in ((0, True), (2, True), (0, True), (2, True), (4, False)):
        assert not asked.done()
        calls.answer(message.call, Tokenized(message.call, [start, start + 1], start=start, more=more))
    assert await asked == [0, 1, 2, 3, 4, 5]
    assert await detokenized(calls, renderer) == "a" * MOST


async def test_engines_that_were_asked_in_vain_cost_no_call() -> None:
    """One more than there may be are asked; what the others answer counts no more."""
    renderer, asked = Renderer(), list[Message]()
    calls = Calls(0, 1, MOST, renderer.ask, [asked.append] * (MOST + 1))
    with pytest.raises(ApiError, match="as many calls"):
        await calls.resume()
    assert len(asked) == MOST
    for message in asked:
        assert isinstance(message, Resume)
        calls.answer(message.call, message)
    await asyncio.sleep(0)
    assert await detokenized(calls, renderer) == "a" * MOST
