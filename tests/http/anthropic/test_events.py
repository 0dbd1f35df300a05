"""The message, its events, why it ended, and errors; and that any process can go on with a stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorserve.http.anthropic.answers import CONTEXT_ENDED, MessageAnswer, count, usage_of
from actorserve.http.anthropic.errors import TOO_LONG, body_of, error_body
from actorserve.http.anthropic.events import MessageEvents
from actorserve.http.errors import ApiError, overloaded
from actorserve.http.output.events import Arguments, CallStart, Content, Piece, ReasoningText, merged
from tests.http.openai.responses.scripted import CALLED, KEY, SAID, THOUGHT, TWICE, USAGE, events_of, piece_lists

ANSWER = MessageAnswer(KEY, "m")
ENDS: list[tuple[str, str | int | None]] = [
    ("stop", None),
    ("stop", "END"),
    ("tool_calls", None),
    ("length", None),
    ("abort", None),
]


def whole(
    pieces: list[Piece], finish: str = "stop", stop: str | int | None = None, omit: bool = False
) -> dict[str, Any]:
    """The message, as the JSON that goes out."""
    made = MessageAnswer(KEY, "m", omit).whole(pieces, finish, stop, USAGE)
    return dict(json.loads(msgspec.json.encode(made)))


def written(pieces: list[Piece], finish: str = "stop", stop: str | int | None = None) -> list[dict[str, Any]]:
    writer = MessageEvents(ANSWER, USAGE)
    return events_of(writer.first() + writer.pieces(pieces) + writer.last([], finish, stop, USAGE))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event.get("delta", event).get("type", event["type"]) for event in events]


def test_thinking_then_text() -> None:
    events = written([*THOUGHT, *SAID])
    assert kinds(events) == [
        "message_start",
        "content_block_start",
        *["thinking_delta"] * 2,
        "signature_delta",
        "content_block_stop",
        "content_block_start",
        *["text_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    begun = events[0]["message"]
    assert (begun["id"], begun["content"], begun["stop_reason"]) == (f"msg_{KEY}", [], None)
    assert [event["index"] for event in events[1:-2]] == [0] * 5 + [1] * 5
    assert whole([*THOUGHT, *SAID])["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": f"sig_{KEY}0000"},
        {"type": "text", "text": "It is é\n2°.", "citations": []},
    ]


def test_calls() -> None:
    events = written(TWICE, "tool_calls")
    begin, delta, end = "content_block_start", "input_json_delta", "content_block_stop"
    assert kinds(events)[1:-2] == [begin, delta, delta, end, begin, delta, end]
    assert events[1]["content_block"]["input"] == {}
    assert whole(TWICE)["content"] == [
        {"type": "tool_use", "id": f"toolu_{KEY}0000", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "own-id", "name": "weather", "input": {"city": "Rome"}},
    ]


def test_nothing_said_is_no_block() -> None:
    silent: list[Piece] = [Content(""), ReasoningText("")]
    assert whole(silent)["content"] == []
    assert kinds(written(silent)) == ["message_start", "message_delta", "message_stop"]
    assert kinds(written([CallStart(0, "f"), Arguments(0, "")]))[1:-2] == ["content_block_start", "content_block_stop"]


def test_an_id_is_given_once() -> None:
    made = whole([CallStart(0, "f", "x"), CallStart(1, "f", "x"), CallStart(2, "f", "")])
    assert [block["id"] for block in made["content"]] == ["x", f"toolu_{KEY}0001", f"toolu_{KEY}0002"]


def test_of_a_call_that_was_cut_the_input_is_what_was_whole() -> None:
    cut: list[Piece] = [CallStart(0, "f"), Arguments(0, '{"a":[1,{"b":"c"}],"d":"unfin')]
    made = whole(cut, "length")
    assert made["content"][0]["input"] == {"a": [1, {"b": "c"}]} and made["stop_reason"] == "max_tokens"


def test_numbers_are_as_the_model_wrote_them() -> None:
    made = ANSWER.whole([CallStart(0, "f"), Arguments(0, '{"a":99999999999999999999,"b":1.50}')], "stop", None, USAGE)
    assert b'"input":{"a":99999999999999999999,"b":1.50}' in msgspec.json.encode(made)


@pytest.mark.parametrize(
    ("pieces", "finish", "stop", "reason", "sequence"),
    [
        (SAID, "stop", None, "end_turn", None),
        (SAID, "stop", 151645, "end_turn", None),
        (SAID, "stop", "END", "stop_sequence", "END"),
        (SAID, "length", None, "max_tokens", None),
        (SAID, CONTEXT_ENDED, None, "model_context_window_exceeded", None),
        (SAID, "abort", None, None, None),
        (SAID, "content_filter", None, "refusal", None),
        (CALLED, "tool_calls", None, "tool_use", None),
        (CALLED, "stop", None, "tool_use", None),
        (CALLED, "stop", "END", "stop_sequence", "END"),
        (CALLED, "length", None, "max_tokens", None),
    ],
)
def test_ends(pieces: list[Piece], finish: str, stop: Any, reason: str | None, sequence: str | None) -> None:
    made = whole(pieces, finish, stop)
    assert (made["stop_reason"], made["stop_sequence"]) == (reason, sequence)
    delta = written(pieces, finish, stop)[-2]
    beside = {"stop_details": None, "container": None}
    assert delta["delta"] == {"stop_reason": reason, "stop_sequence": sequence, **beside}
    assert made.items() >= beside.items()


def test_usage_has_the_names_of_this_api() -> None:
    assert whole([])["usage"] == {
        "input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 3},
        "cache_creation": {"ephemeral_1h_input_tokens": 0, "ephemeral_5m_input_tokens": 0},
        "inference_geo": None,
        "server_tool_use": None,
        "service_tier": "standard",
    }
    plain = usage_of({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3})
    assert (plain["input_tokens"], plain["cache_read_input_tokens"], plain["output_tokens"]) == (1, 0, 2)
    assert plain["output_tokens_details"] == {"thinking_tokens": 0}
    assert count(5) == {"input_tokens": 5}


def test_thinking_may_be_left_out() -> None:
    made = whole([*THOUGHT, *SAID], omit=True)
    assert made["content"][0] == {"type": "thinking", "thinking": "", "signature": f"sig_{KEY}0000"}
    writer = MessageEvents(MessageAnswer(KEY, "m", omit_thinking=True), USAGE)
    events = events_of(writer.pieces([*THOUGHT, *SAID]))
    assert kinds(events)[:4] == ["content_block_start", "signature_delta", "content_block_stop", "content_block_start"]


@pytest.mark.parametrize("between", [Content("x"), ReasoningText("x"), CallStart(1, "g")])
def test_arguments_out_of_order_are_a_parsers_fault(between: Piece) -> None:
    with pytest.raises(ValueError, match="arguments of call 0"):
        written([CallStart(0, "f"), between, Arguments(0, "{}")])
    with pytest.raises(ValueError, match="arguments of call 1"):
        written([CallStart(0, "f"), Arguments(1, "{}")])


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with neighbouring deltas as one."""
    result: list[dict[str, Any]] = []
    for event in events:
        before = result[-1] if result else {}
        if event["type"] == "content_block_delta" == before.get("type") and kinds([event]) == kinds([before]):
            (name,) = event["delta"].keys() - {"type"}
            before["delta"][name] += event["delta"][name]
        else:
            result.append(event)
    return result


@settings(max_examples=150)
@given(pieces=piece_lists(), end=st.sampled_from(ENDS), omit=st.booleans())
def test_another_writer_goes_on_anywhere(pieces: list[Piece], end: tuple[str, str | None], omit: bool) -> None:
    answer = MessageAnswer(KEY, "m", omit)
    for cut in range(len(pieces) + 1):
        first, second, third = (MessageEvents(answer, USAGE) for _ in range(3))
        first.pieces(pieces[:cut])
        tail = first.pieces(pieces[cut:]) + first.last([], *end, USAGE)
        second.skip(merged(pieces[:cut]))
        assert second.last(pieces[cut:], *end, USAGE) == tail
        third.skip(pieces[:cut])
        assert joined(events_of(third.last(merged(pieces[cut:]), *end, USAGE))) == joined(events_of(tail))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (422, "invalid_request_error"),
        (401, "authentication_error"),
        (402, "billing_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (501, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    error = {"type": "error", "error": {"type": kind, "message": "No."}}
    assert body_of(ApiError(status, "No.", "field")) == error == error_body("No.", status)
    assert body_of(ApiError(status, "No."), "req_1") == error | {"request_id": "req_1"}
    coded = body_of(ApiError(status, "No.", code="cause"))["error"]
    assert coded == {"type": kind, "message": "No.", "details": {"error_code": "cause"}}


def test_an_error_in_the_middle() -> None:
    writer = MessageEvents(ANSWER, USAGE)
    (event,) = events_of(writer.error(overloaded("Full.")))
    assert event == {"type": "error", "error": {"type": "overloaded_error", "message": "Full."}}
    (event,) = events_of(writer.error(ApiError(400, "It has 9.", "messages", TOO_LONG)))
    assert event["error"]["message"] == "prompt is too long: It has 9."
    assert event["error"]["details"] == {"error_code": TOO_LONG}
