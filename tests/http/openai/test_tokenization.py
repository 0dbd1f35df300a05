"""Texts to tokens and back, as vLLM, llama.cpp, SGLang and Cohere ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.openai.tokenization import MOST_TEXTS
from tests.http.serving import Served, serving


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running


async def test_a_text_and_several(served: Served) -> None:
    """The fake engine answers with the same two tokens."""
    one = {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}
    assert (await served.ask("POST", "/tokenize", {"prompt": "a"})).json == one
    several = {"count": [2, 2], "max_model_len": 64, "tokens": [[1, 2], [1, 2]], "token_strs": [None, None]}
    assert (await served.ask("POST", "/v1/tokenize", {"prompt": ["a", "b"]})).json == several
    assert served.engine.asked == [TextPrompt("a", True), TextPrompt("a", True), TextPrompt("b", True)]


@pytest.mark.parametrize("path", ["/v1/tokenize", "/cohere/v1/tokenize", "/tokenize"])
async def test_coheres(served: Served, path: str) -> None:
    """Its tokens are those of the text alone."""
    answer = (await served.ask("POST", path, {"text": "a", "model": "tiny"})).json
    assert (answer["tokens"], answer["token_strings"]) == ([1, 2], ["a", "b"])
    assert served.engine.asked == [TextPrompt("a", False)]


async def test_pieces_are_what_tokens_are_by_themselves(served: Served) -> None:
    """A part of a character is no text: it is told by its bytes, as llama.cpp has it."""
    answer = (await served.ask("POST", "/tokenize", {"content": "a", "with_pieces": True})).json
    assert answer["tokens"] == [{"id": 1, "piece": " a"}, {"id": 2, "piece": [0xC3]}]


@pytest.mark.parametrize("path", ["/v1/detokenize", "/cohere/v1/detokenize", "/detokenize"])
async def test_texts_of_tokens(served: Served, path: str) -> None:
    names = ("prompt", "content", "text")
    assert (await served.ask("POST", path, {"tokens": [1, 2]})).json == dict.fromkeys(names, "text")
    several = (await served.ask("POST", path, {"tokens": [[1, 2], [3]]})).json
    assert several == {name: ["text", "text"] for name in names}
    assert served.engine.asked == [[1, 2], [1, 2], [3]]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "text": "b"}, "prompt"),
        ("/tokenize", {"prompt": []}, "prompt"),
        ("/tokenize", {"prompt": ["a"] * (MOST_TEXTS + 1)}, "prompt"),
        ("/tokenize", {"content": "a", "parse_special": False}, "parse_special"),
        ("/detokenize", {"tokens": [1, [2]]}, "tokens"),
        ("/detokenize", {"tokens": [[1]] * (MOST_TEXTS + 1)}, "tokens"),
        ("/detokenize", {"tokens": [[1], [-1]]}, "tokens"),
    ],
)
async def test_what_cannot_be(served: Served, path: str, body: dict[str, Any], field: str) -> None:
    answer = await served.ask("POST", path, body)
    assert (answer.status, answer.error["param"]) == (400, field)
    assert served.engine.asked == []


async def test_errors_are_the_apis(served: Served) -> None:
    answer = await served.ask("POST", "/cohere/v1/tokenize", {})
    assert answer.status == 400 and answer.json.keys() == {"id", "message"}
