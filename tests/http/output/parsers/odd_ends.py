"""Texts whose calls begin, break or end where no format says so."""

from __future__ import annotations

from tests.http.output.parsers.forms import one, raw

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

ODD_ENDS = [*_JSON]
