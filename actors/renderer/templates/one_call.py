"""Several calls of one message, for templates that write one: a message for each, and its results behind it."""

from __future__ import annotations

from typing import Any

RESULTS = ("tool", "function")  # roles


def one_by_one(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation in which no message has more than one call."""
    apart: list[dict[str, Any]] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        if not _calls_several(message):
            apart.append(message)
            continue
        results = []
        while rest and isinstance(rest[0], dict) and rest[0].get("role") in RESULTS:
            results.append(rest.pop(0))
        apart += _apart(message, results)
    return apart


def _calls_several(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return isinstance(calls, list) and len(calls) > 1 and all(isinstance(call, dict) for call in calls)


def _apart(message: dict[str, Any], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was said and thought stands before the first. A result that names no call is of the first without one."""
    ids = [call.get("id") for call in message["tool_calls"]]
    unnamed = [result for result in results if result.get("tool_call_id") not in ids]
    turns = []
    for call in message["tool_calls"]:
        turn = {"role": message.get("role"), "content": ""} if turns else message
        own = [result for result in results if result.get("tool_call_id") == call.get("id") and result not in unnamed]
        turns += [{**turn, "tool_calls": [call]}, *(own or unnamed[:1])]
        unnamed = unnamed if own else unnamed[1:]
    return turns + unnamed
