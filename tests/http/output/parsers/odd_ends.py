"""Texts whose calls begin, break or end where no format says so."""

from __future__ import annotations

from tests.http.output.parsers.forms import NOW, OSLO, one, raw, text
from tests.http.output.parsers.samples import Sample

_D = "｜DSML｜"


def _dsml(name: str, *parameters: str) -> str:
    return f'<{_D}invoke name="{name}">{"".join(parameters)}</{_D}invoke>'


def _parameter(name: str, value: str, said: str = "true") -> str:
    return f'<{_D}parameter name="{name}" string="{said}">{value}</{_D}parameter>'


_JSON = [
    raw(
        "all arguments in one, with half of a character",
        "deepseek_v32",
        _dsml("get_weather", _parameter("arguments", ' {"city": "x\\ud83dy"} ', "false")),
        '{"city": "x\\ufffdy"}',
    ),
    raw(
        "all arguments in one, as they are written",
        "deepseek_v4",
        _dsml("get_weather", _parameter("input", '{"days": 1e999,  "city":"é" }'), _parameter("detailed", "true")),
        '{"days": 1e999,  "city":"é", "detailed": true}',
    ),
    raw(
        "arguments as JSON that breaks",
        "qwen3_coder",
        '<tool_call>\n<function=get_weather>\n{"a": 1,}</function>\n</tool_call>\nThat is it.',
        '{"a": 1,}',
        content="\nThat is it.",
    ),
    one(
        "a brace that begins no JSON",
        "qwen3_coder",
        "<function=get_weather>\n{not json\n<parameter=city>\nOslo\n</parameter>\n</function> bye",
        content=" bye",
    ),
    one(
        "arguments as JSON, and tags behind",
        "qwen3_coder",
        '<function=get_weather>{"city": "Oslo"}<parameter=days>3</parameter></function> bye',
        content=" bye",
    ),
]

_ENDS = [
    *(
        Sample(
            "stray text behind an end",
            "So." + _dsml("get_weather", _parameter("city", "Oslo") + ", \n", _parameter("days", "3", said), ";") + end,
            "deepseek_v32",
            content="So.",
            calls=(("get_weather", {"city": "Oslo", "days": 3}),),
        )
        for said, end in (("false", f"</{_D}function_calls>"), ("true", ""))
    ),
    one(
        "an answer behind a forgotten section",
        "deepseek_v4",
        _dsml("get_weather", _parameter("city", "Oslo")) + "So.",
        content="So.",
    ),
    one(
        "stray text behind an end",
        "kimi_k3",
        '<|open|>call tool="get_weather"<|sep|><|open|>argument key="city" type="string"<|sep|>Oslo'
        "<|close|>argument<|sep|>.<|close|>call<|sep|>",
    ),
    *(
        one(
            "an argument's tag in a sentence",
            tools,
            f"{begin}<{word}content>Use <{word}path> to name it.</{end}></function>",
            ("write_file", {"content": f"Use <{word}path> to name it."}),
        )
        for tools, begin, word, end in (
            ("qwen3_coder", "<function=write_file>", "parameter=", "parameter"),
            ("seed_oss", "<function=write_file>", "parameter=", "parameter"),
            ("minicpm5", '<function name="write_file">', "param name=", "param"),
        )
    ),
    one("a tag that ends itself", "qwen3_coder", "So.<function=now/>", NOW, content="So."),
    one("a tag that ends itself", "deepseek_v4", f'<{_D}tool_calls><{_D}invoke name="now" /></{_D}tool_calls>', NOW),
    text("a slash for a name", "qwen3_coder", "<function=/>"),
    *(
        one(
            f"marked, {label}",
            "minicpm5",
            f'<function name="write_file"><param name="content">{value}</param></function>.',
            ("write_file", {"content": said}),
            content=".",
        )
        for label, value, said in (
            ("on a line of its own", "\n<![CDATA[<b>]]>\n", "<b>"),
            ("its own end in it", "<![CDATA[a]]]]><![CDATA[>b]]>", "a]]>b"),
            ("not at all", "\n <b>\n", "\n <b>\n"),
        )
    ),
]

_BEGINS = [
    one("a marker first", "xlam", '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}}]'),
    one("a marker in its line", "xlam", '\n[TOOL_CALLS] {"name": "now", "arguments": {}}', NOW),
    text("half a marker", "xlam", "[TOOL"),
    *(
        text("tools as JSON", tools, f'As JSON:\n[{{"name": "now", "description": "{said}"}}]\nAsk for one.')
        for tools, said in (("pythonic", "The time."), ("lfm2", "The time."), ("xlam", "It."), ("llama3_json", "It."))
    ),
    text("names", "pythonic", '[{"name": "now"}, {"name": "search"}]'),
    one("a type between", "llama3_json", '{"name": "now", "type": "function", "parameters": {}}', NOW),
    *(
        text("tags in a sentence", tools, "Put it between <tool_call></tool_call> tags.")
        for tools in ("hermes", "glm45")
    ),
    Sample("tags in a line of their own", "So:\n<tool_call></tool_call>\n.", "hermes", content="So:\n\n."),
    Sample(
        "a thought behind a call in a thought",
        '<|channel>thought\nHm.<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>'
        "<|channel>thought\nAha.<channel|>Bye.",
        "gemma4",
        "gemma4",
        content="Bye.",
        thought="\nHm.\nAha.",
        calls=(OSLO,),
    ),
]

ODD_ENDS = [*_JSON, *_ENDS, *_BEGINS]

_NOW_CALL = "<function=now>\n<parameter=a>\nb\n</parameter>\n</function>"

ODD_PROSE = [  # texts that speak of the tags that calls are made of, and make none
    text("a tag in a line", "qwen3_coder", "Write <function=now> and its arguments."),
    text("a tag in a line of its own", "qwen3_coder", "Write\n<function=now>\nand then the end."),
    text("a tag in backticks", "qwen3_coder", "Write `<function=now>` and `</function>`, `<parameter=a>` and so on."),
    text("a tag in quotes", "qwen3_coder", 'Between "<function=now>" and "</function>" stand its arguments.'),
    text("a call in backticks", "qwen3_coder", "Such as `<function=now></function>`."),
    text("a call in a block", "qwen3_coder", f"So:\n```xml\n{_NOW_CALL}\n```\nDone."),
    text("a call in a block of more marks", "qwen3_coder", f"So:\n````\n{_NOW_CALL}\n````"),
    one(
        "behind a block",
        "qwen3_coder",
        f"So:\n```\nx\n```\n{_NOW_CALL}",
        ("now", {"a": "b"}),
        content="So:\n```\nx\n```\n",
    ),
    one("behind a mark", "qwen3_coder", f"`x` {_NOW_CALL}", ("now", {"a": "b"}), content="`x` "),
    one("first, and nothing that is known in it", "qwen3_coder", "<function=now>nothing</function>", NOW),
    Sample(
        "in the markup's own tag",
        f"So:\n```\n<tool_call>\n{_NOW_CALL}\n</tool_call>\n```",
        "qwen3_coder",
        content="So:\n```\n\n```",
        calls=(("now", {"a": "b"}),),
    ),
    text("a tag in a line", "minimax_m2", 'Write <invoke name="now"> and its arguments.'),
    text("a call in a block", "minimax_m2", '```\n<invoke name="now"></invoke>\n```'),
    text("a tag in backticks", "minicpm5", 'Write `<function name="now">` and `</function>`.'),
    text("a tag in quotes", "seed_oss", "Write '<function=now></function>'."),
]
