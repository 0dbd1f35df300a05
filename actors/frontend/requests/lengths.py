"""How long messages may be that clients make long: a lane takes none beyond its limit, and nothing that was begun for
one may be left behind. So they are measured before; whoever asks for too much is told which field it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from actorserve.http.errors import ApiError

from ...protocol.messages import Message, Render
from ...protocol.topics.adapters import LoadAdapter
from ...protocol.topics.administration import Abort, CallArguments, CallWorkers
from ...protocol.topics.calls import Detokenize, Measure, Tokenize
from ...protocol.topics.io_processors import PreProcess
from ...protocol.topics.prompts import (
    ChatPrompt,
    EmbedsPrompt,
    PairPrompt,
    Prompt,
    SoundPrompt,
    TextPrompt,
    TokenPrompt,
)
from ...runtime.process import Context


def post_measured(context: Context, target: str, message: Message) -> None:
    """Post it as a record of its own; ApiError 413 if it is too long for its lane."""
    check_length(context, target, message)
    context.post_alone(target, message)


def check_length(context: Context, target: str, message: Message, more: int = 0) -> None:
    """The same before it is posted. `more`: bytes that it will have beyond those that it has now."""
    size, most = len(msgspec.msgpack.encode(message)) + more, context.outboxes[target].max_message
    if size > most:
        field = longest(parts_of(message))
        text = f"{field}: other processes of the server would be told {size} bytes of the request, most of them for "
        raise ApiError(413, f"{text}this field; at most {most} are taken.", field)


def longest(parts: Mapping[str, Any]) -> str:
    """The field that takes most."""
    return max(parts, key=lambda field: len(msgspec.msgpack.encode(parts[field])))


def parts_of(message: Message) -> dict[str, Any]:
    """What of it clients make long, by the fields of their requests."""
    match message:
        case Render():
            others = {message.constrained_by: message.constraint, "bad_words": message.bad_words}
            return {**parts_of_prompt(message.prompt, message.field), **others}
        case Tokenize():
            return parts_of_prompt(message.prompt)
        case Detokenize():
            return {"tokens": message.tokens}
        case Measure():
            return {"file": message.data}
        case PreProcess():
            return {"data": message.data}
        case Abort():
            return {"request_ids": message.request_ids}
        case CallWorkers():
            given = msgspec.json.decode(message.arguments, type=CallArguments)
            return {"args": given.args, "kwargs": given.kwargs, "method": message.method}
        case LoadAdapter():
            return {"lora_path": message.path}
    raise TypeError(f"no client makes a {type(message).__name__} long")


def parts_of_prompt(prompt: Prompt, field: str = "") -> dict[str, Any]:
    """The same of a prompt, which stands in this field, if it is not of the usual one."""
    match prompt:
        case ChatPrompt():
            return {
                field or "messages": prompt.messages,
                "tools": prompt.tools,
                "documents": prompt.documents,
                "chat_template_kwargs": prompt.template_kwargs,
                "chat_template": prompt.chat_template,
                "context": prompt.context,
            }
        case TextPrompt() | TokenPrompt():
            return {field or "prompt": prompt}
        case PairPrompt():
            return {
                field or prompt.field or "prompt": [prompt.text, prompt.second],
                "instruction": prompt.instruction,
                "chat_template_kwargs": prompt.variables,
                "chat_template": prompt.template,
            }
        case SoundPrompt():
            return {field or "file": prompt.data, "prompt": prompt.text}
        case EmbedsPrompt():
            return {field or "prompt_embeds": prompt.data}
