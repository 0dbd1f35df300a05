"""Parsers by the names that options use, and which a chat template asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from ..events import OutputParser
from .calls import Schemas
from .formats.functionary import Functionary
from .formats.gemma import GemmaCalls
from .formats.harmony import Harmony
from .formats.json_calls import (
    JSON_FORMS,
    Apertus,
    GigaChat,
    JsonArray,
    Llama3Json,
    MarkedCalls,
    Mistral,
    NamedCall,
)
from .formats.keyed import Glm45, HunyuanV3, SolarOpen2
from .formats.nested import MinimaxM3
from .formats.pythonic import Pythonic, PythonLines, ToolCode
from .formats.sections import DeepSeekV3, DeepSeekV31, KimiK2, Plamo3
from .formats.tagged import Dots, MiniCPM5, MinimaxM2, Qwen3Coder, SeedOss, Step3
from .formats.typed_tags import DeepSeekV32, DeepSeekV41, GigaChat35, KimiK3
from .reasoning import Chain, MarkedThinking, Plain, ThinkingReader, Unwrapped, WithinContent

JSON_ARRAY = "json_array"  # where a grammar forces calls; no option
HARMONY_TOOLS, HARMONY_REASONING = "openai", "openai_gptoss"
THINKS_IN_CONTENT = "minimax_m2_append_think"  # for clients that send it back so in the next turn

TOOL_PARSERS: dict[str, Callable[[Schemas], OutputParser]] = {
    **{name: partial(MarkedCalls, form) for name, form in JSON_FORMS.items()},
    **dict.fromkeys(("qwen3_coder", "qwen3_xml", "step3p5", "mimo"), Qwen3Coder),
    "llama3_json": Llama3Json,
    **dict.fromkeys(("pythonic", "llama4_pythonic", "lfm2"), Pythonic),
    "olmo3": PythonLines,
    "gemma3": ToolCode,
    "gemma4": partial(GemmaCalls, "<|tool_call>", "<tool_call|>", '<|"|>'),
    "functiongemma": partial(GemmaCalls, "<start_function_call>", "<end_function_call>", "<escape>"),
    "functionary": Functionary,
    "mistral": Mistral,
    "apertus": Apertus,
    "gigachat3": GigaChat,
    "deepseek_v3": DeepSeekV3,
    "deepseek_v31": DeepSeekV31,
    HARMONY_TOOLS: Harmony,
    **dict.fromkeys(("deepseek_v32", "deepseek_v4"), DeepSeekV32),
    "deepseek_v41": DeepSeekV41,
    "gigachat35": GigaChat35,
    **dict.fromkeys(("glm45", "glm47"), Glm45),
    "hy_v3": HunyuanV3,
    "solar_open2": SolarOpen2,
    "minicpm5": MiniCPM5,
    "kimi_k2": KimiK2,
    "kimi_k3": KimiK3,
    "plamo3": Plamo3,
    "seed_oss": SeedOss,
    "step3": Step3,
    "minimax_m2": MinimaxM2,
    "dots": Dots,
    "minimax_m3": MinimaxM3,
    "llama4_json": Llama3Json,
    JSON_ARRAY: JsonArray,
}

_THINK = ("<think>", "</think>")
_COHERE = ("<|START_THINKING|>", "<|END_THINKING|>")
THINK_MARKERS: dict[str, tuple[str, str]] = {
    "deepseek_r1": _THINK,
    "deepseek_v3": _THINK,
    "deepseek_v4": _THINK,
    "qwen3": _THINK,
    "glm45": _THINK,
    "kimi_k2": _THINK,
    "step3": _THINK,
    "step3p5": _THINK,
    "olmo3": _THINK,
    "nemotron_v3": _THINK,
    "ernie45": _THINK,
    "hunyuan_a13b": _THINK,
    "hy_v3": ("<think:opensource>", "</think:opensource>"),
    "apriel": ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    "mistral": ("[THINK]", "[/THINK]"),
    "granite": ("Here is my thought process:", "Here is my response:"),
    "granite33": _THINK,
    "gemma4": ("<|channel>thought", "<channel|>"),
    "apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "cohere_command3": _COHERE,
    "cohere_command4": _COHERE,
    "seed_oss": ("<seed:think>", "</seed:think>"),
    "longcat": ("<longcat_think>", "</longcat_think>"),
    "minimax_m2": _THINK,
    THINKS_IN_CONTENT: _THINK,
    "solar_open2": ("<|think:start|>", "<|think:end|>"),
    "minimax_m3": ("<mm:think>", "</mm:think>"),
    "kimi_k3": ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    "kimi": ("◁think▷", "◁/think▷"),
    "plamo3": ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    HARMONY_REASONING: ("<|channel|>analysis", "<|channel|>final"),
}
"""What begins and ends reasoning, as text (with special tokens kept)."""

ANSWER_TAGS: dict[str, tuple[str, ...]] = {
    "granite33": ("<response>", "</response>"),
    "ernie45": ("<response>", "</response>"),
    "hunyuan_a13b": ("<answer>", "</answer>"),
    "cohere_command3": ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    "cohere_command4": ("<|START_TEXT|>", "<|END_TEXT|>"),
    "kimi_k3": ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
}
"""What stands around the answer, where a model marks that, too, and what may stand behind it all."""

ANSWER_BEGINS: dict[str, tuple[str, ...]] = {
    "cohere_command3": ("<|START_RESPONSE|>", "<|START_ACTION|>"),
    "cohere_command4": ("<|START_TEXT|>", "<|START_ACTION|>"),
    "kimi_k3": ("<|open|>response<|sep|>", "<|open|>tools<|sep|>"),
}
"""What answers and calls begin with even where a model has not said that its thinking is over."""

STARTS_INSIDE = frozenset({"deepseek_r1", HARMONY_REASONING})
"""The text begins with reasoning where the prompt neither opens nor closes it: the renderer says so of each."""

NEEDS_SPECIAL = frozenset((TOOL_PARSERS.keys() | THINK_MARKERS.keys()) - {JSON_ARRAY})
"""Their markers are special tokens in some model's vocabulary, so that the text must keep these."""


PLUGIN = "plugin"
"""A parser of whoever runs the server; its markers may be special tokens, too."""


def plug(tools: Callable[[Schemas], OutputParser] | None, reasoning: Callable[[bool], OutputParser] | None) -> None:
    """Let these be found as PLUGIN. `markers` of the second, if it has some, are (start, end) of thinking as text."""
    if tools is not None:
        TOOL_PARSERS[PLUGIN] = tools
    if reasoning is not None:
        REASONING_PARSERS[PLUGIN] = reasoning
        if (markers := getattr(reasoning, "markers", None)) is not None:
            start, end = markers
            THINK_MARKERS[PLUGIN] = (start, end)


def _thinking(name: str, opened: bool) -> ThinkingReader:
    start, end = THINK_MARKERS[name]
    calls = "[TOOL_CALLS]" if name == "mistral" else None
    special = name in ("gemma4", "apertus")
    return ThinkingReader((start,), (end,), opened, several_before=calls, special=special)


def _granite(opened: bool) -> OutputParser:
    start, end = THINK_MARKERS["granite"]
    starts, ends = ((one, one.replace("Here is", "Here's")) for one in (start, end))
    return ThinkingReader(starts, ends, inside=opened)


def _hunyuan(opened: bool) -> OutputParser:
    starts, ends = zip(THINK_MARKERS["hy_v3"], _THINK, strict=True)  # its preview's tags have no suffix
    return ThinkingReader(starts, ends, opened)


def _answering(name: str) -> Callable[[bool], OutputParser]:
    def make(opened: bool) -> OutputParser:
        thinking = _thinking(name, opened)
        thinking.may_end_at(*ANSWER_BEGINS.get(name, ()))
        return Chain(thinking, Unwrapped(*ANSWER_TAGS[name]))

    return make


def _harmony(opened: bool) -> OutputParser:
    return Harmony(opened=opened, calls=False)


REASONING_PARSERS: dict[str, Callable[[bool], OutputParser]] = {
    **{name: partial(_thinking, name) for name in THINK_MARKERS},
    **{name: _answering(name) for name in ANSWER_TAGS},
    "granite": _granite,
    "hy_v3": _hunyuan,
    THINKS_IN_CONTENT: partial(MarkedThinking, *THINK_MARKERS[THINKS_IN_CONTENT]),
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
    if (calls := CALL_BEGINS.get((reasoning, tools or ""))) and isinstance(first, ThinkingReader):
        first.may_end_at(*calls)
    made = Chain(first, second) if second else first
    return WithinContent(made) if reasoning == THINKS_IN_CONTENT else made


CALL_BEGINS: dict[tuple[str, str], tuple[str, ...]] = {
    ("qwen3", "hermes"): ('\n<tool_call>\n{"name":',),
    **{("qwen3", name): ("\n<tool_call>\n<function=",) for name in ("qwen3_coder", "qwen3_xml", "mimo")},
    ("plamo3", "plamo3"): Plamo3.starts,
    ("kimi_k2", "kimi_k2"): ("<|tool_calls_section_begin|>", "<|tool_call_begin|>"),
    ("gemma4", "gemma4"): ("<|tool_call>call:",),
    ("apertus", "apertus"): ("<|tools_prefix|>",),
    ("solar_open2", "solar_open2"): SolarOpen2.starts,
    ("hy_v3", "hy_v3"): ("<tool_calls:opensource>", "<tool_call:opensource>"),
    ("deepseek_v3", "deepseek_v31"): ("<｜tool▁calls▁begin｜>",),
    **{
        (reasoning, name): calls.starts
        for reasoning in ("deepseek_v3", "deepseek_v4")
        for name, calls in (
            ("deepseek_v32", DeepSeekV32),
            ("deepseek_v4", DeepSeekV32),
            ("deepseek_v41", DeepSeekV41),
        )
    },
}
"""What calls begin with even where a model has not said that its thinking is over, by reasoning and tool parser."""


def _all(*signs: str) -> str:
    """A template that has them all, in any order."""
    return r"\A" + "".join(rf"(?=[\s\S]*{sign})" for sign in signs)


_TOOL_SIGNS: tuple[tuple[str, str], ...] = (
    (r"<\|channel\|>", HARMONY_TOOLS),
    (r"<seed:tool_call>", "seed_oss"),
    (_all("<tool_(?:sep|calls)", "<arg_key"), "hy_v3"),  # the second is Hy4's
    (r"<function name=[\s\S]*<param name=", "minicpm5"),
    (r"<minimax:tool_call>", "minimax_m2"),
    (r"\]<\]minimax\[>\[", "minimax_m3"),
    (_all(r"<\|open\|>", r"<\|sep\|>"), "kimi_k3"),
    (r"<\|plamo:begin_tool_request:plamo\|>", "plamo3"),
    (r"<\|tool_call>", "gemma4"),
    (r"<start_function_call>", "functiongemma"),
    (r"｜GCML｜", "gigachat35"),
    (r"<dots_function_call>", "dots"),
    (r"<\|tool_call:start\|>", "solar_open2"),
    (r"｜DSML｜ ", "deepseek_v41"),
    (r"｜DSML｜tool_calls", "deepseek_v4"),
    (r"｜DSML｜", "deepseek_v32"),
    (r"<steptml:invoke", "step3"),
    (_all(r"<\|START_ACTION\|>", r"<\|START_TEXT\|>"), "cohere_command4"),
    (r"<\|START_ACTION\|>", "cohere_command3"),
    (r"<\|tools_prefix\|>", "apertus"),
    (_all("Action:", "json-formatted list", "tool_name"), "cohere_command_r"),
    (_all("function call", r"<\|role_sep\|>"), "gigachat3"),
    (r"<arg_key>", "glm45"),
    (r"<function=[\s\S]*<parameter=", "qwen3_coder"),
    (r"<\|tool_calls_section_begin\|>", "kimi_k2"),
    (r"<｜tool▁calls▁begin｜>[\s\S]*```json", "deepseek_v3"),
    (r"<｜tool▁calls▁begin｜>", "deepseek_v31"),
    (r"\[TOOL_CALLS\]", "mistral"),
    (r"functools\[|<\|/tool\|>", "phi4_mini_json"),
    (r"<\|tool_call\|>", "granite"),
    (r"<tool_calls>(?!\s*<)", "hunyuan_a13b"),
    (r"<TOOLCALL>", "nemotron_json"),
    (r"<longcat_tool_call>", "longcat"),
    (r"<\|action_start\|>", "internlm"),
    (r">>>all|<function=example_function_name>\{", "functionary"),
    (r"<function_calls>(?!\s*<invoke)", "olmo3"),
    (r"<function_call>", "granite_20b_fc"),
    (r"```tool_code", "gemma3"),
    (r"\[\{\"name\": \"tool_call_name\"|\{\\?\"tool_calls\\?\": \[", "xlam"),
    (r"<\|tool_call_start\|>|<\|tool_list_start\|>", "lfm2"),
    (r"\[func_name1\(", "pythonic"),
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
    (_all("Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"), "apriel"),
    (r"<response></response>", "granite33"),
    (r"<minimax:tool_call>", "minimax_m2"),  # whose results of tools stand in <response>
    (_all("</think>", "<response>"), "ernie45"),
    (_all("</think>", "<answer>", r"<\|startoftext\|>|<｜hy_"), "hunyuan_a13b"),
    (_all(r"<\|open\|>", r"<\|sep\|>"), "kimi_k3"),
    (r"<\|channel>", "gemma4"),
    (_all(r"<\|START_THINKING\|>", r"<\|START_TEXT\|>"), "cohere_command4"),
    (r"<\|START_THINKING\|>", "cohere_command3"),
    (r"<\|inner_prefix\|>", "apertus"),
    (r"<seed:think>", "seed_oss"),
    (r"<longcat_think>", "longcat"),
    (r"<\|think:start\|>", "solar_open2"),
    (r"<think(?:\{\}|:opensource)>", "hy_v3"),
    (r"<mm:think>", "minimax_m3"),
    (r"<\|plamo:begin_think:plamo\|>", "plamo3"),
    (r"◁think▷", "kimi"),
    (_all("</think>", "<arg_key>"), "glm45"),
    (_ALWAYS_THINKS, "deepseek_r1"),
    (_all("</think>", "｜DSML｜(?:tool_calls| calls)"), "deepseek_v4"),
    (_all("</think>", "<｜Assistant｜>"), "deepseek_v3"),
    (_all("</think>", r"<\|tool_calls_section_begin\|>"), "kimi_k2"),
    (_all("<think>", "<steptml:invoke"), "step3"),
    (r"</think>|<think>", "qwen3"),
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
