"""What a grammar keeps a turn to that makes calls: nothing but calls, or calls amid free text. How each format writes
them is markup.py's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...openai.schemas import Object, ToolFunction
from .markup import BEFORE, LOOSE, MARKUPS, PYTHON, Markup
from .tags import const, either, regex, tag


def only_calls(parser: str | None, tools: Sequence[ToolFunction], parallel: bool) -> Object | None:
    """A turn that is calls and nothing else; None where a grammar cannot know how they are written."""
    names = "|".join(re.escape(tool.name) for tool in tools)
    if parser in LOOSE:
        begin, behind, end = LOOSE[parser]
        call = tag(begin, [regex(f"(?:{names}){re.escape(behind)}"), {"type": "any_tokens"}], end)
        before = [either([const(text) for text in ("", BEFORE[parser])])] if parser in BEFORE else []
        several = {"type": "tags_with_separator", "tags": [call], "separator": "", "at_least_one": True}
        return {"type": "sequence", "elements": [*before, several | {"stop_after_first": not parallel}]}
    if parser in PYTHON:
        begin, end, closer = PYTHON[parser]
        calls = rf"(?:{names})\((?s:.*)\){re.escape(end)}"
        return tag(begin, [regex(f"{calls}(?:{re.escape(closer)})?" if closer else calls)], "")
    markups = [markup._replace(tag=markup.alone or markup.tag) for markup in MARKUPS.get(parser or "", ())]
    turns = [turn for markup in markups for turn in _turns(markup, tools, parallel)]
    return None if not markups else either(turns)


def amid_text(parser: str | None, tools: Sequence[ToolFunction], parallel: bool) -> Object | None:
    """Free text in which calls, where they begin, are what their tools want; None as above."""
    markups = [markup for markup in MARKUPS.get(parser or "", ()) if markup.trigger]
    if not markups:
        return None
    tags = [one for markup in markups for one in _tags(markup, tools, parallel)]
    triggers = list(dict.fromkeys(markup.trigger for markup in markups))
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": not parallel}


def _turns(markup: Markup, tools: Sequence[ToolFunction], parallel: bool) -> list[Object]:
    if markup.opens:
        return _tags(markup, tools, parallel)
    return [_separated(markup, tools, parallel)]


def _tags(markup: Markup, tools: Sequence[ToolFunction], parallel: bool) -> list[Object]:
    """Each call, or, where something stands around them, all calls together."""
    if not markup.opens:
        return [markup.tag(tool) for tool in tools]
    return [tag(markup.opens, [_separated(markup, tools, parallel)], markup.closes)]


def _separated(markup: Markup, tools: Sequence[ToolFunction], parallel: bool) -> Object:
    tags = [markup.tag(tool) for tool in tools]
    return {
        **{"type": "tags_with_separator", "tags": tags, "separator": markup.separator},
        **{"at_least_one": True, "stop_after_first": not parallel},
    }
