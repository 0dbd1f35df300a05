"""A request of the Responses API to the chat request that asks for the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ...errors import ApiError, bad_request
from ...generation.adapter import with_names
from ...generation.fields.ranges import check_ranges
from ...generation.prompts import check_tool_name
from ..thinking import THINKING_SWITCHES
from .compaction import TRIGGER, check_rules, compacts, may_compact, summarising
from .items import ResponseOptions
from .messages import messages_of
from .references import is_reference
from .schemas import (
    MCP,
    NAMES,
    PASSED,
    Object,
    ReasoningConfig,
    ResponsesRequest,
    ResponsesTool,
    ResponsesToolChoice,
    TextConfig,
)
from .stored import items_as_kept
from .tools.custom import CUSTOM, as_function, forced, format_of, said_again
from .tools.namespaces import INSIDE, flattened

REFUSED = ("access_programs", "moderation", "prompt")
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDED = (  # the last two are heeded; tools with such results as the others are refused themselves
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    ENCRYPTED,
    LOGPROBS,
)
HOSTED = (  # tools that run where the API is served, or that its own models alone know how to call
    *("web_search", "web_search_preview", "web_search_2025_08_26", "web_search_preview_2025_03_11", "file_search"),
    *("code_interpreter", "image_generation", "computer_use_preview", "computer", "tool_search"),
    *("shell", "local_shell", "apply_patch"),
)
UNFINISHED = ("in_progress", "incomplete")
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512


def to_chat(request: ResponsesRequest, earlier: Iterable[Object] = ()) -> Object:
    """The JSON object of the chat request. `earlier`: the items that stand before `input`."""
    _check(request)
    earlier = list(earlier)
    if compacts(request):
        request = summarising(request, earlier)
    chat: Object = {name: value for name in PASSED if (value := getattr(request, name)) is not None}
    chat["messages"] = _messages(request, earlier)
    if _goes_on(request.input):
        chat["continue_final_message"] = True
    if request.max_output_tokens is not None:
        chat["max_completion_tokens"] = request.max_output_tokens
    if LOGPROBS in (request.include or ()):
        chat |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.truncation == "auto":
        chat["truncate_prompt_tokens"] = -1
    if request.enable_response_messages:
        chat |= {"return_token_ids": True, "return_prompt_text": True}
    chat |= _reasoning(request.reasoning, request.chat_template_kwargs) | _format(request.text)
    if request.tools:
        chat |= _tools(request.tools, request.tool_choice)
        if chat.get("tool_choice") == "none" != request.tool_choice:  # a custom tool's grammar, not the text's
            chat.pop("response_format", None)
    elif request.tool_choice not in (None, "auto", "none"):
        raise bad_request("tool_choice asks for a tool, and there are no tools.", "tool_choice")
    return chat


def stand_in(request: ResponsesRequest) -> ResponsesRequest:
    """For one whose conversation is gone: its answer is read by all but its messages, and no model is asked."""
    said: list[Object] = [{"role": "user", "content": "-"}]
    return msgspec.structs.replace(request, input=[*said, {"type": TRIGGER}] if compacts(request) else said)


def renamed(error: ApiError) -> ApiError:
    """An error of the chat request that names the field as this API does."""
    return with_names(error, NAMES)


def named(field: str) -> str:
    """A field of the chat request as this API names it."""
    return NAMES.get(field, field)


def input_items(request: ResponsesRequest, key: str) -> list[Object]:
    """`input` as items that have types and ids, as they are kept. The ids derive from the answer's, and from the items'
    places, whether those that are named are there or gone.
    """
    given = [{"role": "user", "content": request.input}] if isinstance(request.input, str) else request.input or []
    return [kept for item, kept in zip(given, items_as_kept(given, key), strict=True) if not is_reference(item)]


def wanted(request: ResponsesRequest) -> ResponseOptions:
    """What its client is told beside the text."""
    padded = bool(request.stream_options and request.stream_options.include_obfuscation)
    return ResponseOptions(padded, ENCRYPTED in (request.include or ()), compacts(request))


def echo(request: ResponsesRequest, defaults: Mapping[str, float]) -> Object:
    """What a response says again of its request; `defaults` are the sampling parameters' own."""
    given, conversation = msgspec.to_builtins(request), request.conversation_id

    def value(name: str, otherwise: Any) -> Any:
        return otherwise if given[name] is None else given[name]

    text = {name: value for name, value in (given["text"] or {}).items() if value is not None}
    text["format"] = {name: value for name, value in text.get("format", {"type": "text"}).items() if value is not None}
    reasoning = given["reasoning"] or {}
    return {
        "background": bool(request.background),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.get("effort"),
            "summary": reasoning.get("summary") or reasoning.get("generate_summary"),
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": value("temperature", defaults.get("temperature", 1.0)),
        "text": text,
        "tool_choice": _choice_echo(given["tool_choice"]),
        "tools": [said_again(msgspec.to_builtins(tool)) for tool in _offered(request.tools or [])],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": value("top_p", defaults.get("top_p", 1.0)),
        "frequency_penalty": value("frequency_penalty", defaults.get("frequency_penalty", 0.0)),
        "presence_penalty": value("presence_penalty", defaults.get("presence_penalty", 0.0)),
        "truncation": request.truncation or "disabled",
        "user": request.user,
        **({} if conversation is None else {"conversation": {"id": conversation}}),
    }


def _choice_echo(choice: Any) -> Any:
    if isinstance(choice, dict):
        return {name: value for name, value in choice.items() if value is not None}
    return choice or "auto"


def _check(request: ResponsesRequest) -> None:
    for name in REFUSED:
        if getattr(request, name):
            raise bad_request(f"{name} is not supported.", name)
    for index, name in enumerate(request.include or []):
        if name not in INCLUDED:
            raise bad_request(f"include: {name!r} is not supported.", f"include[{index}]")
    if may_compact(request) and LOGPROBS in (request.include or ()):
        raise bad_request(f"include: {LOGPROBS!r} does not go with context_management.", "include")
    check_ranges(request)
    check_rules(request)
    if request.background and request.store is False:
        text = "background can only be used when `store` is true: a response that is not kept cannot be fetched."
        raise bad_request(text, "background")
    if request.stream_options is not None and not request.stream:
        raise bad_request("stream_options is only allowed when stream is true.", "stream_options")
    check_metadata(request.metadata or {})


def check_metadata(metadata: dict[str, str]) -> None:
    """It is kept with the response, or the conversation: it has limits."""
    if len(metadata) > MAX_METADATA:
        raise bad_request(f"metadata takes at most {MAX_METADATA} pairs.", "metadata")
    if any(len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE for key, value in metadata.items()):
        limits = f"{MAX_METADATA_KEY} characters, values of {MAX_METADATA_VALUE}"
        raise bad_request(f"metadata takes keys of at most {limits}.", "metadata")


def _messages(request: ResponsesRequest, earlier: Iterable[Object]) -> list[Object]:
    system = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    before = [("previous_response_id" if request.conversation is None else "conversation", item) for item in earlier]
    if isinstance(request.input, str):
        return system + messages_of([*before, ("input", {"role": "user", "content": request.input})])
    messages = messages_of([*before, *((f"input[{index}]", item) for index, item in enumerate(request.input or []))])
    if not messages:
        raise bad_request("input is missing, or empty.", "input")
    return system + messages


def _goes_on(given: str | list[Object] | None) -> bool:
    """Is the last item a message of the assistant that is not complete?"""
    last: Object = given[-1] if isinstance(given, list) and given else {}
    return last.get("role") == "assistant" and last.get("status") in UNFINISHED and bool(last.get("content"))


def _reasoning(reasoning: ReasoningConfig | None, given: Object | None) -> Object:
    if reasoning is None:
        return {}
    if reasoning.context not in (None, "auto"):
        raise bad_request("reasoning.context is not supported.", "reasoning.context")
    if reasoning.mode not in (None, "standard"):
        raise bad_request("reasoning.mode is not supported.", "reasoning.mode")
    if reasoning.effort is None:
        return {}
    if reasoning.effort == "none":
        return {"chat_template_kwargs": dict.fromkeys(THINKING_SWITCHES, False) | (given or {})}
    return {"reasoning_effort": reasoning.effort}


def _format(text: TextConfig | None) -> Object:
    if text is None:
        return {}
    form = text.format
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    for name in ("name", "schema"):
        if getattr(form, name) is None:
            raise bad_request(f"text.format.{name} is missing.", f"text.format.{name}")
    fields = ("name", "description", "schema", "strict")
    schema = {name: value for name in fields if (value := getattr(form, name)) is not None}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _offered(tools: list[ResponsesTool]) -> list[ResponsesTool]:
    """Without those that the API's own host would run, where there are others: agents offer them beside functions to
    every model, and no model has to call them. A response says again only what was offered.
    """
    others = [tool for tool in tools if tool.type not in HOSTED]
    return others or tools


def _tools(given: list[ResponsesTool], choice: str | ResponsesToolChoice | None) -> Object:
    given = flattened(given)
    tools = _offered(given)
    places = {id(tool): index for index, tool in enumerate(given)}  # how many there are is looked at later
    functions: dict[str, Object] = {}  # by name
    for tool in tools:
        path = f"tools[{places[id(tool)]}]"
        if tool.type not in INSIDE:
            raise bad_request(f"{path}: tools of type {tool.type!r} are not supported.", f"{path}.type")
        if not tool.name:
            raise bad_request(f"{path}.name is missing.", f"{path}.name")
        check_tool_name(tool.name, f"{path}.name")
        functions[tool.name] = _function(as_function(tool, path) if tool.type == CUSTOM else tool)
    offered: Object = {"tools": list(functions.values())}
    if not isinstance(choice, ResponsesToolChoice):
        return offered if choice is None else offered | {"tool_choice": choice}
    if choice.type in INSIDE:
        chosen = next((tool for tool in tools if (tool.type, tool.name) == (choice.type, choice.name)), None)
        if chosen is None:
            raise bad_request(f"tool_choice.name: {choice.name!r} is not one of the tools.", "tool_choice.name")
        if chosen.type == CUSTOM:
            return offered | forced(chosen, "tools")
        return offered | {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    if choice.type == "allowed_tools":
        allowed = _allowed(choice, {(tool.type, tool.name) for tool in tools})
        offered = {"tools": [function for name, function in functions.items() if name in allowed]}
        return offered | {"tool_choice": choice.mode or "auto"}
    raise bad_request(f"tool_choice: type {choice.type!r} is not supported.", "tool_choice.type")


def check_tools(request: ResponsesRequest) -> None:
    """Those that the client calls, where what a response says again of them is read before they are offered."""
    tools = [tool for tool in request.tools or () if tool.type != MCP]
    for index, tool in enumerate(flattened(tools)):
        if tool.type == CUSTOM:
            format_of(tool, f"tools[{index}]")


def _allowed(choice: ResponsesToolChoice, tools: set[tuple[str, str | None]]) -> set[str]:
    """The names of the tools that may be called; the model is told of no other."""
    if not choice.tools:
        raise bad_request("tool_choice.tools is missing.", "tool_choice.tools")
    allowed = set()
    for index, tool in enumerate(choice.tools):
        path = f"tool_choice.tools[{index}]"
        kind, name = tool.get("type"), tool.get("name")
        if kind in HOSTED:
            continue
        if not isinstance(kind, str) or not isinstance(name, str) or (kind, name) not in tools:
            raise bad_request(f"{path} is not one of the tools.", path)
        allowed.add(name)
    return allowed


def _function(tool: ResponsesTool) -> Object:
    fields = ("name", "description", "parameters", "strict")
    given = {name: value for name in fields if (value := getattr(tool, name)) is not None}
    return {"type": "function", "function": given}


def can_move(body: ResponsesRequest, in_turns: bool) -> bool:
    """Can another server go on with its stream? Its last events say all of the text again, but nobody has the logprobs
    and ids of tokens that were drawn elsewhere, and results of tools, summaries and conversations stay where they are.
    """
    here = in_turns or body.background or body.conversation is not None
    return not (here or body.enable_response_messages or LOGPROBS in (body.include or ()))
