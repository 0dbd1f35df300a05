"""Parsers by the names that options use, and which a chat template asks for."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..events import OutputParser
from .calls import Schemas
from .harmony import Harmony
from .json_calls import Granite, Hermes, JsonArray, Llama3Json, Longcat, Mistral, NamedCall, Nemotron, ToolCalls
from .nested import MinimaxM3
from .pythonic import Pythonic
from .reasoning import Chain, Plain, ThinkingReader, Unwrapped
from .sections import DeepSeekV3, DeepSeekV31, KimiK2
from .tagged import Glm45, MinimaxM2, Qwen3Coder, SeedOss

JSON_ARRAY = "json_array"  # where a grammar forces calls; no option
HARMONY_TOOLS, HARMONY_REASONING = "openai", "openai_gptoss"

TOOL_PARSERS: dict[str, Callable[[Schemas], OutputParser]] = {
    "hermes": Hermes,
    "qwen3_coder": Qwen3Coder,
    "qwen3_xml": Qwen3Coder,
    "llama3_json": Llama3Json,
    "pythonic": Pythonic,
    "mistral": Mistral,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeekV31,
    HARMONY_TOOLS: Harmony,
    "glm45": Glm45,
    "kimi_k2": KimiK2,
    "granite": Granite,
    "seed_oss": SeedOss,
    "minimax_m2": MinimaxM2,
    "minimax_m3": MinimaxM3,
    "llama4_json": Llama3Json,
    "llama4_pythonic": Pythonic,
    "hunyuan_a13b": ToolCalls,
    "jamba": ToolCalls,
    "nemotron_json": Nemotron,
    "longcat": Longcat,
    JSON_ARRAY: JsonArray,
}

THINK_MARKERS: dict[str, tuple[str, str]] = {
    "deepseek_r1": ("<think>", "</think>"),
    "deepseek_v3": ("<think>", "</think>"),
    "qwen3": ("<think>", "</think>"),
    "glm45": ("<think>", "</think>"),
    "mistral": ("[THINK]", "[/THINK]"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "granite33": ("<think>", "</think>"),
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "minimax_m2": ("<think>", "</think>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    HARMONY_REASONING: ("<|channel|>analysis", "<|channel|>final"),
}
"""What begins and ends reasoning, as text (with special tokens kept)."""

STARTS_INSIDE = frozenset({"deepseek_r1", HARMONY_REASONING})
"""The text begins with reasoning where the prompt neither opens nor closes it: the renderer says so of each."""

NEEDS_SPECIAL = frozenset((TOOL_PARSERS.keys() | THINK_MARKERS.keys()) - {JSON_ARRAY})
"""Their markers are special tokens in some model's vocabulary, so that the text must keep these."""


def _between(name: str) -> Callable[[bool], OutputParser]:
    start, end = THINK_MARKERS[name]
    return lambda opened: ThinkingReader((start,), (end,), opened, anywhere=name == "mistral")


def _granite(opened: bool) -> OutputParser:
    start, end = THINK_MARKERS["granite"]
    starts, ends = ((one, one.replace("Here is", "Here's")) for one in (start, end))
    return ThinkingReader(starts, ends, inside=opened)


def _granite33(opened: bool) -> OutputParser:
    return Chain(_between("granite33")(opened), Unwrapped("<response>", "</response>"))


def _harmony(opened: bool) -> OutputParser:
    return Harmony(opened=opened, calls=False)


REASONING_PARSERS: dict[str, Callable[[bool], OutputParser]] = {
    **{name: _between(name) for name in THINK_MARKERS},
    "granite": _granite,
    "granite33": _granite33,
    HARMONY_REASONING: _harmony,
}


def make_parser(
    *, reasoning: str | None, tools: str | None, schemas: Schemas, opened: bool = False, named: str | None = None
) -> OutputParser:
    """One choice's parser. What is content to the reasoning parser is read for tool calls; harmony does both at once.

    `opened`: the text begins inside reasoning. `named`: a grammar makes all content the arguments of this tool.
    """
    if tools == HARMONY_TOOLS and named is None:
        return Harmony(schemas, opened)
    second = NamedCall(named) if named is not None else TOOL_PARSERS[tools](schemas) if tools else None
    if reasoning is None:
        return second or Plain()
    first = REASONING_PARSERS[reasoning](opened)
    if reasoning == "qwen3" and tools in CALL_LINES and isinstance(first, ThinkingReader):
        first.may_end_at(CALL_LINES[tools])
    return Chain(first, second) if second else first


CALL_LINES = {
    "hermes": '<tool_call>\n{"name":',
    **dict.fromkeys(("qwen3_coder", "qwen3_xml"), "<tool_call>\n<function="),
}
"""What calls of Qwen begin with even where it has not said that its thinking is over."""

_TOOL_SIGNS: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", HARMONY_TOOLS),
    (r"<seed:tool_call>", "seed_oss"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"\]<\]minimax\[>\[", "minimax_m3"),
    (r"<arg_key>", "glm45"),
    (r"<function=[\s\S]*<parameter=", "qwen3_coder"),
    (r"<\|tool_calls_section_begin\|>", "kimi_k2"),
    (r"<｜tool▁calls▁begin｜>[\s\S]*```json", "deepseek_v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek_v31"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_calls>(?!\s*<)", "hunyuan_a13b"),
    (r"<TOOLCALL>", "nemotron_json"),
    (r"<longcat_tool_call>", "longcat"),
    (r"\[func_name1\(|<\|tool_call_start\|>", "pythonic"),
    (r"<\|python_start\|>[\s\S]*\"parameters\"|\"parameters\"[\s\S]*<\|python_start\|>", "llama3_json"),
    (r"<\|python_start\|>", "pythonic"),
    (r"<\|header_start\|>[\s\S]*\"parameters\"", "llama3_json"),
    (r"<\|python_tag\|>|<\|start_header_id\|>ipython", "llama3_json"),
    (r"<tool_call>", "hermes"),
)
_ALWAYS_THINKS = r"<｜Assistant｜><think>(?:\\n|\n)?['\"]?\s*-?(?:[}%]\}|\{%)"  # it is the prompt's end
_REASONING_SIGNS: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", HARMONY_REASONING),
    (r"\[THINK\]", "mistral"),
    (r"Here is my thought process:", "granite"),
    (r"<response></response>", "granite33"),
    (r"<seed:think>", "seed_oss"),
    (r"<mm:think>", "minimax_m3"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"<arg_key>[\s\S]*</think>|</think>[\s\S]*<arg_key>", "glm45"),
    (_ALWAYS_THINKS, "deepseek_r1"),
    (r"<｜Assistant｜>[\s\S]*</think>|</think>[\s\S]*<｜Assistant｜>", "deepseek_v3"),
    (r"</think>", "qwen3"),
)
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


def detect(template: str) -> tuple[str | None, str | None]:
    """(tool parser, reasoning parser) for models with this chat template, by the markup that stands in it."""
    template = _COMMENT.sub("", template)
    return _first(_TOOL_SIGNS, template), _first(_REASONING_SIGNS, template)


def speaks_of_tools(template: str) -> bool:
    """Does it show tools, or calls of them, to the model?"""
    return re.search(r"\btools\b|\btool_calls\b", _COMMENT.sub("", template)) is not None


def _first(signs: tuple[tuple[str, str], ...], template: str) -> str | None:
    return next((name for sign, name in signs if re.search(sign, template)), None)
