"""--structured-outputs-config: how JSON of answers looks where requests say nothing."""

from __future__ import annotations

import json

import pytest

from actorserve.actors.options.also import model_configs
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.structured_outputs import structured_defaults

from ..names.command_lines import read

COMPACT, CLOSED = "disable_any_whitespace", "disable_additional_properties"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, set()),
        ({"backend": "xgrammar", COMPACT: False, "reasoning_parser": "", "enable_in_reasoning": False}, set()),
        ({"backend": "xgrammar", "disable_fallback": True, COMPACT: True}, {COMPACT}),
        ({COMPACT: True, CLOSED: True}, {COMPACT, CLOSED}),
    ],
)
def test_what_is_on(given: dict[str, object], found: set[str]) -> None:
    assert structured_defaults(make_config({"structured_outputs_config": given})) == found


def test_keys_of_their_own_and_sglangs_name() -> None:
    for words in (f"--structured-outputs-config.{COMPACT} true", "--constrained-json-disable-any-whitespace"):
        assert structured_defaults(read(*words.split())) == {COMPACT}


@pytest.mark.parametrize("words", ["{}.reasoning_parser deepseek-r1", '{}={{"reasoning_parser":"deepseek-r1"}}'])
def test_the_parser_of_thinking_that_it_names(words: str) -> None:
    named = words.format("--structured-outputs-config").split()
    assert read(*named).reasoning_parser == "deepseek_r1"
    assert read(*named, "--reasoning-parser", "qwen3").reasoning_parser == "qwen3"
    given = json.dumps({"reasoning_parser": "deepseek-r1", "backend": "auto"})
    _, other = model_configs(read("--also", f"org/other,structured-outputs-config={given}"))
    assert other.reasoning_parser == "deepseek_r1"
    with pytest.raises(ConfigError, match="reasoning-parser"):
        make_config({"structured_outputs_config": {"reasoning_parser": "no-such"}})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reasoning_parser": 3}, "reasoning_parser is a parser's name, not 3"),
        ({"reasoning_parser_plugin": "a.py"}, "reasoning_parser_plugin: --reasoning-parser-plugin names it"),
        ({"enable_in_reasoning": True}, "enable_in_reasoning: thinking is never held"),
        ({COMPACT: "yes"}, f"{COMPACT} is true or false, not yes"),
        ({"compact": True}, f"compact is none of {COMPACT}, {CLOSED}, backend, disable_fallback, reasoning_parser"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"--structured-outputs-config: {words}"):
        make_config({"structured_outputs_config": given})
