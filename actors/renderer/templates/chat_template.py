"""The model's chat template: found, compiled once in a sandbox, rendered as transformers' apply_chat_template does.

What it does more is to give each template contents and arguments in the form that it reads (content_formats.py), and
whether to think by the names that it has for that (switches.py).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from typing import Any

import jinja2

from ...model.info import ModelInfo
from ...model.tokenizers.tokenizer import find_templates, special_tokens, template_place
from ...options.config import Config, ConfigError
from .cache import Compiled, RequestTemplates, compile_template
from .content_formats import Reads, fit_all, with_contents
from .memory_limit import bounded_memory
from .problem import FAULTS, NO_MEMORY, Declined, OutOfMemory, TemplateProblem, problem_of
from .sandbox import MAX_TEXT, make_environment
from .switches import with_switches
from .turns.alternation import alternating
from .turns.before_calls import thought_before_calls
from .turns.later_system import first_as_one, first_said_by_user, said_by_user

__all__ = ["ChatTemplate", "TemplateProblem", "find_templates"]

CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
MAX_MEMORY = 512 << 20  # bytes beside what the process has; a text of MAX_TEXT characters may take 128 MiB, twice
TOO_MUCH = (*FAULTS, *NO_MEMORY, jinja2.TemplateError)


class ChatTemplate:
    """All templates of one model, compiled, and those that came with requests."""

    def __init__(self, config: Config, model: ModelInfo, beat: Callable[[], None] = lambda: None) -> None:
        """`beat` is called as a request's template is tried, which is more than to render it."""
        content_format = config.chat_template_content_format
        environment = make_environment()
        self._compiled: dict[str, Compiled] = {}
        with bounded_memory(MAX_MEMORY):
            for name, source in find_templates(config, model).items():
                try:
                    self._compiled[name] = compile_template(environment, source, content_format)
                except ValueError as error:
                    raise ConfigError(f"{template_place(config, model, name)}: {error}") from None
        self._requested = RequestTemplates(environment, content_format, beat)
        self._special = special_tokens(model)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        variables: dict[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
    ) -> str:
        """The conversation as text. TemplateProblem says what the template, or a reader of it, has against it.

        `chat_template` is the request's own, where the caller allows one.
        """
        given: dict[str, Any] = {"tools": tools, "documents": documents, "add_generation_prompt": add_generation_prompt}
        _check(messages, given, variables)
        with bounded_memory(MAX_MEMORY):
            chosen = self._chosen(bool(tools)) if chat_template is None else self._requested.get(chat_template)
            given = {**self._special, **with_switches(variables or {}, chosen.switches), **given}
            return _rendered(chosen, messages, given, continue_final_message)

    def _chosen(self, with_tools: bool) -> Compiled:
        name = "tool_use" if with_tools and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise TemplateProblem("this model has no chat template: give --chat-template, or use /v1/completions")
        return self._compiled[name]


def _check(messages: Any, given: dict[str, Any], variables: dict[str, Any] | None) -> None:
    """Refuse what transformers refuses, whatever the template."""
    if not isinstance(messages, list) or not messages:
        raise TemplateProblem("messages: there must be at least one")
    for field in ("tools", "documents"):
        items = given[field]
        if items is not None and not (isinstance(items, list) and all(isinstance(item, dict) for item in items)):
            raise TemplateProblem(f"{field} must be a list of objects", field)
    if taken := RESERVED & (variables or {}).keys():
        raise TemplateProblem(f"chat_template_kwargs must not set {', '.join(sorted(taken))}", "chat_template_kwargs")


def _rendered(chosen: Compiled, messages: list[dict[str, Any]], given: dict[str, Any], continued: bool) -> str:
    try:
        return _as_given(chosen, messages, given, continued)
    except Declined as error:
        declined = error
    for change in (thought_before_calls, said_by_user, first_as_one, alternating, first_said_by_user):
        changed = change(messages)
        if changed is None:
            continue
        messages = changed
        try:
            return _as_given(chosen, messages, given, continued)
        except Declined:
            continue
    raise declined


def _as_given(chosen: Compiled, messages: list[dict[str, Any]], given: dict[str, Any], continued: bool) -> str:
    chat = _fitted(messages, chosen.reads)
    if not continued:
        return _collected(chosen, chat, given)
    if "content" not in chosen.source:
        raise _not_continued("the chat template has no content")
    final = _tag_final(chat)
    return _cut_at_tag(_collected(chosen, chat, given), final)


def _collected(chosen: Compiled, chat: list[dict[str, Any]], given: dict[str, Any]) -> str:
    """A content that is null, as clients send it beside calls, is left out, as transformers does. Where the template
    fails so, it is null if that is asked for, else an empty text.
    """
    try:
        return _collect(chosen, {**given, "messages": chat})
    except OutOfMemory:
        raise
    except TemplateProblem as error:
        problem = error
    for content in (None, "") if chosen.reads.asks_none else ("",):
        filled = with_contents(chat, content)
        if filled is None:
            break
        try:
            return _collect(chosen, {**given, "messages": filled})
        except OutOfMemory:
            raise
        except TemplateProblem:
            continue
    raise problem


def _fitted(messages: list[dict[str, Any]], reads: Reads) -> list[dict[str, Any]]:
    try:
        return fit_all(messages, reads)
    except TemplateProblem:
        raise
    except NO_MEMORY as error:
        raise problem_of(error, "messages") from None
    except FAULTS as error:
        raise TemplateProblem(f"these messages are not what they should be: {error}") from None


def _collect(chosen: Compiled, given: dict[str, Any]) -> str:
    """What a template produces. Whatever goes wrong in it is the conversation's problem, and said so."""
    field = "chat_template" if chosen.from_request else "messages"
    try:
        return _joined(chosen.template.generate(given), field)
    except TemplateProblem:
        raise
    except TOO_MUCH as error:
        problem = problem_of(error, field)
        much = isinstance(error, NO_MEMORY)
    if much:  # what the template had made is not kept until the next collection
        gc.collect()
    raise problem


def _joined(pieces: Iterable[str], field: str) -> str:
    collected: list[str] = []
    size = 0
    for piece in pieces:
        collected.append(piece)
        size += len(piece)
        if size > MAX_TEXT:
            raise TemplateProblem(f"the chat template produces more than {MAX_TEXT:,} characters", field)
    return "".join(collected)


def _not_continued(words: str) -> TemplateProblem:
    return TemplateProblem(f"continue_final_message: {words}", "continue_final_message")


def _tag_final(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's text, so that what the template puts behind it can be cut off."""
    final = chat[-1].get("content")
    if isinstance(final, str):
        chat[-1]["content"] = final + CONTINUE
        return final
    texts = [part for part in final or [] if isinstance(part, dict) and isinstance(part.get("text"), str)]
    if not texts:
        raise _not_continued("the final message has no text to continue")
    text: str = texts[-1]["text"]
    texts[-1]["text"] = text + CONTINUE
    return text


def _cut_at_tag(text: str, final: str) -> str:
    """The text up to the tag; without the spaces before it where the template has trimmed those behind it."""
    at = text.rfind(CONTINUE.strip())
    if at < 0 or final.strip() not in text:
        raise _not_continued("the final message does not appear in the rendered chat")
    return text[:at] if text[at : at + len(CONTINUE)] == CONTINUE else text[:at].rstrip()
