"""Which parsers read the model's answers: as options say it, or as its chat templates show it."""

from __future__ import annotations

from actorserve.http.parsers.registry import detect

from ..config import Config
from ..model_files import ModelInfo
from ..tokenization import find_templates

COMMONEST = "hermes"  # the form of tool calls that most models know, for those whose templates do not say theirs


def choose_parsers(config: Config, model: ModelInfo) -> tuple[str | None, str | None]:
    """(tool parser, reasoning parser)."""
    found: list[str | None] = [None, None]
    for template in find_templates(config, model).values():
        found = [known or seen for known, seen in zip(found, detect(template), strict=True)]
    given = (config.tool_call_parser, config.reasoning_parser)
    for index, name in enumerate(given):
        if name != "auto":
            found[index] = None if name == "none" else name
    if config.tool_call_parser == "auto" and found[0] is None:
        found[0] = COMMONEST
    return found[0], found[1]
