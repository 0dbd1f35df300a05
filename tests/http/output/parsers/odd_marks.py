"""Texts in the notations of Gemma, DeepSeek V3.2, Step 3, OLMo 3 and Functionary that keep to no format."""

from __future__ import annotations

from tests.http.output.parsers.forms import NOW, OSLO, one, raw, text
from tests.http.output.parsers.samples import Sample

_GEMMA = [
    one(
        "spaces",
        "gemma4",
        '<|tool_call> call:get_weather { city : <|"|>Oslo<|"|> , days : 3 } <tool_call|>',
        ("get_weather", {"city": "Oslo", "days": 3}),
    ),
    one("no word", "gemma4", '<|tool_call>:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'),
    one("nothing asked", "gemma4", "So.<|tool_call>call:now{}<tool_call|>", NOW, content="So."),
    one(
        "values",
        "gemma4",
        '<|tool_call>call:search{query:<|"|>a, {b}: "c"\n<|"|>,limit:-1,ratio:2.5e3,note:null,detailed:True,'
        'tags:[<|"|>x]<|"|>, 1,[]],filters:{<|"|>a b<|"|>:{c:[{}]},"d":false}}<tool_call|>',
        (
            "search",
            {
                **{"query": 'a, {b}: "c"\n', "limit": -1, "ratio": 2500.0, "note": None, "detailed": True},
                **{"tags": ["x]", 1, []], "filters": {"a b": {"c": [{}]}, "d": False}},
            },
        ),
    ),
    one(
        "quotes of JSON",
        "gemma4",
        '<|tool_call>call:get_weather{"city":"Os\\"lo"}<tool_call|>',
        ("get_weather", {"city": 'Os"lo'}),
    ),
    one(
        "no quotes",
        "gemma4",
        "<|tool_call>call:get_weather{city: New York }<tool_call|>",
        ("get_weather", {"city": "New York"}),
    ),
    one("forgotten quote", "gemma4", '<|tool_call>call:get_weather{city:Oslo<|"|>}<tool_call|>'),
    one("comma at the end", "gemma4", '<|tool_call>call:get_weather{,city:<|"|>Oslo<|"|>,}<tool_call|>'),
    one("no end", "gemma4", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>} So.', content=" So."),
    one("end of a string in an answer", "gemma4", '<|"|> <|tool_call>call:now{}', NOW, content='<|"|> '),
    Sample(
        "parallel, with a line between",
        '<|tool_call>call:now{}<tool_call|>\n<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>\n',
        "gemma4",
        calls=(NOW, OSLO),
    ),
    raw("no value", "gemma4", "<|tool_call>call:get_weather{city:}<tool_call|>.", '{"city": }', content="."),
    raw("no name of an argument", "gemma4", "<|tool_call>call:get_weather{1}<tool_call|>.", "{1}", content="."),
    raw(
        "no comma",
        "gemma4",
        "<|tool_call>call:get_weather{days:1{}}<tool_call|>.",
        '{"days": 1{}}',
        content=".",
    ),
    raw("wrong bracket", "gemma4", "<|tool_call>call:get_weather{days:[1}<tool_call|>.", '{"days": [1}', content="."),
    raw(
        "cut off by its end",
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3<tool_call|>.',
        '{"city": "Oslo", "days": 3',
        content=".",
    ),
    raw("open string", "gemma4", '<|tool_call>call:get_weather{city:<|"|>Os}<tool_call|>', '{"city": "Os}<tool_call|>'),
    raw("too deep", "gemma4", "<|tool_call>call:get_weather{days:" + "[" * 40, '{"days": ' + "[" * 40),
    raw("too deep in objects", "gemma4", "<|tool_call>call:get_weather{days:" + "{a:" * 40, '{"days": ' + "{a:" * 40),
    text("no call", "gemma4", "<|tool_call>get_weather{}<tool_call|> <|tool_call>call:{} <|tool_call>call:x(1)"),
    one(
        "strings",
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        ("get_weather", {"city": "Oslo", "days": 3}),
    ),
    one(
        "an answer behind", "functiongemma", "<start_function_call>call:now{}<end_function_call>So.", NOW, content="So."
    ),
]

_D = "｜DSML｜"
_DSML = [
    one(
        "no type, no quotes",
        "deepseek_v32",
        f"<{_D}invoke name=search><{_D}parameter name=limit>7</{_D}parameter>"
        f"<{_D}parameter name='query'>7</{_D}parameter></{_D}invoke>",
        ("search", {"limit": 7, "query": "7"}),
    ),
    one(
        "the tag chooses of the schema's types",
        "deepseek_v32",
        f'<{_D}invoke name="search"><{_D}parameter name="note" string="true">null</{_D}parameter>'
        f'<{_D}parameter name="limit" string="true">7</{_D}parameter>'
        f'<{_D}parameter name="query" string="false">[7]</{_D}parameter>'
        f'<{_D}parameter name="other" string="true">7</{_D}parameter></{_D}invoke>',
        ("search", {"note": "null", "limit": 7, "query": "[7]", "other": "7"}),
    ),
    one(
        "null by the tag",
        "deepseek_v32",
        f'<{_D}invoke name="search"><{_D}parameter name="note" string="false">null</{_D}parameter></{_D}invoke>',
        ("search", {"note": None}),
    ),
    one(
        "all arguments in one",
        "deepseek_v32",
        f'<{_D}invoke name="get_weather"><{_D}parameter name="arguments" string="false">{{"city": "Oslo"}}'
        f'</{_D}parameter><{_D}parameter name="days" string="false">3</{_D}parameter></{_D}invoke>',
        ("get_weather", {"city": "Oslo", "days": 3}),
    ),
    one(
        "all arguments in one, and none",
        "deepseek_v4",
        f'<{_D}tool_calls><{_D}invoke name="get_weather"><{_D}parameter name="input" string="true">{{}}'
        f"</{_D}parameter></{_D}invoke></{_D}tool_calls>",
        ("get_weather", {}),
    ),
    one(
        "an argument of that name",
        "deepseek_v32",
        f'<{_D}invoke name="get_weather"><{_D}parameter name="input" string="true">{{"place": "Oslo"}}'
        f'</{_D}parameter><{_D}parameter name="city" string="true">x</{_D}parameter></{_D}invoke>',
        ("get_weather", {"input": '{"place": "Oslo"}', "city": "x"}),
    ),
    one(
        "no JSON",
        "deepseek_v32",
        f'<{_D}invoke name="f"><{_D}parameter name="a" string="false">x</{_D}parameter></{_D}invoke>',
        ("f", {"a": "x"}),
    ),
    one(
        "forgotten end of an argument",
        "deepseek_v32",
        f'<{_D}invoke name="search">\n<{_D}parameter name="query" string="true">a\n'
        f'<{_D}parameter name="limit" string="false">7</{_D}parameter></{_D}invoke>',
        ("search", {"query": "a", "limit": 7}),
    ),
    Sample(
        "V4",
        f'<{_D}tool_calls>\n<{_D}invoke name="now">\n</{_D}invoke>\n<{_D}invoke name="now">\n</{_D}invoke>\n'
        f"</{_D}tool_calls>So.",
        "deepseek_v4",
        content="So.",
        calls=(NOW, NOW),
    ),
    text("no call", "deepseek_v32", f'<{_D}function_calls> <{_D}invoke name=""> </{_D}invoke>'),
]

_KIMI = [
    one(
        "names with quotes",
        "kimi_k3",
        '<|open|>call tool="get_weather"<|sep|><|open|>argument key="a &quot;b&amp;" type="number"<|sep|>7'
        "<|close|>argument<|sep|><|close|>call<|sep|>So.",
        ("get_weather", {'a "b&': 7}),
        content="So.",
    ),
    text("no name", "kimi_k3", '<|open|>tools<|sep|><|open|>call tool=""<|sep|><|close|>call<|sep|>'),
]

_STEP = [
    one(
        "no section",
        "step3",
        '<steptml:invoke name="get_weather"><steptml:parameter name="city">Oslo</steptml:parameter></steptml:invoke>',
    ),
    one(
        "no spaces, no end",
        "step3",
        "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>"
        "<steptml:invoke name=now></steptml:invoke>So.",
        NOW,
        content="So.",
    ),
    one(
        "a call outside the section",
        "step3",
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>',
        NOW,
    ),
    one(
        "no word before the name",
        "step3",
        '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="now"></steptml:invoke><｜tool_call_end｜>'
        "<｜tool_calls_end｜>",
        NOW,
    ),
    text("no function", "step3", "<｜tool_calls_begin｜><｜tool_call_begin｜>x<｜tool_sep｜>y<｜tool_call_end｜>"),
]

_PYTHON = [
    one(
        "words of JSON",
        "olmo3",
        "<function_calls>search(a=null, b=true)</function_calls>",
        ("search", {"a": None, "b": True}),
    ),
    one("nothing behind", "olmo3", "So.\n<function_calls>\nnow()", NOW, content="So.\n"),
    one("an answer without the end", "olmo3", "<function_calls>\nnow()\n\nSo I say.", NOW, content="\n\nSo I say."),
    one("two in a line", "olmo3", "<function_calls>now() 5</function_calls>", NOW, content=" 5"),
    text("no calls", "olmo3", "<function_calls>\n[]\n</function_calls> <function_calls>what?"),
    raw(
        "position",
        "olmo3",
        "<function_calls>\nget_weather(city='x', 5)\n</function_calls>.",
        '{"city": "x" 5)\n',
        content=".",
    ),
    one("block", "gemma3", "I look.\n```tool_code\nget_weather(city='Oslo')\n```\nSo.", content="I look.\n\nSo."),
    Sample("several", "```tool_code\nnow()\nget_weather(city='Oslo')\n```", "gemma3", calls=(NOW, OSLO)),
    text("another block", "gemma3", "```python\nnow()\n``` ```tool_output\n1\n```"),
    text("code", "gemma3", "```tool_code\nprint(now())\n```"),
]

_FUNCTIONARY = [
    one("at once", "functionary", 'get_weather\n{"city": "Oslo"}'),
    one("behind words", "functionary", 'all\nI look.\n>>>get_weather\n{"city": "Oslo"}', content="I look.\n"),
    one("between words", "functionary", ">>>now\n{}\n>>>all\nSo.", NOW, content="So."),
    text("an answer without a name", "functionary", "Hello\n>>> import x\n>>>\n"),
    Sample("an answer", "all\nHello: 1 >> 0, >>>x", "functionary", content="Hello: 1 >> 0, "),
    text("another's name", "functionary", 'hello\n{"a": 1}'),
    Sample("code", ">>>python\nprint(1)", "functionary", content=">>>python\nprint(1)"),
    one("a name that no tool has", "functionary", ">>>what\n{}", ("what", {})),
    Sample(
        "in tags",
        'So.<function=get_weather>{"city": "Oslo"}</function>\n<function=now>{}</function>',
        "functionary",
        content="So.",
        calls=(OSLO, NOW),
    ),
    raw("broken in tags", "functionary", "<function=get_weather>{x}</function>.", "{x}", content="."),
    text("no name in tags", "functionary", "<function=>{}</function> <function=x y>"),
]

ODD_MARKS = [*_GEMMA, *_DSML, *_KIMI, *_STEP, *_PYTHON, *_FUNCTIONARY]
