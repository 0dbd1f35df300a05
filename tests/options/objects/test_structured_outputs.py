"""--structured-outputs-config: how JSON of answers looks where requests say nothing."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.structured_outputs import structured_defaults

from ..names.command_lines import read

COMPACT, CLOSED = "disable_any_whitespace", "disable_additional_properties"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, set()),
        ({"backend": "xgrammar", COMPACT: False, "reasoning_parser": "", "enable_in_reasoning": False}, set()),
        ({"backend": "xgrammar", COMPACT: True}, {COMPACT}),
        ({COMPACT: True, CLOSED: True}, {COMPACT, CLOSED}),
    ],
)
def test_what_is_on(given: dict[str, object], found: set[str]) -> None:
    assert structured_defaults(make_config({"structured_outputs_config": given})) == found


def test_keys_of_their_own_and_sglangs_name() -> None:
    for words in (f"--structured-outputs-config.{COMPACT} true", "--constrained-json-disable-any-whitespace"):
        assert structured_defaults(read(*words.split())) == {COMPACT}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reasoning_parser": "qwen3"}, "reasoning_parser: --reasoning-parser names it"),
        ({"enable_in_reasoning": True}, "enable_in_reasoning: thinking is never held"),
        ({COMPACT: "yes"}, f"{COMPACT} is true or false, not yes"),
        ({"compact": True}, f"compact is none of {COMPACT}, {CLOSED}, backend"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"--structured-outputs-config: {words}"):
        make_config({"structured_outputs_config": given})
