"""Logprobs of prompts as JSON, which of a long one is written in turns."""

from __future__ import annotations

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.http.generation.logprobs import ENTRIES, LOWEST, prompt_logprobs
from actorserve.http.output.turns import Turns
from tests.http.output.turns import OthersTurns


async def test_each_token_has_its_own_and_the_likeliest() -> None:
    likely = TokenLogprobs(b"b", 7, float("-inf"), 3, [(b"\xc3", 9, -0.5), (b"a", 8, -1.0)])
    told = msgspec.json.decode(await prompt_logprobs({2: likely}, 3, Turns(ENTRIES)))
    assert told == [
        *(None, None),  # the first follows nothing, and the second was cut short
        {
            "7": {"logprob": LOWEST, "rank": 3, "decoded_token": "b"},
            "9": {"logprob": -0.5, "rank": 1, "decoded_token": "\ufffd"},
            "8": {"logprob": -1.0, "rank": 2, "decoded_token": "a"},
        },
    ]


async def test_others_have_a_turn_meanwhile() -> None:
    """In many short prompts as in a long one."""
    shared = Turns(ENTRIES)
    one = TokenLogprobs(b"a", 7, -1.0, 1, [(b"a", 7, -1.0)] * (ENTRIES // 2 - 1))
    with OthersTurns() as others:
        for length in (9, *[2] * 8):  # each token but a prompt's first is half of a turn
            await prompt_logprobs(dict.fromkeys(range(1, length), one), length, shared)
    assert others.count == 8
