"""Conversations and texts, checked, as the renderer takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from actorserve.actors.protocol.media import MediaSource
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt

from ..errors import bad_request
from ..media.parts import check_modality, check_text_size, checked_changes, is_media, take_media, with_reading
from ..openai.schemas import (
    AllowedTools,
    ChatMessage,
    ChatRequest,
    ChatTool,
    CompletionRequest,
    ContentPart,
)
from ..openai.thinking import THINKING_SWITCHES, is_off, with_defaults
from ..settings import MediaRules, Settings
from .fields.decoding import decode
from .fields.prompt_embeds import given_embeds
from .infill import infill_tokens

MAX_MESSAGES = 4096
MAX_TOOLS = 512
THINKING = "thinking"  # of an assistant: what a model has thought, as Mistral's clients send it back
TEXT_PARTS = ("text", "input_text", "output_text", "refusal", THINKING)
TOOL_NAME = re.compile(r"[\w.:-]{1,128}")


def chat_prompt(request: ChatRequest, settings: Settings | None = None) -> ChatPrompt:
    """The conversation, checked. `settings` say which pictures and sounds it may have; without them, none."""
    rules = settings.media if settings is not None else None
    changes = with_reading(request.mm_processor_kwargs, request.media_io_kwargs, rules)
    messages, media = check_messages(request.messages, rules, changes)
    tools_of(request)
    variables = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort == "none":
        variables = {**dict.fromkeys(THINKING_SWITCHES, False), "reasoning_effort": "none", **variables}
    elif request.reasoning_effort is not None and not is_off(variables):  # agents send their effort with all requests
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if settings is not None:
        variables = with_defaults(variables, settings.template_kwargs)
    add, go_on = request.add_generation_prompt, bool(request.continue_final_message)
    if go_on and add:
        raise bad_request("add_generation_prompt must be false with continue_final_message.", "add_generation_prompt")
    prompt = ChatPrompt(
        messages,
        tools=_told_tools(request, settings),
        documents=_raw("documents", request.documents),
        template_kwargs=_raw("chat_template_kwargs", variables),
        add_generation_prompt=not go_on if add is None else add,
        continue_final_message=go_on,
        add_special_tokens=bool(request.add_special_tokens),
        chat_template=request.chat_template,
        media=media,
    )
    if settings is not None and settings.media is not None:
        parts = (prompt.messages, prompt.tools, prompt.documents, prompt.template_kwargs)
        check_text_size(parts, settings.max_body_bytes)
    return prompt


def _told_tools(request: ChatRequest, settings: Settings | None) -> bytes | None:
    """The tools that the model is told of, as JSON. One whose input keeps to a grammar is called without a choice, by
    structured_outputs: of it the model has to know.
    """
    left_out = settings is not None and settings.exclude_tools_when_tool_choice_none
    if not request.tools or (left_out and request.tool_choice == "none" and not request.structured_outputs):
        return None
    return b"[%s]" % b",".join(map(bytes, request.tools))


def check_template(request: ChatRequest, trusted: bool) -> None:
    """A request's own template is a program: it is run only where the operator trusts the clients."""
    named = "chat_template" if request.chat_template is not None else None
    if "chat_template" in (request.chat_template_kwargs or {}):
        named = "chat_template_kwargs"
    if named is not None and not trusted:
        text = f"{named}: templates are taken from requests only with --trust-request-chat-template."
        raise bad_request(text, named)


def tools_of(request: ChatRequest) -> list[ChatTool]:
    """The tools, checked."""
    return checked_tools(request.tools)


def checked_tools(given: list[msgspec.Raw] | None) -> list[ChatTool]:
    """The same of any body with the field `tools`."""
    tools = [decode(ChatTool, bytes(raw), f"tools[{index}]") for index, raw in enumerate(given or [])]
    if len(tools) > MAX_TOOLS:
        raise bad_request(f"At most {MAX_TOOLS} tools are taken.", "tools")
    for index, tool in enumerate(tools):
        check_tool_name(tool.function.name, f"tools[{index}].function.name")
    return tools


def tool_schemas(tools: list[ChatTool]) -> dict[str, dict[str, Any]]:
    """Of the arguments of each, by its name: empty where it says none."""
    given = {tool.function.name: tool.function.parameters for tool in tools}
    return {name: schema if isinstance(schema, dict) else {} for name, schema in given.items()}


def check_tool_name(name: str, path: str) -> None:
    """400 for one that models are not told; `path`: where the client has named the tool."""
    if not TOOL_NAME.fullmatch(name):
        raise bad_request(f"{path} must be 1 to 128 letters, digits, '_', '-', '.' or ':'.", path)


def with_allowed_tools(request: ChatRequest) -> ChatRequest:
    """With those tools alone that its tool_choice allows; the model is told of no other."""
    choice = request.tool_choice
    if not isinstance(choice, AllowedTools):
        return request
    names = [tool.function.name for tool in tools_of(request)]
    wanted = [tool.function.name for tool in choice.allowed_tools.tools]
    for index, name in enumerate(wanted):
        if name not in names:
            path = f"tool_choice.allowed_tools.tools[{index}]"
            raise bad_request(f"{path} is not one of the tools.", path)
    tools = [raw for raw, name in zip(request.tools or (), names, strict=True) if name in wanted]
    return msgspec.structs.replace(request, tools=tools, tool_choice=choice.allowed_tools.mode)


def check_messages(
    raw: msgspec.Raw, rules: MediaRules | None = None, changes: dict[str, Any] | None = None
) -> tuple[bytes, list[MediaSource]]:
    """(the messages as the client sent them, if they are what they should be; pictures and sounds taken out).
    `changes`: how these are to be processed.
    """
    told = checked_changes(changes, rules)
    body = bytes(raw)
    messages = decode(list[ChatMessage], body, "messages")
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    if len(messages) > MAX_MESSAGES:
        raise bad_request(f"At most {MAX_MESSAGES} messages are taken.", "messages")
    for index, message in enumerate(messages):
        if message.content is None and message.role not in ("assistant", "function", "tool"):
            raise bad_request(f"messages[{index}].content is missing.", f"messages[{index}].content")
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            path = f"messages[{index}].content[{number}]"
            if not isinstance(part, str) and part.type == THINKING and message.role != "assistant":
                raise bad_request(f"{path}: only an assistant's content has parts of type thinking.", path)
            _check_part(part, path, rules)
    lists = (message.content for message in messages if isinstance(message.content, list))  # a text has no parts
    if rules is not None and any(is_media(part) for parts in lists for part in parts):
        return take_media(body, messages, rules, told)
    return body, []


def final_text(request: ChatRequest) -> str:
    """What the assistant has said where its message is the last: `echo` puts it before the answer."""
    final = decode(list[ChatMessage], bytes(request.messages), "messages")[-1:]
    if not final or final[0].role != "assistant" or final[0].content is None:
        return ""
    parts = [final[0].content] if isinstance(final[0].content, str) else final[0].content
    return "".join(part if isinstance(part, str) else part.text or "" for part in parts)


def _check_part(part: ContentPart | str, path: str, rules: MediaRules | None) -> None:
    if isinstance(part, str) or (rules is not None and is_media(part)):
        return
    if part.type not in TEXT_PARTS:
        check_modality("", part.type, part.place or path, rules)
    name = part.type if part.type in ("refusal", THINKING) else "text"
    if getattr(part, name) is None:
        raise bad_request(f"{path}.{name} is missing.", f"{path}.{name}")


def _raw(name: str, value: object) -> bytes | None:
    """JSON for the chat template; None for nothing."""
    try:
        return msgspec.json.encode(value) if value else None
    except RecursionError:  # it could just be decoded
        raise bad_request(f"{name} is nested too deeply.", name) from None


def completion_prompts(
    request: CompletionRequest, special: Callable[[], Collection[str]] = dict, embeds: bool = False
) -> list[Prompt]:
    """One text, several texts, one list of ids, or several lists of ids. `special`: the tokenizer's special tokens,
    of which some say that a suffix stands behind. `embeds`: prompts may be embeddings, which come first, and alone
    where `prompt` is empty: clients of OpenAI cannot leave it out.
    """
    if given := given_embeds(request, embeds):
        return [*given, *(_prompts(request) if request.prompt else ())]
    prompts = _prompts(request)
    if not request.suffix:
        return prompts
    tokens = infill_tokens(special(), "suffix")
    texts = [prompt.text for prompt in prompts if isinstance(prompt, TextPrompt)]
    if len(texts) < len(prompts):
        raise bad_request("suffix goes with a prompt that is a text.", "suffix")
    if request.echo:
        raise bad_request("echo does not go with suffix.", "echo")
    return [TextPrompt(tokens.prompt(text, request.suffix), request.add_special_tokens is not False) for text in texts]


def _prompts(request: CompletionRequest) -> list[Prompt]:
    prompt: Any = request.prompt
    special = request.add_special_tokens is not False
    if prompt is None:
        raise bad_request("prompt is missing.", "prompt")
    if isinstance(prompt, str):
        return [TextPrompt(prompt, special)]
    if not prompt:
        raise bad_request("prompt must not be an empty list.", "prompt")
    kinds = {type(part) for part in prompt}
    if kinds == {int}:
        return [_token_prompt(prompt)]
    if kinds == {str}:
        return [TextPrompt(part, special) for part in prompt]
    if kinds == {list}:
        return [_token_prompt(part) for part in prompt]
    raise bad_request("prompt must be a string, a list of strings, token ids, or a list of lists of them.", "prompt")


def _token_prompt(tokens: list[int]) -> TokenPrompt:
    return TokenPrompt(check_tokens(tokens, "prompt"))


def check_tokens(tokens: list[int], name: str) -> list[int]:
    """Token ids that a message can hold; the renderer knows the vocabulary."""
    if any(not 0 <= token < 1 << 31 for token in tokens):
        raise bad_request(f"{name}: token ids are between 0 and the size of the vocabulary.", name)
    return tokens
