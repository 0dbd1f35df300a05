"""Code that options name is looked for at the start, and none of it is run then."""

from __future__ import annotations

from json import JSONDecoder
from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.plugins import LOGITS_PROCESSORS, check_plugin, folder_of, load_callable

SOURCE = """
raise RuntimeError("this is run")
if True:
    class Own: pass
def make(): pass
other = make
from json import JSONDecoder as Renamed
import json as module
import json.decoder
try:
    import nobody as either
except ImportError:
    class either: pass
number = 3
"""
NAMING = ("io_processor_plugin", "tool_parser_plugin", "reasoning_parser_plugin", "worker_cls", "worker_extension_cls")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("name", ["Own", "make", "other", "Renamed", "either", "number"])
def test_what_is_there(file: Path, name: str) -> None:
    check_plugin("--x", f"{file}:{name}", LOGITS_PROCESSORS)


@pytest.mark.parametrize("given", ["json:JSONDecoder", "json.decoder:JSONDecoder", "itertools:chain", "numpy:float32"])
def test_modules(given: str) -> None:
    check_plugin("--x", given, LOGITS_PROCESSORS)


def test_folders_without_init_are_packages_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = file.parent / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "plugin.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(file.parent)
    check_plugin("--x", "outer.inner.plugin:Own", LOGITS_PROCESSORS)
    check_plugin("--x", "outer.inner.plugin.Own", LOGITS_PROCESSORS)
    assert folder_of("outer.inner.plugin.Own") == folder_of("outer.inner.plugin:Own") == str(file.parent)
    with pytest.raises(ConfigError, match=r"outer\.inner\.plugin has no Nobody"):
        check_plugin("--x", "outer.inner.plugin:Nobody", LOGITS_PROCESSORS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "it is no module:name, and no entry point of the group actorserve.logits_processors"),
        ("nowhere_at_all:Name", "there is no module nowhere_at_all"),
        ("json.decoder:Nobody", "json.decoder has no Nobody"),
        ("json.decoder.Nobody", "json.decoder has no Nobody"),
        ("nowhere_at_all.Name", "there is no module nowhere_at_all"),
        ("/nowhere/plugin.py:Name", "there is no file /nowhere/plugin.py of Python"),
        ("{file}:Nobody", "plugin.py has no Nobody"),
        ("os:path", "os:path is a module, and no class"),
        ("{file}:module", "plugin.py:module is a module, and no class"),
        ("{file}:json", "plugin.py:json is a module, and no class"),
    ],
)
@pytest.mark.parametrize("option", ["logits_processors", "io_processor_plugin"])
def test_what_is_not_there_is_told_in_one_line(file: Path, given: str, said: str, option: str) -> None:
    given = given.format(file=file)
    said = said.replace("logits_processors", "io_processor_plugins") if option == "io_processor_plugin" else said
    with pytest.raises(ConfigError) as caught:
        make_config({option: [given] if option == "logits_processors" else given})
    assert said in str(caught.value) and str(caught.value).startswith(f"--{option.replace('_', '-')}: ")
    assert "\n" not in str(caught.value)


def test_a_source_that_makes_names_as_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "plugin.py"
    path.write_text("def __getattr__(name): return name\n")
    check_plugin("--x", f"{path}:Anything", LOGITS_PROCESSORS)
    path.write_text("class (\n")
    with pytest.raises(ConfigError, match="cannot be read: "):
        check_plugin("--x", f"{path}:Anything", LOGITS_PROCESSORS)


@pytest.mark.parametrize("option", NAMING)
def test_every_option_that_names_code_is_looked_at(option: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config({option: "os:path"})
    assert str(caught.value) == f"--{option.replace('_', '-')}: os:path is a module, and no class"


@pytest.mark.parametrize("option", NAMING)
def test_what_others_have_where_nothing_is_named(option: str) -> None:
    """vLLM's own defaults, and what a script makes of None."""
    for given in ("", "None", "none", *(("auto",) if option == "worker_cls" else ())):
        assert getattr(make_config({option: given}), option) is None
    with pytest.raises(ConfigError, match="no entry point of the group"):
        make_config({option: "anything"})


def test_what_is_loaded_can_be_called() -> None:
    assert load_callable("--x", "json:loads", LOGITS_PROCESSORS)
    with pytest.raises(ConfigError, match=r"^--x: os:sep is of the type str, and no class$"):
        load_callable("--x", "os:sep", LOGITS_PROCESSORS)
    with pytest.raises(ConfigError, match=r"^--x: os:path is a module, and no class$"):
        load_callable("--x", "os:path", LOGITS_PROCESSORS)


def test_a_name_behind_a_dot_as_vllm_has_it() -> None:
    assert load_callable("--x", "json.decoder.JSONDecoder", LOGITS_PROCESSORS) is JSONDecoder
