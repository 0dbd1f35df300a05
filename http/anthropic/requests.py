"""A request of Anthropic's Messages API to the chat request that asks for the same."""

from __future__ import annotations

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS

from ..errors import ApiError, bad_request
from ..generation.adapter import with_names
from ..generation.fields.ranges import check_ranges
from ..generation.prompts import check_tool_name
from ..openai.thinking import THINKING_SWITCHES
from .client_tools import described
from .schemas import (
    NAMES,
    OTHERS,
    AnthropicTool,
    AnthropicToolChoice,
    CountRequest,
    JsonFormat,
    MessagesRequest,
    Object,
    ThinkingConfig,
)
from .tool_changes import changed_tools
from .turns import begins_answer, messages_of

REFUSED = ("compaction", "container", "fallbacks", "inference_geo", "mcp_servers")
PASSED = ("max_tokens", "stream", *SAMPLING_FIELDS, *OTHERS)
HOSTED = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")  # how types of such tools begin
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
MAX_STOPS, MAX_STOP_LENGTH = 64, 1024


def to_chat(request: MessagesRequest) -> Object:
    """The JSON object of the chat request."""
    _check(request)
    chat: Object = {name: value for name in PASSED if (value := getattr(request, name)) is not None}
    if request.stop_sequences:
        chat["stop"] = request.stop_sequences
    if request.metadata is not None and request.metadata.user_id is not None:
        chat["user"] = request.metadata.user_id
    if request.thinking is not None and request.thinking.type == "enabled":
        chat["thinking_token_budget"] = _budget(request.thinking, request.max_tokens)
    prompt = prompt_of(request)
    if kwargs := prompt.get("chat_template_kwargs", {}) | chat.get("chat_template_kwargs", {}):
        chat["chat_template_kwargs"] = kwargs
    return prompt | chat


def prompt_of(request: CountRequest) -> Object:
    """The part of the chat request that says something about the prompt: all that count_tokens needs."""
    _check_refused(request)
    chat: Object = {"messages": messages_of(request.system, request.messages)}
    if request.model is not None:
        chat["model"] = request.model
    if begins_answer(request.messages):
        chat |= {"add_generation_prompt": False, "continue_final_message": True}
    if request.thinking is not None and request.thinking.type != "adaptive":  # that is for the model to say
        on = request.thinking.type == "enabled"
        chat["chat_template_kwargs"] = dict.fromkeys(THINKING_SWITCHES, on)
    chat |= _tools(_offered(request), request.tool_choice) | _output(request)
    if request.thinking is not None and request.thinking.type == "disabled":
        chat.pop("reasoning_effort", None)  # agents send their effort with all requests
    return chat


def renamed(error: ApiError) -> ApiError:
    """An error of the chat request that names the field as this API does."""
    return with_names(error, NAMES)


def named(field: str) -> str:
    """A field of the chat request as this API names it."""
    return NAMES.get(field, field)


def omits_thinking(request: MessagesRequest) -> bool:
    """Is thinking to be done, and not to be shown?"""
    return request.thinking is not None and request.thinking.display == "omitted"


def _check(request: MessagesRequest) -> None:
    check_ranges(request)
    stops = request.stop_sequences or []
    if not all(stops):
        raise bad_request("stop_sequences must not contain an empty string.", "stop_sequences")
    if len(stops) > MAX_STOPS or any(len(stop) > MAX_STOP_LENGTH for stop in stops):
        limits = f"{MAX_STOPS} strings of {MAX_STOP_LENGTH} characters"
        raise bad_request(f"stop_sequences takes at most {limits}.", "stop_sequences")


def _check_refused(request: CountRequest) -> None:
    if request.thread:  # the code tells clients to send the whole conversation instead
        raise ApiError(400, "thread is not supported.", "thread", "thread_unsupported_request")
    for name in REFUSED:
        if getattr(request, name):
            raise bad_request(f"{name} is not supported.", name)
    if request.speed not in (None, "standard"):
        raise bad_request(f"speed: {request.speed!r} is not supported.", "speed")


def _budget(thinking: ThinkingConfig, max_tokens: int) -> int:
    path = "thinking.budget_tokens"
    if thinking.budget_tokens is None:
        raise bad_request(f"{path} is missing.", path)
    if thinking.budget_tokens < 1:
        raise bad_request(f"{path} must be at least 1, not {thinking.budget_tokens}.", path)
    return min(thinking.budget_tokens, max_tokens - 1)  # with thinking between calls, it is of all answers together


def _offered(request: CountRequest) -> dict[str, AnthropicTool]:
    """By their paths; without those that the API's own host would run, where there are others, and be it some that are
    gone by now: clients offer them to every model, and no model has to call them.
    """
    placed, gone = changed_tools(request.tools or [], request.messages)
    own = {path: tool for path, tool in placed.items() if not (tool.type or "").startswith(HOSTED)}
    return {path: described(tool) for path, tool in (own or placed).items() if tool.name not in gone}


def _tools(offered: dict[str, AnthropicTool], choice: AnthropicToolChoice | None) -> Object:
    tools = [*offered.values()]
    for path, tool in offered.items():
        if tool.type not in (None, "custom"):
            raise bad_request(f"{path}: tools of type {tool.type!r} are not supported.", f"{path}.type")
        check_tool_name(tool.name, f"{path}.name")
        if tool.input_schema is None:
            raise bad_request(f"{path}.input_schema is missing.", f"{path}.input_schema")
    chat: Object = {"tools": [_function(tool) for tool in tools]} if tools else {}
    if choice is None:
        return chat
    if choice.disable_parallel_tool_use:
        chat["parallel_tool_calls"] = False
    if choice.type != "tool":
        if choice.type == "any" and not tools:
            raise bad_request("tool_choice asks for a tool, and there are no tools.", "tool_choice")
        return chat | {"tool_choice": CHOICES[choice.type]}
    if choice.name not in [tool.name for tool in tools]:
        raise bad_request(f"tool_choice.name: {choice.name!r} is not one of the tools.", "tool_choice.name")
    return chat | {"tool_choice": {"type": "function", "function": {"name": choice.name}}}


def _function(tool: AnthropicTool) -> Object:
    given = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


def _output(request: CountRequest) -> Object:
    config = request.output_config
    form: JsonFormat | None = (config.format if config is not None else None) or request.output_format
    chat: Object = {}
    if config is not None and config.effort is not None:
        chat["reasoning_effort"] = config.effort
    if form is not None:
        schema = {"name": "output", "schema": form.schema, "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat
