"""Requests of Cohere's chat, version 1, to those of version 2 that ask for the same."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ...errors import ApiError, bad_request
from ...generation.adapter import with_names
from ..requests import UNCITED
from ..schemas import (
    CohereCall,
    CohereChatFields,
    CohereChatRequest,
    CohereDocument,
    CohereFunction,
    CohereTurn,
    Object,
)
from .schemas import CohereChatV1Request, CohereParameter, CoherePast, CohereTool, CohereToolResult, CohereToolUse

MESSAGE = re.compile(r"messages\[(\d+)\](\.content(?:\[\d+\])*)?")
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
NOTHING: dict[str, tuple[tuple[object, ...], str]] = {
    "prompt_truncation": ((None, "OFF"), "a prompt that is too long is refused, not cut: OFF says so"),
    "connectors": ((None, []), "nothing is searched here: send documents"),
    "conversation_id": ((None,), "no conversation is kept here: send its chat_history"),
    "search_queries_only": ((None, False), "nothing is searched here"),
    "raw_prompting": ((None, False), "/v1/completions takes prompts as they are"),
    "max_input_tokens": ((None,), "a prompt that is too long is refused, not cut"),
    "num_generations": ((None, 1), "one answer is made"),
}


class Placed(NamedTuple):
    """A turn of version 2, with where it and its text stand in the body of version 1."""

    turn: CohereTurn
    place: str
    text: str


def newer(body: CohereChatV1Request) -> CohereChatRequest:
    """The same in the form of version 2. ApiError names what cannot be."""
    for name, (idle, reason) in NOTHING.items():
        if getattr(body, name) not in idle:
            raise bad_request(f"{name} is not supported: {reason}.", name)
    if body.citation_quality is not None and body.citation_quality.upper() not in UNCITED:
        raise bad_request("citation_quality: no citations are made; OFF says so.", "citation_quality")
    if not body.message and not body.tool_results:
        raise bad_request("Either message or tool_results must be given.", "message")
    more: Object = {name: getattr(body, name) for name in CohereChatFields.__struct_fields__}
    if body.safety_mode is not None:
        more["safety_mode"] = "OFF" if body.safety_mode == "NONE" else body.safety_mode
    if body.documents:
        more["documents"] = [CohereDocument(one, _id(one)) for one in body.documents]
    if body.tools:
        more["tools"] = [_tool(tool) for tool in body.tools]
        if body.tool_results and body.force_single_step:
            more["tool_choice"] = "NONE"
    return CohereChatRequest(messages=[turn for turn, _, _ in _messages(body)], **more)


def of_v1(error: ApiError, body: CohereChatV1Request) -> ApiError:
    """An error of `newer`'s that names what stands in `body`: the preamble, a turn of the history, the message."""
    found = MESSAGE.match(error.param or "")
    if found is None or error.param is None:
        return with_names(error, {"messages": "chat_history"})
    _, turn, text = _messages(body)[int(found[1])]
    place = turn if found[2] is None else text
    message = error.message.replace(found[0], place)
    return ApiError(
        error.status, message, place + error.param[found.end() :], error.code, error.retry_after, error.lengths
    )


def history(body: CohereChatV1Request) -> list[CoherePast]:
    """All turns that the answer goes on behind; it is told with them."""
    turns = list(body.chat_history or [])
    if body.message:
        turns.append(CoherePast("USER", body.message))
    if body.tool_results:
        if not (turns and turns[-1].tool_calls):  # in a single step the client sends the calls with their results alone
            turns.append(CoherePast("CHATBOT", "", [result.call for result in body.tool_results]))
        turns.append(CoherePast("TOOL", tool_results=body.tool_results))
    return turns


def _messages(body: CohereChatV1Request) -> list[Placed]:
    made = [Placed(CohereTurn("system", body.preamble), "preamble", "preamble")] if body.preamble else []
    calls: list[CohereCall] = []  # of the last turn that has some
    for number, turn in enumerate(history(body)):
        place = _place(body, number, turn)
        text = place if place == "message" else f"{place}.message"
        match turn.role:
            case "USER":
                made.append(Placed(CohereTurn("user", turn.message or ""), place, text))
            case "SYSTEM":
                made.append(Placed(CohereTurn("system", turn.message or ""), place, text))
            case "CHATBOT":
                calls = [_call(call, f"call_{number}_{index}") for index, call in enumerate(turn.tool_calls or [])]
                said = CohereTurn("assistant", turn.message or None, tool_calls=calls or None)
                made.append(Placed(said, place, text))
            case "TOOL":
                for index, result in enumerate(_results(turn.tool_results or [], calls, number)):
                    own = f"{place}[{index}]" if place == "tool_results" else f"{place}.tool_results[{index}]"
                    made.append(Placed(result, own, f"{own}.outputs"))
    return made


def _place(body: CohereChatV1Request, number: int, turn: CoherePast) -> str:
    """Where a turn of all the history stands in the body."""
    if number < len(body.chat_history or []):
        return f"chat_history[{number}]"
    return "message" if turn.role == "USER" else "tool_results"


def _results(results: Sequence[CohereToolResult], calls: Sequence[CohereCall], number: int) -> list[CohereTurn]:
    """Each answers the first call that is the same, and is not answered yet."""
    left, made = list(calls), []
    for index, result in enumerate(results):
        told = _call(result.call, "")
        found = next((call for call in left if call.function == told.function), None)
        if found is not None:
            left.remove(found)
        own_id = found.id if found is not None else f"result_{number}_{index}"
        made.append(CohereTurn("tool", msgspec.json.encode(result.outputs).decode(), tool_call_id=own_id))
    return made


def _call(call: CohereToolUse, own_id: str) -> CohereCall:
    return CohereCall(own_id, CohereFunction(call.name, msgspec.json.encode(call.parameters).decode()))


def _id(document: Object) -> str | None:
    return str(document["id"]) if "id" in document else None


def _tool(tool: CohereTool) -> Object:
    given = tool.parameter_definitions or {}
    schema: Object = {"type": "object", "properties": {name: _parameter(one) for name, one in given.items()}}
    if required := [name for name, one in given.items() if one.required]:
        schema["required"] = required
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": schema}}


def _parameter(given: CohereParameter) -> Object:
    """Its schema: of a type that nobody knows, of any value, with the type told to the model."""
    name = re.split(r"[\[ ]", given.type.strip().lower())[0]
    kind = TYPES.get(name, name)
    about = given.description
    if kind in TYPES.values():
        return {"type": kind} | ({} if about is None else {"description": about})
    return {"description": f"{about or ''} ({given.type})".strip()} if given.type else {"description": about or ""}
