"""Texts with tags, sections or Python that keep to no format, or to a seldom form of it."""

from __future__ import annotations

from tests.http.output.parsers.forms import NOW, one, raw, text
from tests.http.output.parsers.samples import Sample

_PYTHONIC = [
    raw("wrong bracket", "pythonic", "[get_weather(a=[1), now()]", '{"a": [1), now()]'),
    one("bare", "pythonic", "[get_weather(city='Oslo')]"),
    one("spaces", "pythonic", '[ get_weather ( city = "Oslo" , ) , ]\n'),
    one(
        "values",
        "pythonic",
        "[search(a=-1, b=(1, 2.5), c={'x': [None, True]}, d='''it's\n''', e=\"\\u00e9\\\"\")]",
        ("search", {"a": -1, "b": [1, 2.5], "c": {"x": [None, True]}, "d": "it's\n", "e": 'é"'}),
    ),
    one(
        "words of JSON",
        "pythonic",
        "[search(a=true, b=null, c=[true])]",
        ("search", {"a": True, "b": None, "c": [True]}),
    ),
    one(
        "no literal",
        "pythonic",
        "[search(a=Oslo, b=f(1, 2), c=1 + 2j)]",
        ("search", {"a": "Oslo", "b": "f(1, 2)", "c": "1 + 2j"}),
    ),
    one("a set", "pythonic", "[search(a={'b', 'a', 1})]", ("search", {"a": ["b", "a", 1]})),
    one(
        "zeros before",
        "pythonic",
        "[search(a=07, limit=-010, query=02139)]",
        ("search", {"a": 7, "limit": -10, "query": "02139"}),
    ),
    one("a zero byte", "pythonic", "[get_weather(city='a\0b')]", ("get_weather", {"city": "a\0b"})),
    Sample("no call in a list", "So.<|tool_call_start|>[ ]<|tool_call_end|> Bye.", "lfm2", content="So. Bye."),
    text("a list and no end", "lfm2", "<|tool_call_start|>[] is empty."),
    one(
        "brackets in strings",
        "pythonic",
        "[search(a=')]', b=['](', {\"}\": '['}], c='')]",
        ("search", {"a": ")]", "b": ["](", {"}": "["}], "c": ""}),
    ),
    one(
        "other markers", "pythonic", '<|tool_call_start|>[get_weather(city="Oslo")]<|tool_call_end|>So.', content="So."
    ),
    one("JSON", "lfm2", '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Oslo"}}]<|tool_call_end|>'),
    one("behind a line", "pythonic", "I look.\n[now()]", NOW, content="I look.\n"),
    one("marked and unknown", "pythonic", "<|python_start|>[a.b(x=1)]<|python_end|>", ("a.b", {"x": 1})),
    text("unknown", "pythonic", "[what(x=1)] and [1, 2] and [now()]"),
    text("list", "pythonic", "[1, 2]\n[]\n[now]\n[now(1)]\n[now('x', a=1)]"),
    raw("broken value", "pythonic", "[get_weather(a=1, city=x], now()]", '{"a": 1, "city": x], now()]'),
    raw("no value", "pythonic", "<|python_start|>[get_weather(city=)]<|python_end|>.", '{"city": )]', content="."),
    raw("position behind a name", "pythonic", "[get_weather(city='x', 5)]", '{"city": "x" 5)]'),
    Sample("second unknown", "[now(), what()] x", "pythonic", calls=(NOW, ("what", {})), content=" x"),
]

_SECTIONS = [
    one(
        "plain block",
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```\n{}\n```<｜tool▁call▁end｜>",
        NOW,
    ),
    text("name goes on", "deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now{}"),
    one("id with letters", "kimi_k2", "<|tool_call_begin|>a:b<|tool_call_argument_begin|>{}", ("a:b", {})),
    *(
        Sample(f"{start} and {end} alone", f"So.{start}\n{end} Bye.", tools, content="So. Bye.")
        for tools, start, end in (
            ("hermes", "<tool_call>", "</tool_call>"),
            ("glm45", "<tool_call>", "</tool_call>"),
            ("minimax_m2", "<minimax:tool_call>", "</minimax:tool_call>"),
            ("gemma4", "<|tool_call>", "<tool_call|>"),
            ("deepseek_v4", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
            ("olmo3", "<function_calls>", "</function_calls>"),
        )
    ),
    Sample(
        "no call in a section",
        "So.<|tool_calls_section_begin|>\n<|tool_calls_section_end|> Bye.",
        "kimi_k2",
        content="So. Bye.",
    ),
    text("no section", "deepseek_v3", "<｜tool▁calls▁begin｜>none<｜tool▁calls▁end｜>"),
    text("no separator", "deepseek_v31", "<｜tool▁call▁begin｜>now{}<｜tool▁call▁end｜>"),
    text("no name", "deepseek_v31", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>"),
    one("forgotten section", "deepseek_v31", "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜>", NOW),
    one(
        "a backtick behind",
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>`",
        NOW,
        content="`",
    ),
    one("no code block", "deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n{}<｜tool▁call▁end｜>", NOW),
    raw(
        "broken",
        "deepseek_v31",
        "<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>x",
        "{1}",
        content="x",
    ),
    raw(
        "broken block",
        "deepseek_v3",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>x",
        "{1}",
        content="x",
    ),
    text(
        "no number",
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.<|tool_call_argument_begin|>{}",
    ),
    Sample(
        "a section of one",
        "So.<|tool_call_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_call_section_end|>",
        "kimi_k2",
        content="So.",
        calls=(NOW,),
        ids=("functions.now:0",),
    ),
    one(
        "id without number",
        "kimi_k2",
        "<|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>",
        NOW,
        ids=("now",),
    ),
    raw(
        "broken",
        "kimi_k2",
        "<|tool_call_begin|>functions.get_weather:7<|tool_call_argument_begin|>{]<|tool_call_end|>.",
        "{]",
        content=".",
        ids=("functions.get_weather:7",),
    ),
]

_TAGGED = [
    one("closed twice", "glm45", "<tool_call>now</tool_call></tool_call>", NOW, content="</tool_call>"),
    one(
        "white space in a key",
        "glm45",
        "<tool_call>search<arg_key> limit </arg_key><arg_value>1</arg_value></tool_call>",
        ("search", {"limit": 1}),
    ),
    one("no outer tag", "qwen3_coder", "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>"),
    one(
        "outer end only",
        "qwen3_coder",
        "<function=get_weather><parameter=city>Oslo</parameter></function></tool_call>.",
        content=".",
    ),
    one(
        "no end of function",
        "qwen3_coder",
        "<tool_call><function=now></tool_call></tool_call>",
        NOW,
        content="</tool_call>",
    ),
    one(
        "lines in a value",
        "qwen3_coder",
        "<function=write_file><parameter=content>\n\n a\n\n</parameter></function>",
        ("write_file", {"content": "\n a\n"}),
    ),
    one(
        "empty value",
        "qwen3_coder",
        "<function=get_weather><parameter=city>\n</parameter></function>",
        ("get_weather", {"city": ""}),
    ),
    one(
        "no JSON where it should be",
        "qwen3_coder",
        "<function=search><parameter=limit>many</parameter><parameter=tags>[a]</parameter></function>",
        ("search", {"limit": "many", "tags": "[a]"}),
    ),
    one(
        "Python's words",
        "qwen3_coder",
        "<function=get_weather><parameter=detailed>\nTrue\n</parameter></function>",
        ("get_weather", {"detailed": True}),
    ),
    one(
        "forgotten end of an argument",
        "qwen3_coder",
        "<function=search>\n<parameter=a>\nx\n<parameter=no>\n<parameter=limit>\n7\n</parameter>\n</function>",
        ("search", {"a": "x\n<parameter=no>", "limit": 7}),
    ),
    one(
        "forgotten end of the last argument",
        "qwen3_coder",
        "<tool_call>\n<function=search>\n<parameter=query>\nx\n<parameter=limit>\n7\n</function>\n</tool_call>",
        ("search", {"query": "x", "limit": 7}),
    ),
    one(
        "and nothing behind it",
        "qwen3_coder",
        "<function=search>\n<parameter=limit>7\n</function>",
        ("search", {"limit": 7}),
    ),
    one(
        "ends in a value",
        "qwen3_coder",
        "<function=write_file>\n<parameter=content>\n<a>\n</parameter> b\n</function> c\n</parameter>\n</function>.",
        ("write_file", {"content": "<a>\n</parameter> b\n</function> c"}),
        content=".",
    ),
    one(
        "an end twice",
        "qwen3_coder",
        "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</parameter>\n</function>",
    ),
    one(
        "a tag that ends itself",
        "deepseek_v32",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now"/>\n</｜DSML｜tool_calls>',
        NOW,
    ),
    one(
        "arguments as JSON",
        "deepseek_v32",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="search">\n {"query": "x", "limit": 7}\n</｜DSML｜invoke>\n'
        "</｜DSML｜tool_calls>",
        ("search", {"query": "x", "limit": 7}),
    ),
    one(
        "marked",
        "minicpm5",
        '<function name="write_file"><param name="path">a</param><param name="content"><![CDATA[</param>\n</function>'
        "]]></param></function>.",
        ("write_file", {"path": "a", "content": "</param>\n</function>"}),
        content=".",
    ),
    one(
        "the tokenizer's tags",
        "hy_v3",
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city"
        "</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n"
        "</tool_calls:opensource>",
    ),
    one(
        "Hy4's",
        "hy_v3",
        "<tool_calls><tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call></tool_calls>",
    ),
    one("no name behind", "hy_v3", "<tool_call>now</tool_call>", NOW),
    one("two functions in one", "qwen3_coder", "<tool_call><function=now></function></tool_call>", NOW),
    text("no function", "qwen3_coder", "<tool_call>now()</tool_call> <function = x> <function=>"),
    Sample(
        "another in one that is not closed",
        "<tool_call>\n<function=search>\n<parameter=limit>\n7\n</parameter>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>.",
        "qwen3_coder",
        content=".",
        calls=(("search", {"limit": 7}), NOW),
    ),
    Sample(
        "another function in one that is not closed",
        "<tool_call><function=now><function=search><parameter=query>a</parameter><function=now></function></tool_call>",
        "qwen3_coder",
        calls=(NOW, ("search", {"query": "a"}), NOW),
    ),
    Sample(
        "another in one that is not closed",
        "<tool_call>search<arg_key>limit</arg_key><arg_value>7</arg_value>\n<tool_call>now</tool_call>.",
        "glm45",
        content=".",
        calls=(("search", {"limit": 7}), NOW),
    ),
    one(
        "no type known",
        "qwen3_coder",
        "<function=what><parameter=a>7</parameter><parameter=b>\n[true]\n</parameter></function>",
        ("what", {"a": "7", "b": "[true]"}),
    ),
    text("half a tag", "qwen3_coder", "<function=now and then"),
    Sample(
        "functions in one tag",
        "<tool_call>\n<function=now>\n</function>\n<function=now>\n</function>\n</tool_call>",
        "qwen3_coder",
        calls=(NOW, NOW),
    ),
    one("one line", "glm45", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>"),
    one("no arguments", "glm45", "<tool_call>now</tool_call>", NOW),
    one("value missing", "glm45", "<tool_call>now<arg_key>city</arg_key></tool_call>.", NOW, content="."),
    one(
        "white space in a string",
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value> a\n</arg_value>\n</tool_call>",
        ("get_weather", {"city": " a\n"}),
    ),
    one(
        "of any type",
        "glm45",
        "<tool_call>keep"
        + "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
            for key, value in (("a", '{"x": [1]}'), ("b", " [1, null]"), ("c", " 7"), ("d", "{x}"), ("e", "[1]"))
        )
        + "</tool_call>",
        ("keep", {"a": {"x": [1]}, "b": [1, None], "c": " 7", "d": "{x}", "e": "[1]"}),
    ),
    text("words", "glm45", "<tool_call>this is none</tool_call> <tool_call>!</tool_call>"),
    one(
        "forgotten end of an argument in a line",
        "qwen3_coder",
        "<function=search><parameter=query>x <parameter=no><parameter=limit>7</parameter></function>",
        ("search", {"query": "x <parameter=no>", "limit": 7}),
    ),
]

M = "]<]minimax[>["


def _m3(*invokes: str) -> str:
    """With the marker before each tag."""
    inside = "".join(invokes)
    return f"<tool_call>\n{inside}</tool_call>".replace("<", f"{M}<")


_MINIMAX = [
    one(
        "names without quotes",
        "minimax_m2",
        "<minimax:tool_call><invoke name=get_weather><parameter name='city'>Oslo</parameter></invoke>"
        "</minimax:tool_call>",
    ),
    one(
        "no outer tag",
        "minimax_m2",
        'So.<invoke name="search"><parameter name="limit">7</parameter></invoke>',
        ("search", {"limit": 7}),
        content="So.",
    ),
    text("no name", "minimax_m2", '<minimax:tool_call><invoke name=""></invoke>'),
    one("one", "minimax_m3", _m3('<invoke name="get_weather"><city>Oslo</city></invoke>\n')),
    one("no arguments", "minimax_m3", "So.\n" + _m3('<invoke name="now"></invoke>') + "\n.", NOW, content="So.\n\n."),
    Sample(
        "two",
        _m3(
            '<invoke name="search"><query> a > b\n{1}</query>\n<limit>7</limit><ratio>1e3</ratio></invoke>\n',
            '<invoke name="now"></invoke>\n',
        ),
        "minimax_m3",
        calls=(("search", {"query": " a > b\n{1}", "limit": 7, "ratio": 1000.0}), NOW),
    ),
    one(
        "members",
        "minimax_m3",
        _m3(
            '<invoke name="search"><tags><item>1</item>\n<item>x</item></tags><filters>\n<a><item>1</item></a>',
            "<b><c>d</c></b><e></e></filters><note>null</note></invoke>",
        ),
        ("search", {"tags": ["1", "x"], "filters": {"a": ["1"], "b": {"c": "d"}, "e": ""}, "note": None}),
    ),
    one(
        "nothing in them",
        "minimax_m3",
        _m3('<invoke name="search"><tags></tags><filters>\n</filters><query></query></invoke>'),
        ("search", {"tags": [], "filters": {}, "query": ""}),
    ),
    one(
        "as JSON",
        "minimax_m3",
        _m3('<invoke name="search"><tags>["a"]</tags><filters>{"a": 1}</filters></invoke>'),
        ("search", {"tags": ["a"], "filters": {"a": 1}}),
    ),
    one("no type known", "minimax_m3", _m3('<invoke name="what"><a>7</a></invoke>'), ("what", {"a": "7"})),
    raw(
        "another in a value",
        "minimax_m3",
        f'{M}<invoke name="get_weather">{M}<days>{M}<invoke name="x">.',
        f'{{"days": {M}<invoke name="x">.',
    ),
    Sample(
        "another in one that is not closed",
        _m3('<invoke name="search"><limit>7</limit>\n<invoke name="now"></invoke>'),
        "minimax_m3",
        calls=(("search", {"limit": 7}), NOW),
    ),
    Sample(
        "others in one that is not closed",
        _m3('<invoke name="search"><tool_call><invoke name="now"></invoke><invoke name="now"></invoke>'),
        "minimax_m3",
        calls=(("search", {}), NOW, NOW),
    ),
    raw(
        "too deep",
        "minimax_m3",
        f'{M}<invoke name="get_weather">{M}<days>' + f"{M}<item>" * 40,
        '{"days": ' + f"{M}<item>" * 40,
    ),
    text("marker only", "minimax_m3", f"{M} {M}<tool_call> {M}<invoke name=x y>"),
]


ODD_TAGS = [*_PYTHONIC, *_SECTIONS, *_TAGGED, *_MINIMAX]
