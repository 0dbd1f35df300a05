"""Ways to write down samples: a text without a call, with one, with one that is broken."""

from __future__ import annotations

from typing import Any

from tests.http.output.parsers.samples import Asked, Sample

OSLO: Asked = ("get_weather", {"city": "Oslo"})
NOW: Asked = ("now", {})


def text(label: str, tools: str, text: str) -> Sample:
    """No call in it."""
    return Sample(label, text, tools, content=text)


def one(label: str, tools: str, text: str, call: Asked = OSLO, **more: Any) -> Sample:
    return Sample(label, text, tools, calls=(call,), **more)


def raw(label: str, tools: str, text: str, raw: str, **more: Any) -> Sample:
    """A call whose arguments are no JSON: they are as the model wrote them."""
    return Sample(label, text, tools, calls=(("get_weather", {}),), raw=(raw,), **more)
