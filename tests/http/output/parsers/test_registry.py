"""Names of parsers, and templates that ask for them."""

from __future__ import annotations

from typing import get_args

import pytest

from actorserve.actors.options.choices import ReasoningParser, ToolParser
from actorserve.http.output.events import Content, ReasoningText
from actorserve.http.output.parsers.markers import Markers
from actorserve.http.output.parsers.registry import (
    JSON_ARRAY,
    NEEDS_SPECIAL,
    REASONING_PARSERS,
    THINK_MARKERS,
    THINKS_IN_CONTENT,
    TOOL_PARSERS,
    detect,
    make_parser,
)
from tests.http.output.parsers.samples import SCHEMAS

TEMPLATES = {
    "hermes": 'Answer with <tool_call>\n{"name": <name>}\n</tool_call>{% for m in messages %}<|im_start|>{% endfor %}',
    "hermes qwen3": "<tool_call>{{ c }}</tool_call>{% if '</think>' in content %}{% set x = 1 %}{% endif %}",
    "qwen3_coder": "<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>",
    "qwen3_coder qwen3": "{{ '<function=' ~ c.name }}<parameter={% if think %}<think>\n{% else %}</think>{% endif %}",
    "llama3_json": '<|start_header_id|>ipython<|end_header_id|>{{ \'{"name": "\' + c.name + \'", "parameters": \' }}',
    "llama3_json ": "{%- if builtin_tools %}{{ '<|python_tag|>' + c.name }}{% endif %}",
    "pythonic": "put it in the format of [func_name1(params_name1=value)]<|start_header_id|>ipython<|end_header_id|>",
    "pythonic ": "<|header_start|>assistant<|header_end|><|python_start|>{{ calls }}<|python_end|><|eot|>",
    "llama3_json  ": 'Respond in the format {"name": name, "parameters": values}.<|python_start|><|python_end|>',
    "llama3_json   ": "<|header_start|>user<|header_end|>Respond in the format "
    '{"name": function name, "parameters": dictionary of argument name and its value}.{{ tools }}',
    "seed_oss seed_oss": "{% set begin = '<seed:tool_call>' %}{% set think = '<seed:think>' %}\n"
    "<function=example_function_name>\n<parameter=example_parameter_1>value_1</parameter>\n</function>",
    "minimax_m2 minimax_m2": '{% set begin = "<minimax:tool_call>" %}<invoke name="tool-name-1">\n'
    '<parameter name="param-key-1">param-value-1</parameter>\n</invoke>{{ "<think>" }}{{ c.split("</think>") }}'
    "<response>{{ m.content }}</response>",
    "minimax_m3 minimax_m3": "{% set ns = ']<]minimax[>[' %}{% set begin = ns ~ '<tool_call>' %}<mm:think></mm:think>",
    "hunyuan_a13b": "{{ '<tool_calls>' ~ calls ~ '</tool_calls>' }}",
    "nemotron_json": "use <TOOLCALL>[{...}]</TOOLCALL>",
    "longcat": "<longcat_tool_call>{{ call }}</longcat_tool_call>",
    "lfm2": "{{ '<|tool_call_start|>[' ~ calls ~ ']<|tool_call_end|>' }}",
    "hermes  ": "Not <function=name>{}</function>, but <tool_call>{}</tool_call>",
    "mistral": "[INST]{{ m.content }}[/INST]{{ '[TOOL_CALLS] [' + calls + ']' }}",
    "mistral mistral": "[SYSTEM_PROMPT]First think: [THINK]...[/THINK][/SYSTEM_PROMPT][TOOL_CALLS]{{ c.name }}[ARGS]",
    "deepseek_v3": "{{ '<｜tool▁calls▁begin｜>' + c.type + '<｜tool▁sep｜>' + c.name + '\n```json\n' }}",
    "deepseek_v3 deepseek_v3": "<｜tool▁calls▁begin｜>```json{{ content.split('</think>')[-1] }}<｜Assistant｜>",
    "deepseek_v3 deepseek_r1": "<｜tool▁calls▁begin｜>```json</think>{% if add %}<｜Assistant｜><think>{% endif %}",
    "deepseek_v3  deepseek_r1": "<｜tool▁calls▁begin｜>```json</think>{{'<｜Assistant｜><think>\\n'}}",
    "deepseek_v31  deepseek_v3": "{{'<｜Assistant｜><think>' + m.thought + '</think>'}}<｜tool▁calls▁begin｜>",
    "deepseek_v31   deepseek_v3": "<｜tool▁calls▁begin｜>{% if off %}<｜Assistant｜><think></think>{% endif %}",
    "hermes   ": "{# Not <｜tool▁calls▁begin｜>, nor <think></think>. #}<tool_call>{}</tool_call>",
    "deepseek_v31 deepseek_v3": "<｜Assistant｜>{{ '<think>' if thinking else '</think>' }}<｜tool▁calls▁begin｜>",
    "openai openai_gptoss": "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>",
    "glm45": "[gMASK]<sop><tool_call>{{ c.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>",
    "glm45 glm45": "<tool_call>{{ c.name }}<arg_key>{% if not enable_thinking %}<think></think>{% endif %}",
    "kimi_k2": "<|im_assistant|><|tool_calls_section_begin|><|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>",
    "kimi_k2 kimi_k2": "<|tool_calls_section_begin|><think>{{ m.reasoning }}</think>",
    "granite": "<|start_of_role|>assistant<|end_of_role|><|tool_call|>{{ calls|tojson }}<|end_of_text|>",
    "granite granite": "<|tool_call|>Write your thoughts after 'Here is my thought process:' and then the response",
    "granite granite33": "<|tool_call|>Write your thoughts between <think></think> and your response between "
    "<response></response> for each user query.{{ c.split('</think>') }}",
    " qwen3": "{{ bos }}{% if '</think>' in m.content %}{{ m.content.split('</think>')[1] }}{% endif %}",
    "lfm2 qwen3": "{{ '<|tool_call_start|>[' + (calls | join(', ')) + ']<|tool_call_end|>' }}{{ c.split('</think>') }}",
    "gemma4 gemma4": "{{- '<|tool_call>call:' + f.name + '{' }}{{- '<|\"|>' + v + '<|\"|>' }}{{- '}<tool_call|>' }}"
    "{%- if not enable_thinking %}{{- '<|channel>thought\n<channel|>' }}{% endif %}",
    "kimi_k3 kimi_k3": "{{- '<|open|>' + tag -}}{{- '<|sep|>' -}}{{ open_tag('think' if on else 'response') }}",
    "gemma4": "<|turn>model\n<|tool_call>call:{{ f.name }}",
    "functiongemma": "<start_function_call>call:{{ f.name }}{ {{- k }}:<escape>{{ v }}<escape>}<end_function_call>",
    "gemma3": "<start_of_turn>user\nWrap calls of functions in ```tool_code\n```.{{ messages }}<end_of_turn>",
    "cohere_command3 cohere_command3": "<|START_THINKING|>{{ m.plan }}<|END_THINKING|><|START_ACTION|>[\n"
    '{"tool_call_id": "{{ n }}", "tool_name": "{{ f.name }}"}]<|END_ACTION|><|START_RESPONSE|>{{ c }}<|END_RESPONSE|>',
    "cohere_command4 cohere_command4": "<|START_TEXT|>{{ c }}<|END_TEXT|><|START_THINKING|><|START_ACTION|>[",
    "cohere_command_r": "Write 'Action:' followed by a json-formatted list of actions: [{'tool_name': 'x'}]",
    "apertus apertus": "{{ '<|inner_prefix|>' }}{{ '<|tools_prefix|>[' + calls + ']<|tools_suffix|>' }}",
    "gigachat3": "{{ 'function call<|role_sep|>\n' + call | tojson }}<|message_sep|>",
    "xlam ": 'The output MUST strictly adhere to {"tool_calls": [{"name": "func_name1", "arguments": {}}]}',
    "phi4_mini_json": "{{ '<|' + m.role + '|>' + m.content + '<|tool|>' + m.tools + '<|/tool|>' + '<|end|>' }}",
    "phi4_mini_json ": "<|system|>Answer with functools[{'name': ..., 'arguments': {}}]<|end|>",
    "xlam": '<|start_header_id|>ipython Use a JSON array:\n\n[{"name": "tool_call_name", "arguments": {"arg1": 1}}]',
    "deepseek_v32 deepseek_v3": '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f"><｜Assistant｜></think>{{ c }}',
    "deepseek_v41 deepseek_v4": '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f"><｜Assistant｜></think>{{ c }}',
    "gigachat35": "{{ '<｜GCML｜tool_calls>' }}{{ '<｜GCML｜invoke name=' + c.name }}",
    "dots": '<dots_function_call>\n<invoke name="{{ c.name }}"><parameter name="{{ k }}">{{ v }}</parameter></invoke>',
    "solar_open2 solar_open2": "<|think:start|>{{ r }}<|think:end|><|tool_call:start|>{{ c.name }}\n<|tool_arg:start|>",
    "deepseek_v4 deepseek_v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f"><｜Assistant｜></think>{{ c }}',
    "step3 step3": "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=x><think>",
    "hermes ernie45": "<tool_call>{}</tool_call>{{ '\n</think>\n\n<response>\n' + c + '\n</response>' }}",
    "hunyuan_a13b hunyuan_a13b": "<|startoftext|><tool_calls>[{}]</tool_calls>{{ '</think>\n<answer>\n' + c }}",
    "olmo3": "respond with <function_calls>\nget_weather(city='x')\n</function_calls>",
    "olmo3 qwen3": "{{ '<function_calls>' + m.function_calls + '</function_calls>' }}<|im_start|>assistant\n<think>",
    "functionary": "{{ '>>>all\n' + m.content }}{{ '>>>' + f.name + '\n' + f.arguments }}{% if add %}>>>{% endif %}",
    "functionary ": '<function=example_function_name>{"example_name": "example_value"}</function><|python_tag|>',
    "hy_v3 hy_v3": "{% set begin = '<tool_call{}>'.format(':x') %}{% set sep = '<tool_sep{}>'.format(':x') %}\n"
    "{% set think = '<think{}>'.format(':x') %}{% set key = '<arg_key{}>'.format(':x') %}",
    "hy_v3 glm45": "{{ '<tool_calls>' }}<tool_call>{{ f.name }}<arg_key>{{ k }}</arg_key>{{ c.split('</think>') }}",
    "hunyuan_a13b apriel": "{% set p = 'Here are my reasoning steps:\n' %}Respond behind [BEGIN FINAL RESPONSE]. "
    "Calls are <tool_calls>[{}]</tool_calls>{{ c.split('[BEGIN FINAL RESPONSE]')[-1] }}",
    "minicpm5 qwen3": '<function name="f"><param name="key">value</param></function>{{ c.split("<tool_sep>") }}'
    "{{ c.split('</think>')[-1] }}",
    "internlm": "{{ '<|action_start|><|plugin|>\n' }}{{ f.name }}<|action_end|>",
    "granite_20b_fc": "{{ '<function_call> ' + c | tojson }}",
    "longcat longcat": "<longcat_tool_call>{{ c }}</longcat_tool_call><longcat_think>{{ r }}</longcat_think>",
    "plamo3 plamo3": "{{ '<|plamo:begin_think:plamo|>' + m.thought }}<|plamo:begin_tool_request:plamo|>{{ c.name }}",
    " kimi": "{{ m.content.split('◁/think▷')[-1] }}<|im_assistant|>◁think▷",
    "": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}",
}


@pytest.mark.parametrize("names", TEMPLATES)
def test_template_tells_its_parsers(names: str) -> None:
    tools, _, reasoning = names.partition(" ")
    assert detect(TEMPLATES[names]) == (tools or None, reasoning.strip() or None)


def test_names_that_users_know() -> None:
    names = """hermes qwen3_coder qwen3_xml llama3_json pythonic mistral deepseek_v3 deepseek_v31 openai glm45 kimi_k2
        granite seed_oss minimax_m2 minimax_m3 llama4_json llama4_pythonic hunyuan_a13b jamba nemotron_json longcat
        kimi_k3 gemma4 functiongemma gemma3 lfm2 cohere_command3 cohere_command4 phi4_mini_json xlam deepseek_v32
        deepseek_v4 step3 step3p5 ernie45 olmo3 functionary internlm minimax glm47 granite4 granite_20b_fc mimo
        apertus gigachat3 gigachat35 cohere_command_r hy_v3 minicpm5 deepseek_v41 dots solar_open2 plamo3"""
    assert {*names.split(), JSON_ARRAY} == TOOL_PARSERS.keys()
    assert {*get_args(ToolParser)} == TOOL_PARSERS.keys() - {JSON_ARRAY} | {"auto", "none"}
    assert {*get_args(ReasoningParser)} == REASONING_PARSERS.keys() | {"auto", "none"}
    assert {"deepseek_r1", "qwen3", "mistral", "openai_gptoss", "glm45", "granite"} <= REASONING_PARSERS.keys()
    assert REASONING_PARSERS.keys() == THINK_MARKERS.keys()
    assert NEEDS_SPECIAL == (TOOL_PARSERS.keys() | THINK_MARKERS.keys()) - {JSON_ARRAY}


@pytest.mark.parametrize("reasoning", THINK_MARKERS)
def test_gate_of_stop_strings_agrees_with_the_parser(reasoning: str) -> None:
    """What stands before the end marker is no content, what stands behind it no reasoning."""
    start, end = THINK_MARKERS[reasoning]
    if reasoning == THINKS_IN_CONTENT:
        for opened in (True, False):  # all is content, whose thinking ends with the marker as it comes
            parser = make_parser(reasoning=reasoning, tools="hermes", schemas={}, opened=opened)
            assert parser.feed(f"{start}a") == [Content(start), Content("a")]
            assert parser.feed(f"{end}b") == [Content(end), Content("b")]
        return
    harmony = reasoning == "openai_gptoss"
    thought, answer = ("<|message|>a<|end|><|start|>assistant", "<|message|>b") if harmony else ("a", "b")
    parser = make_parser(reasoning=reasoning, tools=None, schemas={})
    assert parser.feed(start + thought + end) == [ReasoningText("a")]
    assert parser.feed(answer) == [Content("b")]
    for opened, piece in ((True, ReasoningText("a")), (False, Content("a"))):
        assert make_parser(reasoning=reasoning, tools=None, schemas={}, opened=opened).feed("a") == [piece]


def test_unknown_names_are_refused() -> None:
    for reasoning, tools in (("x", None), (None, "x")):
        with pytest.raises(KeyError):
            make_parser(reasoning=reasoning, tools=tools, schemas=SCHEMAS)


@pytest.mark.parametrize("texts", [("",), ("ab", "abc"), ("b", "abc")])
def test_markers_inside_markers_are_refused(texts: tuple[str, ...]) -> None:
    """Which of them comes first would depend on how the text is cut."""
    with pytest.raises(ValueError, match="marker"):
        Markers(texts)
