"""A chat's functions, as they were before tools: `functions`, `function_call`, and messages that tell of calls.

To all that follows they are tools, of which one is called at a time. The answer says `function_call` (chat.py).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from ..errors import ApiError, bad_request
from ..generation.fields.decoding import decode
from .schemas import ChatRequest, NamedFunction, NamedTool

IN_HISTORY = b'"function_call"'
OURS = (
    (r"^tools\[(\d+)\](?:\.function)?", r"functions[\1]"),
    (r"^tools\b", "functions"),
    (r"^tool_choice\b", "function_call"),
)


class FunctionTurn(msgspec.Struct):
    """What of a message tells of functions."""

    role: str = ""
    function_call: dict[str, Any] | None = None
    tool_calls: list[Any] | None = None


def with_tools(body: ChatRequest) -> ChatRequest:
    """The same with tools in the place of functions."""
    body = msgspec.structs.replace(body, messages=_messages(body.messages))
    if not body.functions:
        if isinstance(body.function_call, NamedFunction):
            raise bad_request("function_call goes with functions.", "function_call")
        return body
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            raise bad_request(f"functions: {name} asks for the same; give either.", "functions")
    choice: Any = body.function_call
    if isinstance(choice, NamedFunction):
        choice = NamedTool(choice)
    tools = [msgspec.Raw(b'{"type":"function","function":%s}' % bytes(one)) for one in body.functions]
    return msgspec.structs.replace(body, tools=tools, tool_choice=choice, parallel_tool_calls=False)


def renamed(error: ApiError) -> ApiError:
    """An error of the tools that names the functions."""
    param, message = error.param or "", error.message
    for tool, function in OURS:
        param, message = re.sub(tool, function, param), re.sub(tool, function, message)
    return ApiError(error.status, message, param or None, error.code, error.retry_after)


def _messages(raw: msgspec.Raw) -> msgspec.Raw:
    """With tools' calls, and results, in the place of functions'; other messages stay as they came."""
    if IN_HISTORY not in bytes(raw):
        return raw
    messages, call_id = decode(list[msgspec.Raw], bytes(raw), "messages"), ""
    for index, message in enumerate(messages):
        turn = decode(FunctionTurn, bytes(message), f"messages[{index}]")
        if turn.function_call is not None and not turn.tool_calls:
            call_id = f"call{index:05}"  # nine letters and digits, as Mistral's templates want them
            messages[index] = _with_calls(message, call_id)
        elif turn.role == "function" and call_id:
            messages[index] = _changed(message, role="tool", tool_call_id=call_id)
    return msgspec.Raw(msgspec.json.encode(messages))


def _with_calls(message: msgspec.Raw, call_id: str) -> msgspec.Raw:
    called = decode(dict[str, msgspec.Raw], bytes(message))["function_call"]
    return _changed(message, tool_calls=[{"id": call_id, "type": "function", "function": called}])


def _changed(message: msgspec.Raw, **fields: object) -> msgspec.Raw:
    members: dict[str, object] = {**decode(dict[str, msgspec.Raw], bytes(message)), **fields}
    members.pop("function_call", None)
    return msgspec.Raw(msgspec.json.encode(members))
