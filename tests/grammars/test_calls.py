"""Calls in each model's own markup: what a grammar allows is what its parser reads and its tool wants."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from actorserve.http.openai.schemas import Object, ToolFunction
from actorserve.http.output.events import Turn
from actorserve.http.output.parsers.call_grammars import amid_text, only_calls
from actorserve.http.output.parsers.markup import LOOSE, MARKUPS, PYTHON
from actorserve.http.output.parsers.registry import TOOL_PARSERS
from tests.grammars.drawing import accepts, answer, model
from tests.grammars.schemas import INTEGER, made
from tests.support.selection import slow

TOWN = made({"town": {"enum": ["Oslo", "Rome"]}, "days": INTEGER | {"minimum": 1, "maximum": 9}}, "days")
DEEP = made({"at": {"$ref": "#/$defs/place"}}) | {"$defs": {"place": made({"x": INTEGER})}}
SCHEMAS: dict[str, Any] = {"weather": TOWN, "weather_at": DEEP, "now": {"type": "object", "maxProperties": 0}}
STRICT = [ToolFunction("weather", None, TOWN, True), ToolFunction("weather_at", None, DEEP, True)]
TOOLS = [*STRICT, ToolFunction("now", None, None, True)]
DIFFERENT = list({id(markups): name for name, markups in MARKUPS.items()}.values())
ALIKE = ("granite4", "llama3_json", "mistral", "xlam", "minimax_m2", "cohere_command_r")  # one for each way to begin
ANSWER = {"type": "json_schema", "json_schema": made({"sum": INTEGER})}


def read(parser: str, text: str) -> Turn:
    """As a client has it."""
    reader, turn = TOOL_PARSERS[parser](SCHEMAS), Turn()
    turn.add([*reader.feed(text), *reader.finish()])
    return turn


def check(turn: Turn) -> None:
    for call in turn.calls:
        jsonschema.Draft202012Validator(SCHEMAS[call.name]).validate(json.loads(call.arguments))


def constraint(form: Object | None) -> dict[str, Any]:
    assert form is not None
    return {"structural_tag": {"type": "structural_tag", "format": form}}


@pytest.mark.parametrize("parser", DIFFERENT)
def test_what_is_drawn_is_read(parser: str) -> None:
    of = model("demo")
    names: set[str] = set()
    counts: set[int] = set()
    several, one = (of.grammar(**constraint(only_calls(parser, TOOLS, parallel))) for parallel in (True, False))
    for seed in range(40):
        if seed >= 2 and len(names) > 1 and max(counts) > 1:
            break
        turn = read(parser, answer(of, several, seed, patience=80))
        assert turn.calls and not turn.content.strip()
        check(turn)
        names |= {call.name for call in turn.calls}
        counts.add(len(turn.calls))
        assert len(read(parser, answer(of, one, seed)).calls) == 1
    assert len(names) > 1 and max(counts) > 1


@pytest.mark.parametrize("parser", [name for name in DIFFERENT if name != "functionary"])
def test_in_free_text_calls_are_held_to_their_tools(parser: str) -> None:
    of = model("demo")
    grammar = of.grammar(**constraint(amid_text(parser, TOOLS, True)))
    call = '{"name": "weather", "parameters": {"town": "Oslo"}}'
    if parser not in ("llama3_json", "llama4_json"):
        call = answer(of, of.grammar(**constraint(only_calls(parser, TOOLS[:1], False))), 3)
    assert "Oslo" in call or "Rome" in call
    assert accepts(of, grammar, call) and accepts(of, grammar, "It is {not} a call, 1 < 2.")
    assert not accepts(of, grammar, call.replace("Oslo", "Bonn").replace("Rome", "Bonn"))
    assert not accepts(of, grammar, call.replace("weather", "whether"))
    behind = f"I look.\n{call}"
    assert accepts(of, grammar, behind) and not accepts(of, grammar, behind.replace("weather", "whether"))


@pytest.mark.parametrize("parser", [*ALIKE, *slow(*(name for name in DIFFERENT if name not in ALIKE)), *PYTHON])
def test_a_call_or_an_answer(parser: str) -> None:
    """Also where calls begin as the answer does, or as another list."""
    of = model("demo")
    grammar = of.grammar(**constraint({"type": "or", "elements": [ANSWER, only_calls(parser, TOOLS, True)]}))
    if parser in PYTHON:
        begin, end, closer = PYTHON[parser]
        call = f"{begin}weather(town='Oslo'){end}{closer}"
        assert [one.name for one in read(parser, call).calls] == ["weather"]
    else:
        call = answer(of, of.grammar(**constraint(only_calls(parser, STRICT, False))), 1)
    assert accepts(of, grammar, '{"sum": 7}') and accepts(of, grammar, call)
    for text in ('{"sum": "a"}', "It is 7.", f"So: {call}", ""):
        assert not accepts(of, grammar, text)


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "weather", "arguments": {"town": "Oslo", "days": 2}}\n</tool_call>'),
        ("llama3_json", '{"name": "weather", "parameters": {"town": "Oslo"}}'),
        ("mistral", '[TOOL_CALLS][{"name": "weather", "arguments": {"town": "Oslo"}}]'),
        ("mistral", '[TOOL_CALLS]weather[ARGS]{"town": "Oslo"}'),
        ("mistral", '[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{"town": "Oslo"}'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=weather>\n<parameter=town>\nOslo\n</parameter>\n</function>\n</tool_call>",
        ),
        ("glm45", "<tool_call>weather\n<arg_key>town</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>"),
        ("apertus", '<|tools_prefix|>[{"weather": {"town": "Oslo"}}]<|tools_suffix|>'),
        ("gigachat3", 'function call{"name": "weather", "arguments": {"town": "Oslo"}}'),
        (
            "cohere_command_r",
            'Action: ```json\n[\n    {"tool_name": "weather", "parameters": {"town": "Oslo"}}\n]```',
        ),
        ("xlam", '[{"name": "weather", "arguments": {"town": "Oslo"}}]'),
        ("phi4_mini_json", 'functools[{"name": "weather", "arguments": {"town": "Oslo"}}]'),
        ("internlm", '<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"town": "Oslo"}}<|action_end|>'),
        (
            "cohere_command3",
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"town": "Oslo"}}\n]'
            "<|END_ACTION|>",
        ),
        (
            "deepseek_v32",
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="town" string="true">'
            'Oslo</｜DSML｜parameter>\n<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        ),
        (
            "deepseek_v41",
            '<｜DSML｜ calls>\n<｜DSML｜ invoke name="weather">\n<｜DSML｜ parameter name="town" string="true">'
            "Oslo</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        ),
        (
            "gigachat35",
            '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="weather">\n<｜GCML｜parameter name="town" string="true">'
            "Oslo</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
        ),
        (
            "solar_open2",
            "<|tool_call:start|>weather\n<|tool_arg:start|>town<|tool_arg:value|>Oslo<|tool_arg:end|>\n"
            "<|tool_call:end|>",
        ),
        (
            "step3",
            '<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="weather">\n'
            '<steptml:parameter name="town">Oslo</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n'
            "<｜tool_calls_end｜>",
        ),
        (
            "hy_v3",
            "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>town"
            "</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n"
            "</tool_calls:opensource>",
        ),
        (
            "plamo3",
            "<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>weather"
            "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>"
            '{"town": "Oslo"}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>'
            "<|plamo:end_tool_requests:plamo|>",
        ),
        ("minicpm5", '<function name="weather"><param name="town">Oslo</param></function>'),
        (
            "minimax_m2",
            '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="town">Oslo</parameter>\n</invoke>\n'
            "</minimax:tool_call>",
        ),
        (
            "kimi_k2",
            '<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{"town": '
            '"Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
        ),
    ],
)
@pytest.mark.parametrize("crossed", [False, *slow(True)])
def test_as_models_write_them(parser: str, text: str, crossed: bool) -> None:
    """Tools that are not strict take any arguments."""
    of = model("demo")
    loose = [ToolFunction("weather", None, TOWN), ToolFunction("weather_at", None, DEEP, True)]
    makers = (amid_text, only_calls) if crossed else (only_calls, amid_text)
    for tools, other, make in zip((TOOLS, loose), (False, True), makers, strict=True):
        grammar = of.grammar(**constraint(make(parser, tools, True)))
        assert accepts(of, grammar, text)
        assert accepts(of, grammar, text.replace("Oslo", "Bonn")) is other
    (call,) = read(parser, text).calls
    assert call.name == "weather" and json.loads(call.arguments)["town"] == "Oslo"


def test_calls_that_a_prompt_has_begun() -> None:
    """Functionary's ends in >>>."""
    of = model("demo")
    grammar = of.grammar(**constraint(only_calls("functionary", STRICT, True)))
    for text in ('weather\n{"town": "Oslo"}', '<function=weather>{"town": "Oslo"}</function>'):
        assert accepts(of, grammar, text) and not accepts(of, grammar, text.replace("Oslo", "Bonn"))
        assert not accepts(of, grammar, text.replace("weather", "whether"))
    assert accepts(of, grammar, 'weather\n{"town": "Oslo"}>>>weather_at\n{"at": {"x": 1}}')


NODE: dict[str, Any] = {
    "properties": {"n": {"$ref": "#/$defs/n"}, "m": {"$ref": "#/properties/n"}, "next": {"$ref": "#"}},
    "$defs": {"n": INTEGER, "tree": {"$ref": "#"}},
    "type": "object",
}


@pytest.mark.parametrize("parser", ["qwen3_coder", "glm45", "minimax_m2", "hermes"])
def test_references_into_the_whole_schema(parser: str) -> None:
    of = model("demo")
    grammar = of.grammar(**constraint(only_calls(parser, [ToolFunction("f", None, NODE, True)], False)))
    given = {"n": "1", "m": "2", "next": '{"m": 3, "next": {"n": 4}}'}
    text = {
        "hermes": '<tool_call>\n{"name": "f", "arguments": {"n": 1, "m": 2, "next": NEXT}}\n</tool_call>',
        "qwen3_coder": "<tool_call>\n<function=f>\n"
        + "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in given.items())
        + "</function>\n</tool_call>",
        "glm45": "<tool_call>f\n"
        + "".join(f"<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n" for name, value in given.items())
        + "</tool_call>",
        "minimax_m2": '<minimax:tool_call>\n<invoke name="f">\n'
        + "".join(f'<parameter name="{name}">{value}</parameter>\n' for name, value in given.items())
        + "</invoke>\n</minimax:tool_call>",
    }[parser].replace("NEXT", given["next"])
    assert accepts(of, grammar, text)
    for wrong in (text.replace("4", '"4"'), text.replace("3", "[]"), text.replace("2", '"a"')):
        assert not accepts(of, grammar, wrong)


def test_formats_that_no_grammar_knows() -> None:
    """A choice that is demanded is a list of JSON, in all formats."""
    assert TOOL_PARSERS.keys() - MARKUPS.keys() == {"openai", "json_array"} | PYTHON.keys() | LOOSE.keys()
    assert amid_text("openai", TOOLS, True) is None is only_calls("openai", TOOLS, True)
    for parser in (*PYTHON, *LOOSE, "functionary"):
        assert amid_text(parser, TOOLS, True) is None
