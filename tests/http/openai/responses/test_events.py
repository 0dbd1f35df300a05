"""The events of a stream: their order, what they add up to, and that any process can go on with them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.openai.responses.answers import ResponseAnswer
from actorserve.http.openai.responses.events import ResponseEvents
from actorserve.http.openai.responses.requests import wanted
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.output.answer import PADDED
from actorserve.http.output.events import Arguments, CallStart, Content, Piece, ReasoningText, merged
from tests.http.openai.responses.scripted import CALLED, KEY, SAID, THOUGHT, TWICE, USAGE, events_of, piece_lists

ANSWER = ResponseAnswer(
    KEY, "m", 1_700_000_000, {"metadata": {"a": "b"}, "previous_response_id": None, "background": False}
)
FINISHES = ["stop", "tool_calls", "length", "content_filter", "abort"]
END = 1_700_000_009


def written(pieces: list[Piece], finish: str = "stop") -> list[dict[str, Any]]:
    writer = ResponseEvents(ANSWER)
    return events_of(writer.first() + writer.pieces(pieces) + writer.last([], finish, USAGE, END))


def test_a_call_of_a_tool_in_a_namespace_has_both_names() -> None:
    """As the client offered it, whole and streamed, and by whoever goes on."""
    tools = [{"type": "namespace", "name": "mcp__a__", "tools": [{"type": "function", "name": "b"}]}]
    answer = ResponseAnswer(KEY, "m", 1, {**ANSWER.echo, "tools": [{"type": "function", "name": "c"}, *tools]})
    pieces: list[Piece] = []
    for index, name in enumerate(("mcp__a__b", "c", "mcp__a__c")):
        pieces += [CallStart(index, name), Arguments(index, "{}")]
    expected = [("mcp__a__", "b"), (None, "c"), (None, "mcp__a__c")]
    whole = answer.whole(pieces, "tool_calls", USAGE, END)["output"]
    assert [(item.get("namespace"), item["name"]) for item in whole] == expected
    writer, other = ResponseEvents(answer), ResponseEvents(answer)
    data = writer.first() + writer.pieces(pieces)
    other.skip(pieces)
    events = events_of(data + other.last([], "tool_calls", USAGE, END))
    items = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [(item.get("namespace"), item["name"]) for item in items] == expected
    assert events[-1]["response"]["output"] == whole
    assert [event["name"] for event in events if event["type"].endswith("arguments.done")] == ["b", "c", "mcp__a__c"]


def test_thinking_is_told_as_the_summary_that_is_asked_for() -> None:
    """Clients that ask for one look nowhere else. Whole and streamed, and by whoever goes on."""
    answer = replace(ANSWER, echo={**ANSWER.echo, "reasoning": {"effort": None, "summary": "auto"}})
    pieces = [*THOUGHT, *SAID]
    writer, other = ResponseEvents(answer), ResponseEvents(answer)
    data = writer.first() + writer.pieces(pieces[:1])
    other.skip(pieces[:1])
    other.sequence = writer.sequence
    events = events_of(data + other.pieces(pieces[1:]) + other.last([], "stop", USAGE, END))
    part = "reasoning_summary_part"
    assert [kind for kind in kinds(events) if kind.startswith("reasoning")] == [
        f"{part}.added",
        *["reasoning_summary_text.delta"] * len(THOUGHT),
        "reasoning_summary_text.done",
        f"{part}.done",
    ]
    assert all(event["summary_index"] == 0 for event in events if "reasoning" in event["type"])
    said = "".join(event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta")
    thought, answered = answer.whole(pieces, "stop", USAGE, END)["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": said}] and thought["content"] == []
    assert events[-1]["response"]["output"] == [thought, answered] and answered["content"][0]["text"]
    assert len(events) == len(written(pieces)), "whoever counts them need not know which they are"


def test_the_length_of_a_delta_need_not_tell_that_of_its_text() -> None:
    texts = ["a", "bcd", "e" * 40]
    asked = decode(ResponsesRequest, b'{"input":"a","stream":true,"stream_options":{"include_obfuscation":true}}')
    answer = replace(ANSWER, wants=wanted(asked))
    deltas = events_of(ResponseEvents(answer).pieces([Content(text) for text in texts]))
    sizes = [len(one["delta"] + one["obfuscation"]) % PADDED for one in deltas if one["type"].endswith(".delta")]
    assert len(sizes) == len(texts) and len(set(sizes)) == 1


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def told(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that the deltas say, checked against all that events say of whole texts and items."""
    items: list[dict[str, Any]] = []
    is_open: set[int] = set()
    for event in events:
        kind = event["type"].removeprefix("response.")
        item = items[event["output_index"]] if event.get("output_index", len(items)) < len(items) else {}
        assert kind == "output_item.added" or "output_index" not in event or event["output_index"] in is_open
        assert event.get("item_id", item.get("id")) == item.get("id")
        match kind:
            case "output_item.added":
                assert event["output_index"] == len(items) and not is_open
                assert event["item"]["status"] == "in_progress"
                is_open.add(len(items))
                items.append(event["item"])
            case "content_part.added":
                assert event["content_index"] == len(item["content"])
                item["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                assert event["delta"] and item["content"][0]["type"] == kind.removesuffix(".delta")
                item["content"][event["content_index"]]["text"] += event["delta"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "output_text.done" | "reasoning_text.done":
                assert item["content"][event["content_index"]]["text"] == event["text"]
            case "content_part.done":
                assert item["content"][event["content_index"]] == event["part"]
            case "function_call_arguments.done":
                assert (item["arguments"], item["name"]) == (event["arguments"], event["name"])
            case "output_item.done":
                is_open.remove(event["output_index"])
                assert event["item"] == item | {"status": event["item"]["status"]}
                item["status"] = event["item"]["status"]
            case _:
                assert kind in ("created", "in_progress", "completed", "incomplete")
    assert not is_open
    return items


def test_thinking_then_text() -> None:
    events = written([*THOUGHT, *SAID])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["response"] == events[1]["response"]
    begun = events[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"], begun["metadata"]) == (
        "in_progress",
        [],
        None,
        {"a": "b"},
    )


def test_calls() -> None:
    events = written(TWICE, "tool_calls")
    one = ["output_item.added", *["function_call_arguments.delta"] * 2]
    end = ["function_call_arguments.done", "output_item.done"]
    assert kinds(events)[2:-1] == [*one, *end, *one[:2], *end]
    assert "content_index" not in events[3]
    first, second = events[-1]["response"]["output"]
    assert first == {
        "id": f"fc_{KEY}0000",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{KEY}0000",
        "name": "weather",
        "arguments": '{"city":"Oslo"}',
    }
    assert second["call_id"] == "own-id"


def test_an_id_is_given_once() -> None:
    whole = ANSWER.whole([CallStart(0, "f", "x"), CallStart(1, "f", "x"), CallStart(2, "f", "")], "stop", USAGE, END)
    assert [item["call_id"] for item in whole["output"]] == ["x", f"call_{KEY}0001", f"call_{KEY}0002"]


@pytest.mark.parametrize(
    ("finish", "status", "reason", "event"),
    [
        ("stop", "completed", None, "completed"),
        ("tool_calls", "completed", None, "completed"),
        ("length", "incomplete", "max_output_tokens", "incomplete"),
        ("content_filter", "incomplete", "content_filter", "incomplete"),
        ("abort", "cancelled", None, "incomplete"),
    ],
)
def test_ends(finish: str, status: str, reason: str | None, event: str) -> None:
    events = written([*THOUGHT, *CALLED[:2]], finish)
    whole = events[-1]["response"]
    assert kinds(events)[-1] == event and whole["status"] == status
    assert whole["incomplete_details"] == (None if reason is None else {"reason": reason})
    assert whole["completed_at"] == (END if status == "completed" else None)
    last = "completed" if status == "completed" else "incomplete"
    assert [item["status"] for item in whole["output"]] == ["completed", last]
    assert events[-2]["item"]["status"] == last


def test_usage_has_the_names_of_this_api() -> None:
    assert ANSWER.whole([], "stop", USAGE, END)["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 18,
    }
    plain = ANSWER.whole([], "stop", {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}, END)["usage"]
    assert plain["input_tokens_details"]["cached_tokens"] == plain["output_tokens_details"]["reasoning_tokens"] == 0


def test_a_failure_says_what_there_was() -> None:
    writer = ResponseEvents(ANSWER)
    events = events_of(writer.first() + writer.pieces(SAID) + writer.error(ApiError(500, "It broke.")))
    failed = events[-1]["response"]
    assert kinds(events)[-1] == "failed" and failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": "It broke."}
    assert failed["output"][0]["status"] == "incomplete" and events[-1]["sequence_number"] == len(events) - 1
    codes = {status: ANSWER.failed(writer._output, "", status)["error"]["code"] for status in (400, 422, 429, 503)}
    assert codes == {400: "invalid_prompt", 422: "invalid_prompt", 429: "rate_limit_exceeded", 503: "server_error"}


def test_a_snapshot_shows_what_is_there() -> None:
    writer = ResponseEvents(ANSWER)
    writer.pieces([*THOUGHT, *SAID])
    shown = writer.snapshot()
    assert shown["status"] == "in_progress"
    assert [item["status"] for item in shown["output"]] == ["completed", "in_progress"]


@pytest.mark.parametrize("between", [Content("x"), ReasoningText("x"), CallStart(1, "g")])
def test_arguments_out_of_order_are_a_parsers_fault(between: Piece) -> None:
    with pytest.raises(ValueError, match="arguments of call 0"):
        written([CallStart(0, "f"), between, Arguments(0, "{}")])
    with pytest.raises(ValueError, match="arguments of call 1"):
        written([CallStart(0, "f"), Arguments(1, "{}")])


@settings(max_examples=150)
@given(pieces=piece_lists(), finish=st.sampled_from(FINISHES))
def test_events_add_up_to_the_whole_answer(pieces: list[Piece], finish: str) -> None:
    events = written(pieces, finish)
    whole = ANSWER.whole(pieces, finish, USAGE, END)
    assert events[-1]["response"] == whole
    assert told(events) == whole["output"]
    assert whole == ANSWER.whole(merged(pieces), finish, USAGE, END)
    ids = [item["id"] for item in whole["output"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"(rs|msg|fc)_\w+", name) for name in ids)


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events without numbers, neighbouring deltas as one."""
    result: list[dict[str, Any]] = []
    for event in events:
        event.pop("sequence_number")
        if result and event["type"].endswith(".delta") and result[-1]["type"] == event["type"]:
            result[-1]["delta"] += event["delta"]
        else:
            result.append(event)
    return result


@settings(max_examples=150)
@given(pieces=piece_lists(), finish=st.sampled_from(FINISHES))
def test_another_writer_goes_on_anywhere(pieces: list[Piece], finish: str) -> None:
    for cut in range(len(pieces) + 1):
        first, second = ResponseEvents(ANSWER), ResponseEvents(ANSWER)
        head = first.first() + first.pieces(pieces[:cut])
        tail = first.pieces(pieces[cut:]) + first.last([], finish, USAGE, END)
        second.skip(merged(pieces[:cut]))
        second.sequence = len(events_of(head))
        more = second.last(pieces[cut:], finish, USAGE, END)
        assert more == tail
        again = ResponseEvents(ANSWER)
        again.skip(pieces[:cut])
        cut_otherwise = again.last(merged(pieces[cut:]), finish, USAGE, END)
        assert joined(events_of(cut_otherwise)) == joined(events_of(tail))
