"""Thinking by the names of other servers' chats: `reasoning` (OpenRouter, SGLang), `thinking` (DeepSeek, GLM, Kimi),
`enable_thinking` with `thinking_budget` (Qwen), `thinking_budget_tokens` or `reasoning_budget_tokens` (llama-server).
To all that follows it is what OpenAI and vLLM have for it, and the chat template's switches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.sampling.ranges import INT31

from ..errors import bad_request

if TYPE_CHECKING:
    from .schemas import ChatRequest

T = TypeVar("T")
THINKING_SWITCHES = ("enable_thinking", "thinking")  # by these names templates know it
TURNED = {"enabled": True, "disabled": False}  # in other cases it is left to the template
EFFORT, MODE = "thinking_effort", "thinking_mode"  # few templates have these names, and are told by them what is said
MODES = ("enabled", "disabled", "adaptive")  # by the others; of a mode with other words requests say nothing
BUDGET = "thinking_token_budget"
ThinkingBudget = Annotated[int, Meta(ge=-1, le=INT31)]  # -1: no limit


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True):
    effort: str | None = None
    enabled: bool | None = None
    exclude: bool | None = None  # the answer does not tell it
    max_tokens: Annotated[int, Meta(ge=1, le=INT31)] | None = None
    summary: str | None = None  # none is made: the thinking itself is told
    generate_summary: str | None = None  # its older name


class ThinkingOptions(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive", "auto"] | None = None
    budget_tokens: Annotated[int, Meta(ge=1, le=INT31)] | None = None
    display: Literal["summarized", "omitted"] | None = None  # the answer tells the thinking itself, or nothing of it
    clear_thinking: bool | None = None  # GLM's template: of earlier turns
    effort: str | None = None
    keep: Literal["all"] | None = None  # the opposite of the same, as Kimi's clients say it


def rename_thinking(body: ChatRequest) -> None:
    """The body says the same by its other fields. ApiError names what contradicts them; chat_template_kwargs win."""
    budgets = _budgets(body)
    if all(given is None for given in (body.reasoning, body.thinking, body.enable_thinking, *budgets.values())):
        return
    reasoning, thinking = body.reasoning or ReasoningOptions(), body.thinking
    variables: dict[str, object] = {}
    options = thinking if isinstance(thinking, ThinkingOptions) else ThinkingOptions()
    if options.clear_thinking is not None:
        variables["clear_thinking"] = options.clear_thinking
    if options.keep is not None:
        variables["preserve_thinking"] = True
    if isinstance(thinking, ThinkingOptions):
        thinking = TURNED.get(options.type or "")
    turned = {"enable_thinking": body.enable_thinking, "thinking": thinking, "reasoning.enabled": reasoning.enabled}
    if (on := _agreed(turned)) is not None:
        variables |= dict.fromkeys(THINKING_SWITCHES, on)
    if variables:
        body.chat_template_kwargs = variables | (body.chat_template_kwargs or {})
    efforts = {"reasoning_effort": body.reasoning_effort, "reasoning.effort": reasoning.effort}
    body.reasoning_effort = _agreed({**efforts, "thinking.effort": options.effort})
    told = {"include_reasoning": body.include_reasoning}
    told["reasoning.exclude"] = None if reasoning.exclude is None else not reasoning.exclude
    told["thinking.display"] = None if options.display is None else options.display != "omitted"
    body.include_reasoning = _agreed(told)
    body.thinking_token_budget = _agreed(budgets)


def with_defaults(said: dict[str, object], defaults: dict[str, object]) -> dict[str, object]:
    """A template's variables: the operator's, where a request does not say the same, by whatever name."""
    left_out = set[str]()
    if "reasoning_effort" in said:
        left_out.add(EFFORT)
    if is_off(said):
        left_out.add("reasoning_effort")
    if defaults.get(MODE) in MODES and not said.keys().isdisjoint(THINKING_SWITCHES):
        left_out.add(MODE)
    return {name: value for name, value in defaults.items() if name not in left_out} | said


def is_off(variables: dict[str, object]) -> bool:
    """Do a template's variables say that nothing is to be thought?"""
    enable, thinking = THINKING_SWITCHES
    return variables.get(enable, variables.get(thinking)) is False


def budget_field(body: ChatRequest) -> str:
    """By which field it says how much is thought."""
    return next((name for name, tokens in reversed(_budgets(body).items()) if tokens is not None), BUDGET)


def _budgets(body: ChatRequest) -> dict[str, int | None]:
    thinking, reasoning = body.thinking, body.reasoning
    return {
        BUDGET: body.thinking_token_budget,
        "thinking_budget": body.thinking_budget,
        "thinking_budget_tokens": body.thinking_budget_tokens,
        "reasoning_budget_tokens": body.reasoning_budget_tokens,
        "thinking.budget_tokens": thinking.budget_tokens if isinstance(thinking, ThinkingOptions) else None,
        "reasoning.max_tokens": None if reasoning is None else reasoning.max_tokens,
    }


def _agreed(given: dict[str, T | None]) -> T | None:
    """The value that these fields have, if any has one."""
    found = [(name, value) for name, value in given.items() if value is not None]
    for name, value in found[1:]:
        if value != found[0][1]:
            raise bad_request(f"{name}: {found[0][0]} asks for something else; give either.", name)
    return found[0][1] if found else None
