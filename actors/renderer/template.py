"""The model's chat template: found, compiled once in a sandbox, rendered as transformers' apply_chat_template does.

The one thing it does more is to give each template contents and arguments in the form that it reads (Reads).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes

from ..config import Config, ConfigError
from ..model_files import ModelInfo
from ..tokenization import special_tokens, tokenizer_config
from .sandbox import MAX_TEXT, make_environment

CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under three names; templates read any
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, NameError, AssertionError)


class Reads(NamedTuple):
    """Which forms of a message's content a template is written for."""

    parts: bool  # it loops over them
    text: bool  # it does not, or asks first whether it is a string


class TemplateProblem(ValueError):
    """The conversation cannot be rendered; the message is for the client."""


def find_templates(config: Config, model: ModelInfo) -> dict[str, str]:
    """Templates by name: `default`, and `tool_use` where the model has one. Empty: the model does not chat."""
    if config.chat_template is not None:
        return {"default": _given_template(config.chat_template)}
    path = Path(model.tokenizer_folder) / "chat_template.jinja"
    if path.is_file():
        return {"default": path.read_text(encoding="utf-8")}
    found = tokenizer_config(model).get("chat_template")
    if isinstance(found, str):
        return {"default": found}
    return {entry["name"]: entry["template"] for entry in found or []}


def _given_template(value: str) -> str:
    """--chat-template: a file, or the text itself, which always has a brace."""
    if "{" in value:
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--chat-template: {value} cannot be read: {error}") from None


class ChatTemplate:
    """All templates of one model, compiled."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        environment = make_environment()
        self._sources = find_templates(config, model)
        try:
            self._compiled = {name: environment.from_string(text) for name, text in self._sources.items()}
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"--chat-template: line {error.lineno}: {error.message}") from None
        self._reads = {name: read_forms(environment.parse(text)) for name, text in self._sources.items()}
        self._special = special_tokens(model)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        variables: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """The conversation as text. TemplateProblem says what the template, or a reader of it, has against it."""
        name = "tool_use" if tools and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise TemplateProblem("this model has no chat template: give --chat-template, or use /v1/completions")
        if taken := RESERVED & (variables or {}).keys():
            raise TemplateProblem(f"chat_template_kwargs must not set {', '.join(sorted(taken))}")
        try:
            chat = [_prepare(message, self._reads[name]) for message in messages]
            if continue_final_message:
                self._tag_final(chat, self._sources[name])
        except TemplateProblem:
            raise
        except FAULTS as error:
            raise TemplateProblem(f"these messages are not what they should be: {error}") from None
        given = {**self._special, **(variables or {}), "messages": chat, "tools": tools, "documents": documents}
        given["add_generation_prompt"] = add_generation_prompt
        text = _collect(self._compiled[name].generate(given))
        return _cut_at_tag(text) if continue_final_message else text

    def _tag_final(self, chat: list[dict[str, Any]], source: str) -> None:
        """Mark the end of the last message's text, so that what the template puts behind it can be cut off."""
        final = chat[-1].get("content")
        if final is None or "content" not in source:
            raise TemplateProblem("continue_final_message: the final message has no content to continue")
        if isinstance(final, str):
            chat[-1]["content"] = final + CONTINUE
            return
        texts = [part for part in final if isinstance(part, dict) and "text" in part]
        if not texts:
            raise TemplateProblem("continue_final_message: the final message has no text to continue")
        texts[-1]["text"] += CONTINUE


def _collect(pieces: Iterable[str]) -> str:
    """Join what a template produces. Whatever goes wrong in it is the conversation's problem, and said so."""
    collected: list[str] = []
    size = 0
    try:
        for piece in pieces:
            collected.append(piece)
            size += len(piece)
            if size > MAX_TEXT:
                raise TemplateProblem(f"the chat template produces more than {MAX_TEXT:,} characters")
    except jinja2.TemplateError as error:
        raise TemplateProblem(str(error.message or type(error).__name__)) from None
    except FAULTS as error:
        raise TemplateProblem(f"the chat template cannot render this: {error}") from None
    except MemoryError:
        raise TemplateProblem("the chat template needs too much memory") from None
    return "".join(collected)


def _cut_at_tag(text: str) -> str:
    """The text up to the tag; without the spaces before it where the template has trimmed those behind it."""
    at = text.rfind(CONTINUE.strip())
    if at < 0:
        raise TemplateProblem("continue_final_message: the final message does not appear in the rendered chat")
    return text[:at] if text[at : at + len(CONTINUE)] == CONTINUE else text[:at].rstrip()


def _prepare(message: dict[str, Any], reads: Reads) -> dict[str, Any]:
    """A copy of a message with its content in the form that the template reads, and arguments of calls as objects."""
    message = dict(message)
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    content = message.get("content")
    if not reads.text and isinstance(content, str):
        message["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        copied = [dict(part) if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
        message["content"] = copied if reads.parts else "\n".join(str(part.get("text", "")) for part in copied)
    if message.get("tool_calls"):
        message["tool_calls"] = [_with_object(call) for call in message["tool_calls"]]
    return message


def _with_object(call: dict[str, Any]) -> dict[str, Any]:
    """OpenAI clients send a call's arguments as a JSON string; templates are written for objects."""
    function = dict(call.get("function") or {})
    if isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"] or "{}")
        except ValueError:
            raise TemplateProblem("messages: a tool call's arguments are not JSON") from None
    return {**call, "function": function}


def read_forms(template: nodes.Template) -> Reads:
    """Find it out from the template's loops and tests."""
    content = {"content"}
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _reads(assign.node, content):
            content.add(assign.target.name)
    loops = any(_reads(loop.iter, content) for loop in template.find_all(nodes.For))
    asks = any(test.name == "string" and _reads(test.node, content) for test in template.find_all(nodes.Test))
    return Reads(parts=loops, text=asks or not loops)


def _reads(node: nodes.Node, names: set[str]) -> bool:
    """Is this `x.content`, `x['content']` or a variable that holds it, filtered or not?"""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _reads(node.node, names)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
