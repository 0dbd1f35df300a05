"""Requests of Ollama's API to the chat request, or the completion, that asks for the same."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from actorserve.actors.protocol.sampling.fields import SAMPLING_FIELDS

from ..errors import ApiError, bad_request
from ..generation.adapter import encoded, with_names
from ..generation.fields.decoding import decode
from ..generation.prompts import check_tokens
from ..openai.schemas import TokensRequest
from ..openai.thinking import THINKING_SWITCHES
from .schemas import (
    MadeCall,
    Object,
    OllamaChatRequest,
    OllamaFields,
    OllamaGenerateRequest,
    OllamaOptions,
    OllamaTurn,
)

NAMES = {  # of the options that have another name in chat
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
}
SAME = ("stop", *SAMPLING_FIELDS)
OURS = {  # chat's fields as this API names them
    **{name: f"options.{name}" for name in SAME},
    **{chat: f"options.{own}" for own, chat in NAMES.items()},
    "response_format": "format",
    "chat_template_kwargs": "think",
    "reasoning_effort": "think",
}
NOTHING: dict[str, tuple[float, ...]] = {"tfs_z": (0, 1)}
PICTURE = re.compile(r"(messages\[\d+\])\.content(\[\d+\])")  # they stand before the text
LATEST = ":latest"


def model_of(given: str | None, served: Iterable[str]) -> str | None:
    """The served name that is meant: names have a tag there, and without one the latest is meant."""
    if given and given not in served and given.endswith(LATEST):
        return given.removesuffix(LATEST)
    return given


def chat_of(body: OllamaChatRequest, thinks: bool) -> Object:
    """The JSON object of the chat request. `thinks`: it is known how the model marks its thinking."""
    turns = body.messages or []
    chat = _common(body, thinks) | {"messages": _messages(turns)}
    if body.tools:
        chat["tools"] = body.tools
    if turns and turns[-1].role == "assistant" and turns[-1].content and not turns[-1].tool_calls:
        chat |= {"add_generation_prompt": False, "continue_final_message": True}  # its templates leave it open
    return chat


def generated_chat(body: OllamaGenerateRequest, thinks: bool) -> Object:
    """The same of one text, and perhaps a system's before it."""
    _check_generate(body)
    user = OllamaTurn("user", body.prompt or "", images=body.images)
    system = [OllamaTurn("system", body.system)] if body.system else []
    told = {"return_token_ids": not body.images}  # of what stands for a picture nobody can go on
    return _common(body, thinks) | {"messages": _messages([*system, user])} | told


def context_of(body: OllamaGenerateRequest) -> list[int]:
    """The token ids that the prompt is to stand behind."""
    if body.context and body.images:
        raise bad_request("context does not go with images; use /api/chat with all messages.", "context")
    return check_tokens(body.context or [], "context")


def completion_of(body: OllamaGenerateRequest) -> TokensRequest:
    """The completion that a raw prompt, or one with a suffix, asks for."""
    _check_generate(body)
    for field in ("system", "images", "context", "think"):
        if getattr(body, field):
            beside = "raw" if body.raw else "suffix"
            raise bad_request(f"{field} does not go with {beside}: the prompt is taken as it is.", field)
    given = _common(body, True)
    if given.pop("logprobs", False):
        given["logprobs"] = given.pop("top_logprobs", 0)
    return decode(TokensRequest, encoded(given | {"prompt": body.prompt or "", "suffix": body.suffix}, None))


def renamed(error: ApiError, options: OllamaOptions | None, of_turns: bool = True) -> ApiError:
    """An error of the chat request that names the field as this API does, or as the request has done it in `options`.
    `of_turns`: it has messages of its own.
    """
    if (picture := PICTURE.match(error.param or "")) is not None:
        own = f"{picture[1]}.images{picture[2]}" if of_turns else f"images{picture[2]}"
        error = ApiError(error.status, error.message.replace(picture[0], own), own, error.code, error.retry_after)
    said = {
        chat: f"options.{chat}" for own, chat in NAMES.items() if getattr(options, own, None) is None and chat in SAME
    }
    return with_names(error, OURS | said)


def _check_generate(body: OllamaGenerateRequest) -> None:
    if body.template:
        raise bad_request("template is not supported; use the server's --chat-template.", "template")


def _common(body: OllamaFields, thinks: bool) -> Object:
    chat: Object = {"stream": body.stream is not False, **_sampling(body.options or OllamaOptions())}
    if body.model is not None:
        chat["model"] = body.model
    if body.logprobs:
        chat |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise bad_request("top_logprobs goes with logprobs: true.", "top_logprobs")
    return chat | _format(body.format) | _thinking(body.think, thinks)


def _sampling(options: OllamaOptions) -> Object:
    for field, nothing in NOTHING.items():
        value = getattr(options, field)
        if value is not None and value not in nothing:
            raise bad_request(f"options.{field} is not supported; leave it out.", f"options.{field}")
    found: Object = {name: value for name in SAME if (value := getattr(options, name)) is not None}
    found |= {chat: value for own, chat in NAMES.items() if (value := getattr(options, own)) is not None}
    if found.get("max_tokens", 1) < 1:
        del found["max_tokens"]
    if found.get("seed", 0) < 0:
        del found["seed"]
    if found.get("typical_p") == 0:
        del found["typical_p"]
    return found


def _format(given: str | Object | None) -> Object:
    match given:
        case None | "":
            return {}
        case "json":
            return {"response_format": {"type": "json_object"}}
        case str():
            raise bad_request(f"format must be json or a JSON schema, not {given[:64]!r}.", "format")
    schema = {"name": "format", "schema": given, "strict": False}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(given: bool | str | None, thinks: bool) -> Object:
    if given is None:
        return {}
    if given and not thinks:
        raise bad_request("think: this model does not support thinking.", "think")
    chat: Object = {"chat_template_kwargs": dict.fromkeys(THINKING_SWITCHES, bool(given))} if thinks else {}
    return chat | ({"reasoning_effort": given} if isinstance(given, str) else {})


# --- messages --------------------------------------------------------------------------------------------------------


def _messages(turns: list[OllamaTurn]) -> list[Object]:
    """Calls get ids, and results those of the calls that they answer: some templates want them."""
    chat: list[Object] = []
    waiting: list[tuple[str, str]] = []  # (id, function) of calls without a result
    for index, turn in enumerate(turns):
        message: Object = {"role": turn.role, "content": _content(turn)}
        if turn.thinking:
            message["reasoning_content"] = turn.thinking
        if turn.tool_calls:
            message["tool_calls"] = [_call(call, f"call_{index}_{at}") for at, call in enumerate(turn.tool_calls)]
            waiting += [(call["id"], call["function"]["name"]) for call in message["tool_calls"]]
        if turn.role == "tool":
            message |= _answered(turn, waiting)
        chat.append(message)
    return chat


def _content(turn: OllamaTurn) -> str | list[Object]:
    if not turn.images:
        return turn.content or ""
    text: list[Object] = [{"type": "text", "text": turn.content}] if turn.content else []
    return [*({"type": "image_url", "image_url": {"url": _data_url(image)}} for image in turn.images), *text]


def _data_url(image: str) -> str:
    """What is base64 says of which kind it is by how it begins."""
    kinds = {"iVBOR": "png", "R0lGOD": "gif", "UklGR": "webp"}
    kind = next((kind for start, kind in kinds.items() if image.startswith(start)), "jpeg")
    return image if image.startswith("data:") else f"data:image/{kind};base64,{image}"


def _call(call: MadeCall, given: str) -> Object:
    arguments = msgspec.json.encode(call.function.arguments or {}).decode()
    return {
        "id": call.id or given,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _answered(turn: OllamaTurn, waiting: list[tuple[str, str]]) -> Object:
    """Which call a result is of: the one that it names, else the first of that function, else the first."""
    fits = (
        lambda call: call[0] == turn.tool_call_id,
        lambda call: turn.tool_call_id is None and call[1] == turn.tool_name,
        lambda call: turn.tool_call_id is None and turn.tool_name is None,
    )
    found = next((call for fit in fits for call in waiting if fit(call)), None)
    if found is not None:
        waiting.remove(found)
    call_id = turn.tool_call_id or (found[0] if found is not None else None)
    name = turn.tool_name or (found[1] if found is not None else None)
    return {key: value for key, value in (("tool_call_id", call_id), ("name", name)) if value is not None}
