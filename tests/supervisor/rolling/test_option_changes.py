"""Which options a restart may change, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.fingerprint import fingerprint
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.rolling.option_changes import change, check


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


@pytest.mark.parametrize("launched", ["models/one", "~/models/one", "./link"])
def test_a_folder_stays_the_same_by_whichever_name(
    launched: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that a server was launched with names what it has as it is called from there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "models" / "one"
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    now = make_config({"model": launched, "lora_folder": "models", "enable_lora": True})
    check(now, ["frontend"], {"model": str(folder), "lora_folder": str(folder.parent), "log_level": "debug"})
    with pytest.raises(ConfigError, match=r"^--model cannot change in a restart of frontend"):
        check(now, ["frontend"], {"model": str(folder.parent)})


def test_a_smaller_step_lays_out_memory_as_before() -> None:
    """Its scheduler shares it with all those that go on."""
    launched = make_config({"max_num_seqs": 2048, "max_num_batched_tokens": 1 << 17, "max_model_len": 256})
    changed = change(launched, launched, "scheduler", {"max_num_batched_tokens": 256})
    assert changed.max_num_batched_tokens == 256
    systems = [System(config, resolve_model(config)) for config in (launched, changed)]
    assert fingerprint(systems[0]) == fingerprint(systems[1])
