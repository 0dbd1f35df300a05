"""context_management: what of a long conversation its model is not told again.

Edits are made of each request anew, and change nothing that the client has: it sends the whole conversation again,
and is told what was left out of it (https://platform.claude.com/docs/en/build-with-claude/context-editing).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from ..errors import bad_request
from .schemas import Amount, AnthropicTurn, ContentBlock, ContextEdit, CountRequest, Object

TOOL_USES, THINKING = "clear_tool_uses_20250919", "clear_thinking_20251015"
CLEARED = "[The result was removed to save room.]"
REDACTED = ContentBlock("redacted_thinking")  # nothing to the model; the blocks behind it keep their numbers
R = TypeVar("R", bound=CountRequest)


class Edit(Protocol):
    """One kind of what is left out."""

    @property
    def least(self) -> int:
        """Tokens; if it is less, it stays."""

    def clear(self, messages: list[AnthropicTurn]) -> tuple[list[AnthropicTurn], Object]:
        """The messages without, and what it was; {}: nothing."""

    def is_due(self, messages: list[AnthropicTurn], tokens: int) -> bool:
        """Is the conversation, of so many tokens, so long?"""


@dataclass(frozen=True)
class Edits:
    """What has come of a request's edits."""

    applied: list[Object]
    tokens: int | None  # of the prompt before them, if it was counted
    left: int | None = None  # the same behind them

    @property
    def said(self) -> Object:
        """As messages tell it."""
        return {"applied_edits": self.applied}


async def edited(request: R, count: Callable[[R], Awaitable[int]]) -> tuple[R, Edits | None]:
    """The request as its model is to have it. `count`: the tokens of its prompt. ApiError names what cannot be."""
    if request.context_management is None:
        return request, None
    tokens = first = None
    applied: list[Object] = []
    for edit in _edits(request.context_management.edits or []):
        messages, cleared = edit.clear(request.messages)
        if not cleared:
            continue
        if tokens is None:
            tokens = first = await count(request)
        if not edit.is_due(request.messages, tokens):
            continue
        shorter = msgspec.structs.replace(request, messages=messages)
        left = await count(shorter)
        if tokens - left >= edit.least:
            applied.append(cleared | {"cleared_input_tokens": tokens - left})
            request, tokens = shorter, left
    return request, Edits(applied, first, tokens)


@dataclass(frozen=True)
class ToolUses:
    """The oldest results of tools go, and with `inputs` what the tools were called with."""

    trigger: Amount
    keep: int
    least: int
    inputs: bool | list[str]
    excluded: frozenset[str]

    def clear(self, messages: list[AnthropicTurn]) -> tuple[list[AnthropicTurn], Object]:
        names = _answered_uses(messages)
        oldest = list(names)[: max(len(names) - self.keep, 0)]
        cleared = {use for use in oldest if names[use] not in self.excluded}
        if not cleared:
            return messages, {}

        def without(block: ContentBlock) -> ContentBlock:
            if block.type == "tool_result" and block.tool_use_id in cleared:
                return msgspec.structs.replace(block, content=CLEARED)
            if block.type == "tool_use" and block.id in cleared and self._clears_input(block.name):
                return msgspec.structs.replace(block, input={})
            return block

        return _each_block(messages, without), {"type": TOOL_USES, "cleared_tool_uses": len(cleared)}

    def _clears_input(self, name: str | None) -> bool:
        return name in self.inputs if isinstance(self.inputs, list) else self.inputs

    def is_due(self, messages: list[AnthropicTurn], tokens: int) -> bool:
        size = tokens if self.trigger.type == "input_tokens" else len(_answered_uses(messages))
        return size > _value(self.trigger)


@dataclass(frozen=True)
class Thinking:
    """Of thinking only that of the last turns stays. What of it a model sees is its template's matter, too."""

    keep: int
    least: int = 0

    def clear(self, messages: list[AnthropicTurn]) -> tuple[list[AnthropicTurn], Object]:
        turns = _turns(messages)
        thought = [turn for turn in turns if any(_has_thinking(messages[index]) for index in turn)]
        old = thought[: max(len(thought) - self.keep, 0)]
        if not old:
            return messages, {}
        places = {index for turn in old for index in turn}
        left = [
            _each_block([message], _unthought)[0] if index in places else message
            for index, message in enumerate(messages)
        ]
        return left, {"type": THINKING, "cleared_thinking_turns": len(old)}

    def is_due(self, messages: list[AnthropicTurn], tokens: int) -> bool:
        return True


def _edits(given: list[ContextEdit]) -> Iterator[Edit]:
    """Those that ask for something, in their order; all are looked at first."""
    kinds = [edit.type for edit in given]
    found: list[Edit] = []
    for index, edit in enumerate(given):
        path = f"context_management.edits[{index}]"
        if edit.type not in (TOOL_USES, THINKING):
            raise bad_request(f"{path}: edits of type {edit.type!r} are not supported.", f"{path}.type")
        if edit.type in kinds[:index]:
            raise bad_request(f"{path}: there is another edit of this type.", f"{path}.type")
        if edit.type == THINKING and index > 0:
            raise bad_request(f"{path}: {THINKING} must stand before other edits.", f"{path}.type")
        if (made := _tool_uses(edit, path) if edit.type == TOOL_USES else _thinking(edit, path)) is not None:
            found.append(made)
    return iter(found)


def _tool_uses(edit: ContextEdit, path: str) -> Edit:
    keep = edit.keep or Amount("tool_uses", 3)
    if isinstance(keep, str):
        raise bad_request(f"{path}.keep must be an object of type 'tool_uses'.", f"{path}.keep")
    return ToolUses(
        _checked(edit.trigger or Amount("input_tokens", 100_000), f"{path}.trigger", "input_tokens", "tool_uses"),
        _value(_checked(keep, f"{path}.keep", "tool_uses")),
        _value(_checked(edit.clear_at_least or Amount("input_tokens", 0), f"{path}.clear_at_least", "input_tokens")),
        edit.clear_tool_inputs or False,
        frozenset(edit.exclude_tools or ()),
    )


def _thinking(edit: ContextEdit, path: str) -> Edit | None:
    keep = edit.keep or Amount("thinking_turns", 1)
    if keep == "all" or (isinstance(keep, Amount) and keep.type == "all"):
        return None
    if isinstance(keep, str) or _value(_checked(keep, f"{path}.keep", "thinking_turns")) == 0:
        raise bad_request(f"{path}.keep must be 'all', or at least one of 'thinking_turns'.", f"{path}.keep")
    return Thinking(_value(keep))


def _checked(amount: Amount, path: str, *kinds: str) -> Amount:
    if amount.type not in kinds:
        raise bad_request(f"{path}.type: {amount.type!r} is not {' or '.join(kinds)}.", f"{path}.type")
    if amount.value is None or amount.value < 0:
        raise bad_request(f"{path}.value must be at least 0.", f"{path}.value")
    return amount


def _value(amount: Amount) -> int:
    assert amount.value is not None, "it was looked at"
    return amount.value


def _blocks(message: AnthropicTurn) -> list[ContentBlock]:
    return [] if isinstance(message.content, str) else message.content


def _answered_uses(messages: list[AnthropicTurn]) -> dict[str, str]:
    """The names of the tools that were called and have answered, by the ids of the calls, in their order."""
    blocks = [block for message in messages for block in _blocks(message)]
    answered = {block.tool_use_id for block in blocks if block.type == "tool_result"}
    uses = [block for block in blocks if block.type == "tool_use" and block.id in answered]
    return {use.id or "": use.name or "" for use in uses}


def _turns(messages: list[AnthropicTurn]) -> list[list[int]]:
    """The places of the assistant's messages: those between which tools have answered are one turn."""
    turns: list[list[int]] = [[]]
    for index, message in enumerate(messages):
        if message.role == "assistant":
            turns[-1].append(index)
        elif message.role == "user" and not any(block.type == "tool_result" for block in _blocks(message)):
            turns.append([])
    return turns


def _has_thinking(message: AnthropicTurn) -> bool:
    return any(block.type == "thinking" for block in _blocks(message))


def _unthought(block: ContentBlock) -> ContentBlock:
    return REDACTED if block.type == "thinking" else block


def _each_block(messages: list[AnthropicTurn], change: Callable[[ContentBlock], ContentBlock]) -> list[AnthropicTurn]:
    return [
        message if isinstance(message.content, str) else AnthropicTurn(message.role, [*map(change, message.content)])
        for message in messages
    ]
