"""The model's chat template: found, compiled once in a sandbox, rendered as transformers' apply_chat_template does.

Templates are other people's code: they run in Jinja's immutable sandbox with a bounded output and see plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.utils import Namespace

from ..config import Config, ConfigError
from ..model_files import ModelInfo
from ..tokenization import special_tokens, tokenizer_config

MAX_TEXT = 32 << 20  # characters that a template may produce
CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
REASONING = ("reasoning_content", "thinking", "reasoning")  # one thing under three names; templates read any
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class TemplateProblem(ValueError):
    """The conversation cannot be rendered; the message is for the client."""


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training; here it is only passed over."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class PlainDict:
    """`dict` for templates: it makes dictionaries, and the type itself, through which Python is reached, is hidden."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class PlainNamespace(Namespace):
    """`namespace` for templates, without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # Namespace's own form: `self` is a name like any other
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, as {name!r} does")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def make_environment() -> ImmutableSandboxedEnvironment:
    """The environment that chat templates are written for."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment


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
        self._wants_parts = {name: wants_parts(environment.parse(text)) for name, text in self._sources.items()}
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
        chat = [_prepare(message, self._wants_parts[name]) for message in messages]
        if continue_final_message:
            self._tag_final(chat, self._sources[name])
        given = {**self._special, **(variables or {})}
        pieces = self._compiled[name].generate(
            messages=chat, tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, **given
        )
        text = _collect(pieces)
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
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, ArithmeticError, RecursionError) as error:
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


def _prepare(message: dict[str, Any], parts: bool) -> dict[str, Any]:
    """A copy of a message with its content in the form that the template reads, and arguments of calls as objects."""
    message = dict(message)
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    content = message.get("content")
    if parts and isinstance(content, str):
        message["content"] = [{"type": "text", "text": content}]
    elif isinstance(content, list):
        copied = [dict(part) if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
        message["content"] = copied if parts else "\n".join(str(part.get("text", "")) for part in copied)
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


def wants_parts(template: nodes.Template) -> bool:
    """Does the template loop over a message's content, that is, read it as a list of parts?"""
    content = {"content"}
    for assign in template.find_all(nodes.Assign):
        if isinstance(assign.target, nodes.Name) and _reads(assign.node, content):
            content.add(assign.target.name)
    return any(_reads(loop.iter, content) for loop in template.find_all(nodes.For))


def _reads(node: nodes.Node, names: set[str]) -> bool:
    """Is this `x.content`, `x['content']` or a variable that holds it, filtered or not?"""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _reads(node.node, names)
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names
