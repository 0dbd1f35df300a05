"""Thinking that a client keeps in an opaque form: what it is given, and that it comes back as if it had been stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorserve.http.errors import ApiError
from actorserve.http.openai.responses.answers import answer_to
from actorserve.http.openai.responses.encrypted import Purpose, decrypted, encrypted
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.requests import ENCRYPTED, to_chat
from actorserve.http.output.events import Piece
from tests.http.openai.responses.scripted import CALLED, KEY, SAID, THOUGHT, USAGE, events_of
from tests.http.openai.responses.test_requests import request_of

SEALED = encrypted("reasoning", "Let me see.")
PLACE = "input[1].encrypted_content"


@given(st.text(), st.sampled_from(["reasoning", "compaction"]))
def test_a_text_comes_back_as_it_was(text: str, purpose: Purpose) -> None:
    sealed = encrypted(purpose, text)
    assert decrypted(purpose, sealed, PLACE) == text and sealed.isascii()


CHANGED = [SEALED[:at] + ("B" if SEALED[at] != "B" else "C") + SEALED[at + 1 :] for at in range(len(SEALED) - 3)]
FOREIGN = [
    "",
    "abc",
    "gAAAAABpM0Yj-secret=",
    "as1_",
    "as1_é",
    SEALED[:-4],
    SEALED + "AAAA",
    SEALED.removeprefix("as1_"),
]


@pytest.mark.parametrize("content", [*CHANGED, *FOREIGN, encrypted("compaction", "Let me see.")])
def test_what_was_changed_or_is_of_others_is_refused_with_its_place(content: str) -> None:
    hello = {"role": "user", "content": "hello"}
    with pytest.raises(ApiError) as raised:
        to_chat(request_of(input=[hello, {"type": "reasoning", "summary": [], "encrypted_content": content}]))
    assert (raised.value.status, raised.value.param) == (400, PLACE)
    assert raised.value.code == "invalid_encrypted_content" and PLACE in raised.value.message


def answered(pieces: list[Piece], **fields: Any) -> list[dict[str, Any]]:
    """The items of the whole answer, which a stream and whoever goes on with it give, too."""
    answer = answer_to(request_of(**fields), KEY, "m", 1, {})
    whole = answer.whole(pieces, "stop", USAGE, 2)["output"]
    for cut in range(len(pieces) + 1):
        first, second = ResponseEvents(answer), ResponseEvents(answer)
        data = first.first() + first.pieces(pieces[:cut])
        second.sequence = first.sequence
        second.skip(pieces[:cut])
        data += second.pieces(pieces[cut:]) + second.last([], "stop", USAGE, 2)
        events = events_of(data)
        assert events[-1]["response"]["output"] == whole
        assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == whole
    return list(whole)


@pytest.mark.parametrize("reasoning", [{}, {"summary": "auto"}])
def test_thinking_is_given_so_to_those_who_ask_for_it(reasoning: dict[str, Any]) -> None:
    plain = answered(THOUGHT + SAID, reasoning=reasoning)
    assert plain[0]["encrypted_content"] is None
    asked = answered(THOUGHT + SAID, reasoning=reasoning, include=[ENCRYPTED], store=False)
    assert asked == [{**plain[0], "encrypted_content": SEALED}, plain[1]]


@pytest.mark.parametrize("kept", [("id", "content"), ("content", "summary"), ("id",)], ids=str)
def test_what_is_sent_back_is_as_if_it_had_been_stored(kept: tuple[str, ...]) -> None:
    """Codex leaves out the content, others say all of it again."""
    items = answered(THOUGHT + CALLED, include=[ENCRYPTED])
    result = {"type": "function_call_output", "call_id": items[1]["call_id"], "output": "7"}
    stored = to_chat(
        request_of(input=[result], previous_response_id="resp_1"), [{"role": "user", "content": "?"}, *items]
    )
    sent = {"summary": []} | {name: items[0][name] for name in ("type", "encrypted_content", *kept)}
    again = to_chat(request_of(input=[{"role": "user", "content": "?"}, sent, items[1], result], store=False))
    assert again["messages"] == stored["messages"]
    assert again["messages"][1]["reasoning_content"] == "Let me see."


def test_an_item_that_has_only_begun_holds_nothing_of_it() -> None:
    answer = answer_to(request_of(include=[ENCRYPTED]), KEY, "m", 1, {})
    (item,) = answer.output(THOUGHT).items
    assert item.object("in_progress", begun=True)["encrypted_content"] is None
    assert replace(item).object("incomplete")["encrypted_content"] == SEALED
