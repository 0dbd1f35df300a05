"""Rounds of an agent: a message with calls, and their results behind it.

Few templates write which call a result is of; where clients send them as they come, they stand in the calls' order. And
for templates that write one call of a message each stands in one of its own, with its results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .names import RESULTS

Message = dict[str, Any]


def answered_in_order(messages: list[Message]) -> list[Message]:
    """The conversation with results in the order of their calls."""
    return _each_round(messages, lambda message, results: [message, *_in_order(message, results)])


def one_by_one(messages: list[Message]) -> list[Message]:
    """The conversation in which no message has more than one call."""
    return _each_round(messages, _apart)


def _each_round(messages: list[Message], change: Callable[[Message, list[Message]], list[Message]]) -> list[Message]:
    """What `change` makes of each message with several calls and its results."""
    changed: list[Message] = []
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        if not _calls_several(message):
            changed.append(message)
            continue
        begin = at
        while at < len(messages) and isinstance(messages[at], dict) and messages[at].get("role") in RESULTS:
            at += 1
        changed += change(message, messages[begin:at])
    return changed


def _calls_several(message: Any) -> bool:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return isinstance(calls, list) and len(calls) > 1 and all(isinstance(call, dict) for call in calls)


def _in_order(message: Message, results: list[Message]) -> list[Message]:
    """As they are where one names no call, or two calls have one name; and with pictures, which have been taken out of
    them in this order.
    """
    ids = _ids(message)
    is_clear = len({*ids} - {None}) == len(ids)
    if not is_clear or any(_call_of(result, ids) is None or _has_media(result) for result in results):
        return results
    return sorted(results, key=lambda result: ids.index(result["tool_call_id"]))


def _ids(message: Message) -> list[str | None]:
    """Of its calls; None where one has none."""
    given = (call.get("id") for call in message["tool_calls"])
    return [one if isinstance(one, str) else None for one in given]


def _call_of(result: Message, ids: list[str | None]) -> str | None:
    """The id of the call that a result names; None where it is none of these."""
    named = result.get("tool_call_id")
    return named if isinstance(named, str) and named in ids else None


def _has_media(result: Message) -> bool:
    parts = result.get("content")
    return isinstance(parts, list) and any(isinstance(part, dict) and "text" not in part for part in parts)


def _apart(message: Message, results: list[Message]) -> list[Message]:
    """What was said and thought stands before the first. A result that names no call is of the first without one."""
    ids = _ids(message)
    unnamed = [result for result in results if _call_of(result, ids) is None]
    turns: list[Message] = []
    for call, name in zip(message["tool_calls"], ids, strict=True):
        turn = {"role": message.get("role"), "content": ""} if turns else message
        own = [result for result in results if name is not None and _call_of(result, ids) == name]
        turns += [{**turn, "tool_calls": [call]}, *(own or unnamed[:1])]
        unnamed = unnamed if own else unnamed[1:]
    turns += unnamed
    is_same = [turn for turn in turns if turn.get("role") in RESULTS] == results
    return turns if is_same else [message, *results]  # pictures in them would be others'
