"""How models write calls, for grammars: the structural tags of each format of registry.py, which call_grammars.py makes
a turn of.

A tool's arguments keep to its schema where it is strict; else they are any object. Of some formats (PYTHON, LOOSE) a
grammar is told the names alone: of Gemma's, whose arguments are full of special tokens, of Python's, of MiniMax M3's,
which have members in tags, and of Kimi K3's, whose tags say a type. These are none amid free text, nor are
Functionary's, where a prompt ends within what begins calls, and Harmony's, which are a grammar of their own
(actors/grammar/harmony.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from ...openai.schemas import Object, ToolFunction
from .tags import const, either, regex, tag
from .values import types

_ELSEWHERE = re.compile(r'"\$ref": "(?!#?/(\$defs|definitions)/)')
NO_ARGUMENTS: Object = {"type": "object", "properties": {}, "additionalProperties": False}


class Markup(NamedTuple):
    """A format. `opens` and `closes` stand around all calls of a turn."""

    trigger: str  # what begins calls, and so cannot stand in free text; empty for one that is read beside another
    tag: Callable[[ToolFunction], Object]
    separator: str = ""
    opens: str = ""
    closes: str = ""
    alone: Callable[[ToolFunction], Object] | None = None  # the tag where there is no free text


# --- parts ---------------------------------------------------------------------------------------------------------


def _json(tool: ToolFunction) -> Object:
    """The arguments."""
    return {"type": "json_schema", "json_schema": arguments_schema(tool)}


def arguments_schema(tool: ToolFunction) -> Object:
    """What a grammar keeps the arguments to: any object's, where the tool is not strict."""
    schema = tool.parameters if tool.strict else {}
    return NO_ARGUMENTS if schema is None else {"type": "object"} | (schema if isinstance(schema, dict) else {})


# --- formats with JSON ---------------------------------------------------------------------------------------------


def _object(key: str, before: str = "", after: str = "") -> Callable[[ToolFunction], Object]:
    """{"name": …, key: …}"""
    return lambda tool: tag(f'{before}{{"name": {json.dumps(tool.name)}, "{key}": ', [_json(tool)], "}" + after)


def _cohere(tool: ToolFunction) -> Object:
    content = [regex("[0-9]{1,4}"), const(f'", "tool_name": {json.dumps(tool.name)}, "parameters": '), _json(tool)]
    return tag('{"tool_call_id": "', content, "}")


def _command_r(tool: ToolFunction) -> Object:
    return tag(f'{{"tool_name": {json.dumps(tool.name)}, "parameters": ', [_json(tool)], "}")


def _apertus(tool: ToolFunction) -> Object:
    return tag(f"{{{json.dumps(tool.name)}: ", [_json(tool)], "}")


def _bare(tool: ToolFunction) -> Object:
    call = {"type": "call_object", "name": tool.name, "key": "parameters", "json_schema": arguments_schema(tool)}
    return tag("", [call], "")


def _around(begin: str, end: str) -> Callable[[ToolFunction], Object]:
    """The arguments between two texts, of which the first has the name."""
    return lambda tool: tag(begin.replace("NAME", tool.name), [_json(tool)], end)


def _mistral(tool: ToolFunction) -> Object:
    call_id = {"type": "sequence", "elements": [const("[CALL_ID]"), regex("[A-Za-z0-9]{9}")]}
    return tag(f"[TOOL_CALLS]{tool.name}", [either([call_id, const("")]), const("[ARGS]"), _json(tool)], "")


def _kimi(tool: ToolFunction) -> Object:
    begin = f"<|tool_call_begin|>functions.{tool.name}:"
    content = [regex("[0-9]{1,4}"), const("<|tool_call_argument_begin|>"), _json(tool)]
    return tag(begin, content, "<|tool_call_end|>")


# --- formats with a tag for each argument --------------------------------------------------------------------------


def _tagged(begin: str, key: tuple[str, str], end: str) -> Callable[[ToolFunction], Object]:
    """`key`: what stands around a value, of which the first has the argument's name."""

    def call(tool: ToolFunction) -> Object:
        given = _arguments(tool, lambda name, _: (key[0].replace("NAME", name), key[1]))
        return tag(begin.replace("NAME", tool.name), given, end)

    return call


def _arguments(tool: ToolFunction, around: Callable[[str, bool], tuple[str, str]]) -> list[Object]:
    """Those of a strict tool in the order of its schema. `around`: of a name, and whether its value may be a string."""
    schema = tool.parameters if isinstance(tool.parameters, dict) else {}
    properties = schema.get("properties")
    if not tool.strict or not isinstance(properties, dict):
        return [{"type": "any_text"}] if tool.parameters is not None else [const("")]
    required, given = schema.get("required"), []
    for name, one in properties.items():
        wanted = types(schema, name)
        begin, end = around(name, not wanted or "string" in wanted)
        member = tag(begin, [_value(one if isinstance(one, dict) else {}, wanted, schema)], end)
        given.append(member if isinstance(required, list) and name in required else either([member, const("")]))
    return given or [const("")]


def _value(one: Object, kinds: Collection[str], root: Object) -> Object:
    """A string stands there as it is, all else as JSON; what may be either is anything."""
    if kinds and "string" not in kinds:
        return {"type": "json_schema", **_part(one, root)}
    match one:
        case {"enum": [*texts]} if texts and all(isinstance(text, str) for text in texts):
            return either([const(text) for text in texts])
        case {"type": "string", "pattern": str(pattern)} if re.fullmatch(r"\^[^|]*[^|\\]\$", pattern):
            return regex(pattern[1:-1])
    return {"type": "any_text"}


def _part(one: Object, root: Object) -> Object:
    """The schema of an argument, with what it refers to: definitions, or all, where it points elsewhere."""
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    if _ELSEWHERE.search(json.dumps([one, definitions])):
        return {"json_schema": one, "root": root}
    return {"json_schema": one | definitions}


_DEEPSEEK, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_V31 = _around("<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>", "<｜tool▁call▁end｜>")
_V3 = _around("<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n", "\n```<｜tool▁call▁end｜>")
_QWEN = (
    Markup(
        "<tool_call>",
        _tagged(
            "<tool_call>\n<function=NAME>\n",
            ("<parameter=NAME>\n", "\n</parameter>\n"),
            "</function>\n</tool_call>",
        ),
        "\n",
    ),
)
_GLM = (
    Markup(
        "<tool_call>",
        _tagged(
            "<tool_call>NAME\n",
            ("<arg_key>NAME</arg_key>\n<arg_value>", "</arg_value>\n"),
            "</tool_call>",
        ),
        "\n",
    ),
)
_HERMES = (Markup("<tool_call>", _object("arguments", "<tool_call>\n", "\n</tool_call>"), "\n"),)
_LLAMA = Markup('{"name": "', _object("parameters"), "; ", alone=_bare)
_ACTION, _ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_COHERE = (Markup(_ACTION, _cohere, ",\n    ", f"{_ACTION}[\n    ", f"\n]{_ACTION_END}"),)


def _list(begin: str, end: str = "") -> tuple[Markup, ...]:
    """Objects in a list."""
    return (Markup(begin, _object("arguments"), ", ", f"{begin}[", f"]{end}"),)


def _dsml(mark: str, section: str) -> tuple[Markup, ...]:
    """DeepSeek's tags, which say what is a string."""

    def around(name: str, is_text: bool) -> tuple[str, str]:
        said = "true" if is_text else "false"
        return f'<{mark}parameter name="{name}" string="{said}">', f"</{mark}parameter>\n"

    def call(tool: ToolFunction) -> Object:
        return tag(f'<{mark}invoke name="{tool.name}">\n', _arguments(tool, around), f"</{mark}invoke>\n")

    return (Markup(f"<{mark}{section}>", call, "", f"<{mark}{section}>\n", f"</{mark}{section}>"),)


def _invokes(name: str) -> tuple[Markup, ...]:
    """MiniMax M2's tags in one of this name."""
    call = _tagged('<invoke name="NAME">\n', ('<parameter name="NAME">', "</parameter>\n"), "</invoke>\n")
    return (Markup(f"<{name}>", call, opens=f"<{name}>\n", closes=f"</{name}>"),)


_PLAMO = (
    "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>NAME<|plamo:end_tool_name:plamo|>"
    "<|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
)

PYTHON = {
    "pythonic": ("[", "]", ""),
    "llama4_pythonic": ("[", "]", ""),
    "lfm2": ("<|tool_call_start|>[", "]", "<|tool_call_end|>"),
    "olmo3": ("<function_calls>\n", "", "\n</function_calls>"),
    "gemma3": ("```tool_code\n", "\n```", ""),
}
"""What stands around calls as Python has them, and may follow: of these, the names alone are known to a grammar."""

_M3 = "]<]minimax[>["
LOOSE = {
    "gemma4": ("<|tool_call>call:", "{", "<tool_call|>"),
    "functiongemma": ("<start_function_call>call:", "{", "<end_function_call>"),
    "minimax_m3": (f'{_M3}<tool_call>\n{_M3}<invoke name="', '">', f"{_M3}</tool_call>"),
    "kimi_k3": ('<|open|>tools<|sep|><|open|>call tool="', '" ', "<|close|>tools<|sep|>"),
}
"""What stands around the first name, and ends a call, or all of them: with anything between, special tokens, too."""

BEFORE = {"kimi_k3": "<|close|>response<|sep|>"}
"""What may stand before the calls: an answer in which nothing is said."""

TO_ALL = {"functionary": "all\n"}
"""What stands before an answer, where that is said to somebody as a call is."""

MARKUPS: dict[str, tuple[Markup, ...]] = {
    **dict.fromkeys(("hermes", "ernie45", "granite4"), _HERMES),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml", "step3p5", "mimo"), _QWEN),
    **dict.fromkeys(("glm45", "glm47"), _GLM),
    "llama3_json": (_LLAMA, Markup("", _bare, "; ", opens="<|python_tag|>")),
    "llama4_json": (_LLAMA, Markup("", _bare, "; ", opens="<|python_start|>", closes="<|python_end|>")),
    "mistral": (
        Markup("[TOOL_CALLS]", _object("arguments"), ", ", opens="[TOOL_CALLS][", closes="]"),
        Markup("[TOOL_CALLS]", _mistral),
    ),
    "granite": _list("<|tool_call|>"),
    "granite_20b_fc": (Markup("<function_call>", _object("arguments", "<function_call> "), " "),),
    "phi4_mini_json": (Markup("functools[", _object("arguments"), ", ", "functools[", "]"),),
    **dict.fromkeys(("hunyuan_a13b", "jamba"), _list("<tool_calls>", "</tool_calls>")),
    "minimax": (Markup("<tool_calls>", _object("arguments"), "\n", "<tool_calls>\n", "\n</tool_calls>"),),
    "nemotron_json": _list("<TOOLCALL>", "</TOOLCALL>"),
    "xlam": (Markup('[{"name": "', _object("arguments", "[", "]"), "\n"),),  # a list for each call
    "longcat": (
        Markup("<longcat_tool_call>", _object("arguments", "<longcat_tool_call>\n", "\n</longcat_tool_call>"), "\n"),
    ),
    "internlm": (Markup("<|action_start|>", _object("parameters", "<|action_start|><|plugin|>\n", "<|action_end|>")),),
    "cohere_command_r": (Markup("Action:", _command_r, ",\n    ", "Action: ```json\n[\n    ", "\n]```"),),
    "apertus": (Markup("<|tools_prefix|>", _apertus, ", ", "<|tools_prefix|>[", "]<|tools_suffix|>"),),
    "gigachat3": (Markup("function call", _object("arguments", "function call"), "\n"),),
    **dict.fromkeys(("cohere_command3", "cohere_command4"), _COHERE),
    "hy_v3": (
        Markup(
            "<tool_calls:opensource>",
            _tagged(
                "<tool_call:opensource>NAME<tool_sep:opensource>\n",
                (
                    "<arg_key:opensource>NAME</arg_key:opensource>\n<arg_value:opensource>",
                    "</arg_value:opensource>\n",
                ),
                "</tool_call:opensource>\n",
            ),
            opens="<tool_calls:opensource>\n",
            closes="</tool_calls:opensource>",
        ),
    ),
    "solar_open2": (
        Markup(
            "<|tool_call:start|>",
            _tagged(
                "<|tool_call:start|>NAME\n",
                ("<|tool_arg:start|>NAME<|tool_arg:value|>", "<|tool_arg:end|>\n"),
                "<|tool_call:end|>",
            ),
            "\n",
        ),
    ),
    "minicpm5": (
        Markup(
            '<function name="',
            _tagged('<function name="NAME">', ('<param name="NAME">', "</param>"), "</function>"),
            "\n",
        ),
    ),
    "seed_oss": (
        Markup(
            "<seed:tool_call>",
            _tagged(
                "<seed:tool_call>\n<function=NAME>\n",
                ("<parameter=NAME>", "</parameter>\n"),
                "</function>\n</seed:tool_call>",
            ),
            "\n",
        ),
    ),
    "minimax_m2": _invokes("minimax:tool_call"),
    "dots": _invokes("dots_function_call"),
    "step3": (
        Markup(
            "<｜tool_calls_begin｜>",
            _tagged(
                '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="NAME">\n',
                ('<steptml:parameter name="NAME">', "</steptml:parameter>\n"),
                "</steptml:invoke><｜tool_call_end｜>\n",
            ),
            opens="<｜tool_calls_begin｜>\n",
            closes="<｜tool_calls_end｜>",
        ),
    ),
    "deepseek_v3": (Markup(_DEEPSEEK, _V3, "\n", _DEEPSEEK, _DEEPSEEK_END),),
    "deepseek_v31": (Markup(_DEEPSEEK, _V31, "", _DEEPSEEK, _DEEPSEEK_END),),
    "deepseek_v32": _dsml("｜DSML｜", "function_calls"),
    "deepseek_v4": _dsml("｜DSML｜", "tool_calls"),
    "deepseek_v41": _dsml("｜DSML｜ ", "calls"),
    "gigachat35": _dsml("｜GCML｜", "tool_calls"),
    "functionary": (
        Markup("", _around("<function=NAME>", "</function>")),
        Markup("", _around("NAME\n", ""), ">>>"),
    ),
    "plamo3": (
        Markup(
            "<|plamo:begin_tool_requests:plamo|>",
            _around(_PLAMO, "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"),
            opens="<|plamo:begin_tool_requests:plamo|>",
            closes="<|plamo:end_tool_requests:plamo|>",
        ),
    ),
    "kimi_k2": (
        Markup(
            "<|tool_calls_section_begin|>",
            _kimi,
            opens="<|tool_calls_section_begin|>",
            closes="<|tool_calls_section_end|>",
        ),
    ),
}
