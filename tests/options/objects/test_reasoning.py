"""--reasoning-config: what closes thinking that has used up its budget."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.names.given import named_values
from actorserve.actors.options.objects.reasoning import closing_text

GIVEN = {"reasoning_start_str": "<think>", "reasoning_end_str": "Enough.</think>"}


def test_the_end_is_what_is_written() -> None:
    assert closing_text(make_config({})) == ""
    assert closing_text(make_config({"reasoning_config": GIVEN})) == "Enough.</think>"
    said = named_values({"reasoning-budget-message": "Enough."}, "a file", print)
    assert closing_text(make_config(said)) == "Enough."


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"reasoning_parser": "qwen3"}, "reasoning_parser is none of .*; --reasoning-parser names the parser"),
        ({"end": "a"}, "end is none of reasoning_start_str and reasoning_end_str"),
        ({"reasoning_end_str": 1}, "reasoning_end_str is a text, not 1"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(given: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"--reasoning-config: {words}"):
        make_config({"reasoning_config": given})
