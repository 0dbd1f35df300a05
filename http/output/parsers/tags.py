"""Structural tags, of which grammars of calls are made (actors/grammar/structural_tags.py reads them)."""

from __future__ import annotations

from collections.abc import Sequence

from ...openai.schemas import Object


def tag(begin: str, content: Sequence[Object], end: str) -> Object:
    inner = content[0] if len(content) == 1 else {"type": "sequence", "elements": list(content)}
    return {"type": "tag", "begin": begin, "content": inner, "end": end}


def const(text: str) -> Object:
    return {"type": "const_string", "value": text}


def either(elements: Sequence[Object | None]) -> Object:
    return {"type": "or", "elements": list(elements)}


def regex(pattern: str) -> Object:
    return {"type": "regex", "pattern": pattern}
