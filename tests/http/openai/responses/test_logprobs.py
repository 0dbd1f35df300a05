"""Tokens of messages and their logprobs: each text has its own, however the answer is cut."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

import pytest

from actorserve.actors.protocol.messages import Finish, TokenLogprobs
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.items import OutputItems
from actorserve.http.openai.responses.logprobs import TextTokens
from actorserve.http.output.events import Arguments, CallStart, Content, Piece, ReasoningText
from tests.http.fakes import rendered, say
from tests.http.openai.responses.scripted import KEY, USAGE, events_of
from tests.http.openai.responses.test_requests import chat
from tests.http.serving import Served

ANSWER = ResponseAnswer(KEY, "m", 1, {})


def told(*texts: str | bytes) -> list[TokenLogprobs]:
    """Tokens of these texts, whose ids are their places."""
    return [
        TokenLogprobs(text.encode() if isinstance(text, str) else text, number, -number / 4, 1, [(b"x", 99, -0.5)])
        for number, text in enumerate(texts)
    ]


def ids(tokens: list[TokenLogprobs]) -> list[int]:
    return [one.id for one in tokens]


def test_each_text_has_its_tokens() -> None:
    tokens = TextTokens()
    tokens.add_tokens(told("<think>", "hm", "</think>", "\n", "It", " is", " so", "<", "tool>", "!"))
    assert ids(tokens.take("hm")) == [1]
    assert ids(tokens.take("It is")) == [4, 5], "what is markup is nobody's"
    assert ids(tokens.take(" so")) == [6]
    assert ids(tokens.take("!")) == [9]
    assert tokens.take("more") == []


def test_a_token_over_two_texts_is_the_first_ones() -> None:
    tokens = TextTokens()
    tokens.add_tokens(told("ab<c", "de", "f"))
    assert ids(tokens.take("ab")) == [0]
    assert ids(tokens.take("<")) == []
    assert ids(tokens.take("cd")) == [1]
    assert ids(tokens.take("ef")) == [2]


def test_a_character_may_have_several_tokens() -> None:
    tokens = TextTokens()
    tokens.add_tokens(told("a", *(bytes([byte]) for byte in "🦊".encode()), "b"))
    assert ids(tokens.take("a🦊")) == [0, 1, 2, 3, 4]
    assert ids(tokens.take("b")) == [5]


def test_what_cannot_be_found_has_none() -> None:
    """Half a character, which a client is given as U+FFFD."""
    tokens = TextTokens()
    tokens.add_tokens(told("a", b"\xf0", "b"))
    assert tokens.take("\ufffd") == [] and ids(tokens.take("b")) == [2]


class Counted:
    """A token that counts how often its text is read."""

    def __init__(self, text: bytes, reads: list[int]) -> None:
        self._text, self._reads = text, reads

    @property
    def text(self) -> bytes:
        self._reads[0] += 1
        return self._text


def test_what_waits_is_not_read_for_each_text() -> None:
    """All tokens may be there before the first text, as where an answer is told again."""
    reads, tokens, count = [0], TextTokens(), 500
    tokens.add_tokens(cast(TokenLogprobs, Counted(b"word", reads)) for _ in range(count))
    assert sum(len(tokens.take("word")) for _ in range(count)) == count
    assert reads[0] <= 4 * count


PIECES: list[Piece] = [
    ReasoningText("hm, so"),
    Content("It is "),
    Content("é\n2°."),
    CallStart(0, "now"),
    Arguments(0, '{"a": 1}'),
    Content("Done"),
]
TEXTS = (
    "<think>",
    "hm",
    ", so",
    "</think>",
    "It",
    " is ",
    "é\n2",
    "°.",
    "<call>now",
    '{"a"',
    ": 1}",
    "</call>",
    "Done",
)


def of_message(number: int) -> list[int]:
    return [[4, 5, 6, 7], [12]][number]


def test_they_are_the_same_streamed_and_whole() -> None:
    whole = ANSWER.whole(PIECES, "stop", USAGE, 2, told(*TEXTS))
    said = [item["content"][0] for item in whole["output"] if item["type"] == "message"]
    assert [[entry["token"] for entry in part["logprobs"]] for part in said] == [
        [TEXTS[number] for number in of_message(index)] for index in range(2)
    ]
    assert said[0]["logprobs"][1] == {
        "token": " is ",
        "logprob": -1.25,
        "bytes": list(b" is "),
        "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]}],
    }
    writer = ResponseEvents(ANSWER)
    writer.add_tokens(told(*TEXTS))
    events = events_of(writer.first() + writer.pieces(PIECES) + writer.last([], "stop", USAGE, 2))
    assert events[-1]["response"] == whole
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [2, 2, 1]
    done = [event for event in events if event["type"] == "response.output_text.done"]
    assert [event["logprobs"] for event in done] == [part["logprobs"] for part in said]
    begun = [event["part"] for event in events if event["type"] == "response.content_part.added"]
    assert all(part.get("logprobs", []) == [] for part in begun)


def test_cuts_make_no_difference() -> None:
    """Text is never told before its tokens; how much of both comes at a time is chance."""
    whole = OutputItems(KEY, PIECES, told(*TEXTS)).objects("completed")
    dice = random.Random(5)
    for _ in range(200):
        output, tokens, at = OutputItems(KEY), told(*TEXTS), 0
        for piece, needed in zip(PIECES, (3, 6, 8, 9, 11, 13), strict=True):
            more = dice.randint(max(at, needed), len(tokens))
            output.add_tokens(tokens[at:more])
            at = more
            parts: list[Piece] = [piece]
            if isinstance(piece, Content):
                cut = dice.randint(0, len(piece.text))
                parts = [Content(piece.text[:cut]), Content(piece.text[cut:])]
            for part in parts:
                output.add(part)
        assert output.objects("completed") == whole


def test_they_are_told_where_they_are_asked_for() -> None:
    included = {"include": ["message.output_text.logprobs"]}
    assert chat(**included).items() >= {"logprobs": True, "top_logprobs": 0}.items()
    assert chat(top_logprobs=3, **included)["top_logprobs"] == 3
    assert "logprobs" not in chat(top_logprobs=3) and "top_logprobs" not in chat(top_logprobs=3)


@pytest.mark.parametrize("stream", [False, True])
async def test_over_a_socket(served: Served, stream: bool) -> None:
    client = await served.client()
    fields: dict[str, Any] = {"input": "hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    client.send("POST", "/v1/responses", {**fields, "stream": stream})
    job = await served.job()
    rendered(job)
    first, second, end = told("He", "llo", "")
    say(job, 0, "He", 1, logprobs=[first])
    say(job, 0, "llo", 3, Finish.STOP, logprobs=[second, end])
    answer = await client.answer()
    whole = events_of(answer.body)[-1]["response"] if stream else answer.json
    assert [entry["token"] for entry in whole["output"][0]["content"][0]["logprobs"]] == ["He", "llo"]
    assert whole["top_logprobs"] == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_model_read_and_wrote_is_told_as_tokens(served: Served, stream: bool) -> None:
    """Also of what a parser reads as thinking, and of what a stream has told before."""
    asked = {"input": "hi", "enable_response_messages": True, "stream": stream}
    asking = asyncio.create_task(served.ask("POST", "/v1/responses", asked))
    job = await served.job()
    assert job.wants_ids
    (choice,) = job.choices
    choice.prompt_ids = [4, 5]
    rendered(job, 2)
    for text, token, finish in (("Hel", 7, 0), ("lo", 8, 0), ("", 2, Finish.STOP)):
        choice.ids.append(token)
        say(job, 0, text, choice.tokens + 1, finish)
    answer = await asking
    body = events_of(answer.body)[-1]["response"] if stream else answer.json
    assert body["input_messages"] == [{"type": "raw_message_tokens", "message": "text", "tokens": [4, 5]}]
    assert body["output_messages"] == [{"type": "raw_message_tokens", "message": "Hello", "tokens": [7, 8, 2]}]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("", {"background": True}),
        ("", {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}),
        ("/compact", {}),
    ],
)
async def test_tokens_are_those_of_one_answer(served: Served, path: str, fields: dict[str, Any]) -> None:
    body = {"input": "hi", "enable_response_messages": True, **fields}
    answer = await served.ask("POST", f"/v1/responses{path}", body)
    assert (answer.status, answer.error["param"]) == (400, "enable_response_messages")
