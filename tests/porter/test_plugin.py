"""Others' code as a tier: what it keeps is found, and whatever it does wrong is a miss that is told."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.porter import plugin as module
from actorserve.actors.porter.carrier import Kind, Reading
from actorserve.actors.porter.plugin import PluginTier
from tests.support.until import until

from .blocks import KIND, PRINT, SIZE, WAIT_S, contents, keys

KEYS = keys(4)
LOG = logging.getLogger("porter")


def tier(folder: Path, wrong: str = "") -> PluginTier:
    one = PluginTier(f"tests.porter.kv_connector:Files:{folder}?{wrong}", lambda: None, LOG)
    until(lambda: one.answers or one.errors > 0)
    return one


def read(one: PluginTier, keys: list[bytes] = KEYS, kind: Kind = KIND) -> list[bytes]:
    reading: Reading = one.read(kind, keys)
    until(lambda: reading.done)
    return reading.blocks


def fill(folder: Path) -> PluginTier:
    one = tier(folder)
    for key in KEYS[:3]:
        one.write(KIND, key, contents(key))
    until(lambda: all(one.has(KIND, key) for key in KEYS[:3]))
    return one


def test_it_keeps_blocks(tmp_path: Path) -> None:
    """Also for another life of the porter; of another fingerprint or size there are none."""
    one = fill(tmp_path)
    assert read(one) == read(tier(tmp_path)) == [contents(key) for key in KEYS[:3]]
    assert read(one, kind=Kind(bytes(32), SIZE)) == [] and one.answers
    assert read(one, kind=Kind(PRINT, SIZE + 1)) == [] and one.errors == 1


def test_it_forgets(tmp_path: Path) -> None:
    one, done = fill(tmp_path), threading.Event()
    one.forget(KIND, done.set)
    assert done.wait(WAIT_S) and read(one) == [] and not one.has(KIND, KEYS[0]) and one.answers


@pytest.mark.parametrize(
    ("wrong", "came", "text"),
    [
        ("raises", 0, "lookup or load has failed, and is a miss: ValueError: looked up wrong"),
        ("torn", 1, "its contents are not whole"),
        ("nothing", 0, ""),
    ],
)
def test_what_is_wrong_is_a_miss(
    tmp_path: Path, wrong: str, came: int, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path)
    one = tier(tmp_path, wrong)
    assert read(one) == [contents(key) for key in KEYS[:came]]
    until(lambda: one.errors == bool(text) and text in caplog.text)  # counted first, and then told
    assert one.answers == (not text)


def test_what_it_has_spoiled_it_is_given_again(tmp_path: Path) -> None:
    one = tier(tmp_path, "torn")
    for key in KEYS[:2]:
        one.write(KIND, key, contents(key))
    until(lambda: one.has(KIND, KEYS[1]))
    assert read(one) == [contents(KEYS[0])] and one.has(KIND, KEYS[0])
    assert not one.has(KIND, KEYS[1])


def test_who_hangs_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told once, and what is stored is stored all the same."""
    monkeypatch.setattr(module, "BUDGET_S", 0.05)
    one = tier(tmp_path, "hangs")
    reading = one.read(KIND, KEYS)
    until(lambda: not one.answers)
    for _ in range(2):
        one.look()
    assert caplog.text.count("has taken more than 0.05 s") == 1 and not reading.done
    assert one.takes
    one.write(KIND, KEYS[0], contents(KEYS[0]))
    until(lambda: one.has(KIND, KEYS[0]))


def test_what_cannot_be_stored_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = tier(tmp_path, "full")
    one.write(KIND, KEYS[0], contents(KEYS[0]))
    until(lambda: one.errors == 1)
    until(lambda: not one.takes)
    assert "no room" in caplog.text and not one.has(KIND, KEYS[0])


def test_one_that_cannot_be_made_is_not_asked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = tier(tmp_path, "made")
    assert not one.answers and not one.takes and read(one) == []
    until(lambda: "made wrong" in caplog.text)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_module:Name", "there is no module no_such_module"),
        ("/none.py:Name", "there is no file /none.py"),
        ("nothing", "no entry point of the group actorserve.kv_connectors"),
    ],
)
def test_what_is_not_there_is_told_at_the_start(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_config({"kv_offload": f"plugin:{name}"})
