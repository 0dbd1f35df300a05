"""A conversation that has become too long: the model sums it up, and the summary stands for what was said.

A client asks for it by POST /v1/responses/compact, or of a response by an input whose last item is the trigger; or it
says by `context_management` how long a response's input may be before that is done, upon which the answer follows (of
such turns: mcp/run.py). The summary is given out as an item that is sent back; the user's own messages stand before it
as they were.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from ...errors import ApiError, bad_request, overloaded
from .schemas import MCP, Object, ResponsesRequest

TRIGGER = "compaction_trigger"
COMPACTION: Literal["compaction"] = "compaction"
NOT_TAKEN = ("stream", "background")  # a compaction comes whole, and at once
INSTRUCTIONS = (
    "Sum up this conversation for somebody who goes on with it and has nothing of it but what I wrote. Say what I "
    "want, what was done and found out, with names, paths, figures and decisions as they are, what is unfinished, and "
    "what comes next. Write nothing but the summary."
)
PREFACE = "What was answered and done up to here is left out. This is a summary of it:"


def compacts(request: ResponsesRequest) -> bool:
    """Is a summary asked for?"""
    given = request.input
    return isinstance(given, list) and bool(given) and given[-1].get("type") == TRIGGER


def check_rules(request: ResponsesRequest) -> None:
    """ApiError names what cannot be of `context_management`."""
    for index, rule in enumerate(request.context_management or ()):
        if rule.type != COMPACTION:
            path = f"context_management[{index}].type"
            raise bad_request(f"{path}: {rule.type!r} is not supported, only {COMPACTION!r}.", path)
        if rule.compact_threshold is not None and rule.compact_threshold < 1:
            path = f"context_management[{index}].compact_threshold"
            raise bad_request(f"{path} must be a number of tokens, 1 or more.", path)


def may_compact(request: ResponsesRequest) -> bool:
    """May its answer stand behind a summary?"""
    return bool(request.context_management) and not compacts(request)


def threshold_of(request: ResponsesRequest, longest: int) -> int | None:
    """Beyond how many tokens its input is summed up first, for a model of texts of up to `longest`; None: never."""
    rules, most = request.context_management or () if may_compact(request) else (), longest * 4 // 5
    return min((min(rule.compact_threshold or most, most) for rule in rules), default=None)


def triggered(request: ResponsesRequest) -> ResponsesRequest:
    """For a summary of all that it says, whatever room its answer has."""
    given = request.input or []
    items: list[Object] = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return msgspec.structs.replace(request, input=[*items, {"type": TRIGGER}], max_output_tokens=None)


def with_trigger(request: ResponsesRequest) -> ResponsesRequest:
    """The body of /v1/responses/compact as a response's. ApiError names what cannot be."""
    for name in NOT_TAKEN:
        if getattr(request, name):
            raise bad_request(f"{name} is not supported: a compaction comes whole.", name)
    if request.conversation is not None:
        raise bad_request("conversation is not supported: it keeps its items. Send them as input.", "conversation")
    room = request.max_output_tokens
    return request if compacts(request) else msgspec.structs.replace(triggered(request), max_output_tokens=room)


def summarising(request: ResponsesRequest, earlier: list[Object]) -> ResponsesRequest:
    """The request for a summary. Tools are told, so that the conversation begins as it did, and not called. `earlier`:
    what stands before its input.
    """
    given = request.input[:-1] if isinstance(request.input, list) else []
    if not given and not earlier:
        raise bad_request("input has nothing to sum up.", "input")
    tools = [tool for tool in request.tools or () if tool.type != MCP]
    return msgspec.structs.replace(
        request,
        input=[*given, {"role": "user", "content": INSTRUCTIONS}],
        tools=tools or None,
        tool_choice="none" if tools else None,
        **dict.fromkeys(("include", "stop", "structured_outputs", "text")),
    )


def summary_message(summary: str) -> Object:
    """What the model is told of what was left out."""
    return {"role": "user", "content": f"{PREFACE}\n\n{summary}"}


def remaining(items: Iterable[Object]) -> list[Object]:
    """The user's messages."""
    users = (item for item in items if item.get("type") == "message" and item.get("role") == "user")
    return [{"status": "completed", **item} for item in users]


def compacted(remains: list[Object], ended: Object) -> Object:
    """The answer of /v1/responses/compact, of the response that has ended. ApiError where there is no whole summary."""
    check_summary(ended["status"], bool(ended["output"]))
    told = {name: ended[name] for name in ("id", "created_at", "usage")}
    return told | {"object": "response.compaction", "output": remains + ended["output"]}


def check_summary(status: str, says_something: bool) -> None:
    """ApiError where it is not whole."""
    if status == "cancelled":
        raise overloaded("The summary was ended by an operator before it was whole. Try again.")
    if status != "completed" or not says_something:
        text = (
            "The model made no whole summary of input: it had no room for more, or nothing to say. Compact it sooner."
        )
        raise ApiError(400, text, "input", "context_length_exceeded")
