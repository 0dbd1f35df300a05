"""Which parsers read the model's answers: as options say it, or as its chat templates show it."""

from __future__ import annotations

from typing import Any

from actorserve.http.output.parsers.registry import PLUGIN, detect, plug, speaks_of_tools

from ..model.info import ModelInfo
from ..model.tokenizers.tokenizer import find_templates
from ..options.config import Config, ConfigError
from ..options.plugins import REASONING_PARSERS, TOOL_PARSERS, load_plugin

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
    brought = _plugins(config)
    plug(*brought)
    tools, reasoning = (name if factory is None else PLUGIN for name, factory in zip(found, brought, strict=True))
    return tools, reasoning


def _plugins(config: Config) -> tuple[Any, Any]:
    """What makes the parsers that options name. ConfigError says what is wrong with one."""
    found = []
    for option, given, group in (
        ("--tool-parser-plugin", config.tool_parser_plugin, TOOL_PARSERS),
        ("--reasoning-parser-plugin", config.reasoning_parser_plugin, REASONING_PARSERS),
    ):
        factory = None if given is None else load_plugin(option, given, group)
        if factory is not None and not callable(factory):
            raise ConfigError(f"{option}: {given} is nothing that makes a parser: it cannot be called")
        found.append(factory)
    return found[0], found[1]


def unknown_calls(config: Config, model: ModelInfo) -> str | None:
    """What to tell who starts the server where a template has tools, and calls in a form that no parser reads."""
    brought = config.tool_parser_plugin is not None
    if config.tool_call_parser != "auto" or brought or not config.enable_auto_tool_choice:
        return None
    templates = find_templates(config, model).values()
    if any(detect(template)[0] for template in templates) or not any(map(speaks_of_tools, templates)):
        return None
    return (
        f"the chat template shows tools, but writes calls in no form that is known: they are read as {COMMONEST} has "
        "them. Set --tool-call-parser to the form of the model's calls (--help lists them), or to none"
    )
