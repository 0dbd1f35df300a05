"""Texts with JSON that keep to no format, or to a seldom form of it, and what comes of them."""

from __future__ import annotations

from tests.http.output.parsers.forms import NOW, one, raw, text
from tests.http.output.parsers.samples import Sample

_HERMES = [
    text("nothing", "hermes", ""),
    text("only white space", "hermes", " \n\n "),
    text("words", "hermes", "Hello <tool> and </tool_call>, <tool_call, 1 < 2"),
    text("no JSON", "hermes", "<tool_call>nonsense</tool_call> so."),
    text("no object", "hermes", "<tool_call>[1, 2]</tool_call>"),
    text("no name", "hermes", '<tool_call>{"arguments": {"city": "x"}}</tool_call>'),
    text("name is no string", "hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    text("name is empty", "hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    text("no comma", "hermes", '<tool_call>{"id" : "1" "name": "x"}</tool_call>'),
    one(
        "a marker twice", "hermes", '<tool_call>\n<tool_call>{"name": "now"}</tool_call>', NOW, content="<tool_call>\n"
    ),
    one("no arguments", "hermes", '<tool_call>{"name": "now"}</tool_call>', NOW, raw=("{}",)),
    one("arguments are null", "hermes", '<tool_call>{"name": "now", "arguments": null }</tool_call>', NOW),
    one("arguments are empty", "hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', NOW),
    one(
        "arguments in a string", "hermes", '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}'
    ),
    one("arguments first", "hermes", '<tool_call>{"arguments": {"city": "Oslo"}, "name": "get_weather"}</tool_call>'),
    one(
        "other keys",
        "hermes",
        '<tool_call>{"id": "c1", "type": [{}], "name": "get_weather", '
        '"arguments":{"city":"Oslo"},"x":{"name":"y"}}</tool_call>',
        ids=("c1",),
        raw=('{"city":"Oslo"}',),
    ),
    one(
        "name with escapes", "hermes", '<tool_call>{"name": "n\\u006fw\\n", "arguments": {}}</tool_call>', ("now\n", {})
    ),
    one("a brace too many", "hermes", '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>', NOW),
    one("a brace behind", "hermes", '<tool_call>{"name": "now"}</tool_call>}', NOW, content="}"),
    one("cut off in what ends it", "hermes", '<tool_call>{"name": "now"}\n</tool_c', NOW),
    one("cut off in the next one's beginning", "hermes", '<tool_call>{"name": "now"}</tool_call>\n<tool_', NOW),
    one("a brace too few", "hermes", '<tool_call>{"name": "now", "arguments": {}\n</tool_call>ok', NOW, content="ok"),
    one("not closed", "hermes", '<tool_call>{"name": "now", "arguments": {}}\nSo.', NOW, content="\nSo."),
    one("closed later", "hermes", '<tool_call>{"name": "now"} So </tool_call>.', NOW, content=" So ."),
    one("junk behind", "hermes", '<tool_call>{"name": "now", "arguments": {}, x}</tool_call>', NOW, content=", x}"),
    one("arguments twice", "hermes", '<tool_call>{"arguments": {}, "parameters": {"a": 1}, "name": "now"}', NOW),
    one("name twice", "hermes", '<tool_call>{"name": "now", "name": "x"}</tool_call>', NOW),
    raw("no object in a string", "hermes", '<tool_call>{"name": "get_weather", "arguments": "5"}</tool_call>', '"5"'),
    one("two closers", "hermes", '<tool_call>{"name": "now"}</tool_call></tool_call>', NOW, content="</tool_call>"),
    one(
        "lone surrogate in a value",
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}',
        ("f", {"a": "\ufffd"}),
    ),
    raw(
        "broken",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {\'city\': "x"}}</tool_call>. </tool_call><tool_call>',
        "{'city': \"x\"}}",
        content=". </tool_call>",
    ),
    Sample(
        "another in one that is broken",
        '<tool_call>{"name": "get_weather", "arguments": {\'city\'\n<tool_call>{"name": "now"}</tool_call>.',
        "hermes",
        content=".",
        calls=(("get_weather", {}), NOW),
        raw=("{'city'\n", "{}"),
    ),
    raw(
        "open string",
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"a": "b}}</tool_call>',
        '{"a": "b}}</tool_call>',
    ),
    one(
        "words as values",
        "hermes",
        '<tool_call>{"name":"get_weather","arguments":{"a":True,"b":[None]}}</tool_call>',
        ("get_weather", {"a": True, "b": [None]}),
    ),
    one(
        "strings that JSON has not",
        "hermes",
        '<tool_call>{"name":"get_weather","arguments":{"a":"x\ny","re":"\\d+","z":1}}</tool_call>',
        ("get_weather", {"a": "x\ny", "re": "\\d+", "z": 1}),
    ),
    one(
        "a string with an object that JSON has not",
        "hermes",
        r'<tool_call>{"name":"get_weather","arguments":"{\"a\": \"x\ny\", \"b\": True}"}</tool_call>',
        ("get_weather", {"a": "x\ny", "b": True}),
    ),
    raw(
        "wrong bracket",
        "hermes",
        '<tool_call>{"name":"get_weather","arguments":{"a":[1}}</tool_call>.',
        '{"a":[1}}',
        content=".",
    ),
    raw("a list", "hermes", '<tool_call>{"name":"get_weather","arguments":[1, "]"]}</tool_call>', '[1, "]"]'),
    Sample(
        "second is broken",
        '<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"x"}</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        "hermes",
        content='\n<tool_call>{"x"}</tool_call>\n',
        calls=(NOW, NOW),
    ),
]

_LLAMA = [
    one("bare", "llama3_json", '{"name": "get_weather", "parameters": {"city": "Oslo"}}'),
    one("bare behind white space", "llama3_json", '\n\n {"name": "get_weather", "parameters": {"city": "Oslo"}}\n'),
    one("type first", "llama3_json", '{"type": "function", "name": "now", "parameters": {}}', NOW),
    one("first in a line", "llama3_json", 'I look.\n{"name": "now", "arguments": {}}', NOW, content="I look.\n"),
    one("content behind", "llama3_json", '{"name": "now", "parameters": {}}; done', NOW, content="; done"),
    one("marked and unknown", "llama3_json", '<|python_tag|>{"name": "what", "parameters": {}}', ("what", {})),
    text("bare and unknown", "llama3_json", '{"name": "what", "parameters": {}}'),
    text("other JSON", "llama3_json", '{"names": ["now"]}\n{"x": {"name": "now"}} {"x": [{"name": "now"}'),
    text("empty object", "llama3_json", '{}\n{\n"a": 1}'),
    text("braces", "llama3_json", 'if {x} { "name" {{ "now" }} "{" {"name": "no'),
    one(
        "behind words",
        "llama3_json",
        'I look: {"name": "get_weather", "parameters": {"city": "Oslo"}}',
        content="I look: ",
    ),
    one("behind an object", "llama3_json", '{"x": {}} {"name": "now"}.', NOW, content='{"x": {}} .'),
    one("behind a brace", "llama3_json", 'use {x}: {"name": "now"}', NOW, content="use {x}: "),
    Sample(
        "words between",
        'First {"name": "now"} and then {"name": "now", "parameters": {"a": 1}}',
        "llama3_json",
        content="First  and then ",
        calls=(NOW, ("now", {"a": 1})),
    ),
    text("code", "llama3_json", "<|python_tag|>print({'name': 'now'})"),
    text("number as name", "llama3_json", '{"name": 1, "parameters": {}}'),
    raw("broken", "llama3_json", '{"name": "get_weather", "parameters": {"city": }; x', '{"city": }; x'),
    Sample("lines", '{"name": "now", "parameters": {}}\n{"name": "now"}', "llama3_json", calls=(NOW, NOW)),
    Sample("second unknown", '{"name": "now"}; {"name": "what"}', "llama3_json", calls=(NOW, ("what", {}))),
    one("semicolon first", "llama3_json", '; {"name": "now"}', NOW, content="; "),
    one("other marker", "llama3_json", '<|python_start|>{"name": "what"}<|python_end|>', ("what", {})),
    Sample("semicolons", '{"name": "now"} ; {"name": "now"};', "llama3_json", calls=(NOW, NOW)),
]

_MISTRAL = [
    one("id", "mistral", '[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{"city": "Oslo"}', ids=("abc123XYZ",)),
    one("id in the list", "mistral", '[TOOL_CALLS] [{"id": "a1", "name": "now", "arguments": {}}]', NOW, ids=("a1",)),
    one("no list", "mistral", '[TOOL_CALLS]{"name": "now", "arguments": {}}', NOW),
    one("no marker of arguments", "mistral", '[TOOL_CALLS]get_weather{"city": "Oslo"}'),
    text("marker only", "mistral", "[TOOL_CALLS] what? [TOOL_CALLS]. [TOOL_CALLS]a b"),
    text("empty list", "mistral", "[TOOL_CALLS][]"),
    text("list of words", "mistral", '[TOOL_CALLS]["now"]'),
    Sample(
        "broken",
        "[TOOL_CALLS]get_weather[ARGS]{a}[TOOL_CALLS]now[ARGS]{}",
        "mistral",
        calls=(("get_weather", {}), NOW),
        raw=("{a}", "{}"),
    ),
    Sample(
        "second is broken",
        '[TOOL_CALLS][{"name": "now", "arguments": {} }, {"nam": 1}]',
        "mistral",
        calls=(NOW,),
        content=', {"nam": 1}]',
    ),
]

_GRANITE = [
    one("other marker", "granite", '<tool_call>[{"name": "now", "arguments": {}}]', NOW),
    one("closed", "granite", '<tool_call>{"name": "now", "arguments": {}}</tool_call>', NOW),
    text("no list", "granite", "<|tool_call|>now <|tool_call|>[now]"),
]

_MARKED = [
    one(
        "closed",
        "granite",
        'I look.<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>',
        NOW,
        content="I look.",
    ),
    one("one of them", "longcat", '<longcat_tool_call>{"name": "now", "arguments": {}}</longcat_tool_call>', NOW),
    one("no list", "jamba", '<tool_calls>{"name": "now", "arguments": {}}</tool_calls>', NOW),
    text("words", "nemotron_json", "<TOOLCALL>now</TOOLCALL>"),
]

_MORE = [
    one(
        "a list",
        "phi4_mini_json",
        ' functools [] functools[{"name": "now", "arguments": {}}] So.',
        NOW,
        content=" functools []  So.",
    ),
    text("words", "phi4_mini_json", "from functools import x; functools[x]"),
    one("other marker", "phi4_mini_json", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', NOW),
    one(
        "id first",
        "cohere_command3",
        '<|START_ACTION|>{"tool_name": "now", "parameters": {}}<|END_ACTION|>',
        NOW,
        ids=(None,),
    ),
    text("name of others", "cohere_command4", '<|START_ACTION|>[{"name": "now", "parameters": {}}]<|END_ACTION|>'),
    one("one line", "internlm", '<|action_start|> <|plugin|>{"name": "now", "parameters": {}}<|action_end|>', NOW),
    text("code", "internlm", "<|action_start|><|interpreter|>\nprint(1)<|action_end|>"),
    Sample(
        "lines of objects",
        'So.<tool_calls>\n{"name": "now", "arguments": {}}\n{"name": "now"}\n</tool_calls>.',
        "minimax",
        content="So..",
        calls=(NOW, NOW),
    ),
    one("another tag", "granite_20b_fc", '<function_call> {"name": "now", "arguments": {}}', NOW),
    one("bare", "xlam", '[{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
    Sample(
        "two",
        'I look.\n[{"name": "now", "arguments": {}}, {"name": "now"}]',
        "xlam",
        content="I look.\n",
        calls=(NOW, NOW),
    ),
    one(
        "in a block of code",
        "xlam",
        'So:\n```json\n[{"name": "now", "arguments": {}}]\n```\n.',
        NOW,
        content="So:\n\n.",
    ),
    text("other JSON", "xlam", '```json\n[{"name": "what"}]\n```\n[] [1]\n```json\n[1]\n```'),
    text("half a block", "xlam", "```json\n["),
    text("no calls", "xlam", "[]\n"),
    one("an object of calls", "xlam", '{"tool_calls": [{"name": "now", "arguments": {}}]}', NOW),
    text("an object of none", "xlam", '{"tool_calls": []} {"tool_calls": 1}'),
    one("no space", "cohere_command_r", 'Action:```json\n[{"tool_name": "now", "parameters": {}}]```', NOW),
    text("words", "cohere_command_r", "Action: none. Action:\n```py\n1\n```\n```"),
    one("one line", "gigachat3", 'function call{"name": "now", "arguments": {}}', NOW),
    one("a token", "gigachat3", '<|function_call|>{"name": "now", "arguments": {}}', NOW),
    one(
        "behind a text", "gigachat3", 'a<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "now"}', NOW, content="a"
    ),
    text("words", "gigachat3", "a function call<b> is a function call {x}"),
    one("several lines", "apertus", '<|tools_prefix|>[\n{"now" : {}}\n]<|tools_suffix|>', NOW),
    Sample(
        "in one object",
        '<|tools_prefix|>[{"now": {}, "get_weather": {"city": "Oslo"}}]<|tools_suffix|>.',
        "apertus",
        content=".",
        calls=(NOW, ("get_weather", {"city": "Oslo"})),
    ),
    text("no object", "apertus", "<|tools_prefix|>[{}, 1]<|tools_suffix|>"),
]

_FORCED = [
    one("white space", "json_array", ' [ {"name" : "get_weather" , "parameters" : {"city" : "Oslo"} } ] \n'),
    one("unknown", "json_array", '[{"name": "what", "parameters": {}}]', ("what", {})),
    text("empty", "json_array", "[]"),
    Sample("named twice", '{}\n{"a": 1}', named="now", calls=(NOW,), content='\n{"a": 1}'),
    text("words", "json_array", "no [x]"),
    *(
        Sample(f"named {label}", said, named="search", calls=(("search", {}),), raw=(said.strip(),))
        for label, said in (
            ("empty", "{}"),
            ("one", '{"query": "x"}'),
            ("spaces", '\n {"query":\n"x" }\n'),
            ("cut", '{"query": "'),
            ("markup", '{"query": "<tool_call>"}'),
            ("hard", '{"query": "\\"}{\\\\"}'),
            ("unicode", '{"query": "東京"}'),
        )
    ),
    *(
        Sample(f"named {label}", said, named="search", content=said)
        for label, said in (("nothing", ""), ("no object", "[1]"), ("words", "oh no {}"))
    ),
]

ODD_JSON = [*_HERMES, *_LLAMA, *_MISTRAL, *_GRANITE, *_MARKED, *_MORE, *_FORCED]
