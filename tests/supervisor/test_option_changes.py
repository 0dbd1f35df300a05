"""Which options a restart may change, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.supervisor.rolling.option_changes import change


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("of-file\n")
    return file


def test_keys_that_were_given_stay_when_a_file_of_others_is_read_again(keys: Path) -> None:
    config = make_config({"api_key": ["given"], "api_key_file": str(keys)})
    assert config.api_key == ["given", "of-file"]
    keys.write_text("another\none-more\n")
    for _ in range(2):
        config = change(config, config, "frontend", {"api_key_file": str(keys)})
        assert config.api_key == ["given", "another", "one-more"]
    without = change(config, config, "frontend", {"api_key_file": None})
    assert without.api_key == ["given"] and without.api_key_file is None
    assert change(config, without, "frontend", {"api_key_file": str(keys)}).api_key == config.api_key


def test_keys_of_a_file_stay_when_others_are_given(keys: Path) -> None:
    config = make_config({"api_key": ["given"], "api_key_file": str(keys)})
    keys.unlink()  # what it said is kept
    for given in (["new", "newer"], []):
        config = change(config, config, "frontend", {"api_key": given})
        assert config.api_key == [*given, "of-file"] and config.api_key_file == str(keys)
    assert change(config, config, "frontend", {"log_level": "debug"}).api_key == ["of-file"]
