"""What keeps an answer from repeating a part of the text, by all names that there are for it, against transformers."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import httpx2 as httpx

from tests.support.demo_model import COUNT, HI, PROMPT, Reference, ask

REPEATING = "7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7"


def test_penalties_that_look_back_on_a_part(client: httpx.Client) -> None:
    """By the names of all who have them: on so many tokens, of which some are the prompt's."""
    reference = Reference()
    ids, last = reference.ids(REPEATING), 8
    wanted = reference.greedy(ids, 1.8, 0.5, 0.4, last)
    assert wanted != reference.greedy(ids, 1.8, 0.5, 0.4)
    penalties = {"frequency_penalty": 0.5, "presence_penalty": 0.4, "repeat_last_n": last}
    for name in ("repetition_penalty", "repeat_penalty"):
        (choice,) = ask(client, prompt=REPEATING, return_token_ids=True, **penalties, **{name: 1.8})["choices"]
        assert choice["token_ids"] == wanted
    own = {**penalties, "repeat_penalty": 1.8, "temperature": 0}
    body = {"prompt": REPEATING, "n_predict": COUNT, "ignore_eos": True, "return_tokens": True, **own}
    answer = client.post("/completion", json=body).json()
    assert answer["tokens"] == wanted and answer["generation_settings"]["repeat_last_n"] == last
    asked = {"prompt": REPEATING, "raw": True, "stream": False, "options": {"num_predict": COUNT, **own}}
    said = client.post("/api/generate", json=asked).json()["response"]
    assert said and choice["text"].startswith(said)  # an end token ends this one


def repeated(tokens: list[int], begin: int) -> list[tuple[int, int]]:
    """Pairs that end in the answer, which begins there, and have come before."""
    pairs = [*pairwise(tokens)]
    return [pair for at, pair in enumerate(pairs) if at + 1 >= begin and pair in pairs[:at]]


def test_dry(client: httpx.Client) -> None:
    """No pair comes again, of the prompt's or the answer's; behind a breaker it may."""
    body = {"prompt": PROMPT, "max_tokens": 60, "return_token_ids": True}
    dry = {"dry_multiplier": 100, "dry_allowed_length": 1, "dry_sequence_breakers": []}

    def again(**more: Any) -> list[tuple[int, int]]:
        (choice,) = ask(client, **body, **more)["choices"]
        return repeated(choice["prompt_token_ids"] + choice["token_ids"], len(choice["prompt_token_ids"]))

    assert again() == again(**{**dry, "dry_multiplier": 0}) == again(**{**dry, "dry_penalty_last_n": 0}) != []
    assert again(**dry) == []
    period = client.post("/tokenize", json={"content": "."}).json()["tokens"]
    assert {last for last, _ in again(**{**dry, "dry_sequence_breakers": ["."]})} == {*period}
    chat: dict[str, Any] = {"messages": HI, "max_tokens": 60, "return_token_ids": True}
    said = ask(client, **chat, **dry)["choices"][0]["token_ids"]
    assert repeated(said, 0) == [] != repeated(ask(client, **chat)["choices"][0]["token_ids"], 0)


def test_dry_by_llamacpps_own_path(client: httpx.Client) -> None:
    dry = {"dry_multiplier": 2, "dry_base": 1.5, "dry_allowed_length": 1, "dry_penalty_last_n": 40}
    wanted, plain = (
        ask(client, prompt=PROMPT, max_tokens=60, return_token_ids=True, **fields)["choices"][0]["token_ids"]
        for fields in (dry, {})
    )
    own = {"prompt": PROMPT, "n_predict": 60, "ignore_eos": True, "return_tokens": True, "temperature": 0, **dry}
    answer = client.post("/completion", json=own).json()
    assert answer["tokens"] == wanted != plain and answer["generation_settings"] | dry == answer["generation_settings"]
    assert client.post("/completion", json={**own, "samplers": ["temperature"]}).json()["tokens"] == plain
    error = client.post("/completion", json={**own, "dry_base": 0.5}).json()["error"]["message"]
    assert error.startswith("dry_base must be between 1 and 100")
