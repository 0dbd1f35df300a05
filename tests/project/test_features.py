"""The table of features says what is so: what a row names is there, and so is the test that shows it."""

from __future__ import annotations

import argparse
import re
import runpy
from functools import cache
from pathlib import Path

import pytest

import actorserve
from actorserve.actors.cli import EVERY, make_parser
from actorserve.actors.llm.llm import LLM
from actorserve.actors.options.command_line import describe_options
from actorserve.http.routes import ROUTES

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = runpy.run_path(str(ROOT / "tools" / "docs" / "generate.py"))
FEATURES = GENERATOR["features"]()
NAMED = re.compile(r"`([^`]+)`")
SPOKEN = ("http", "actors/llm", "actors/protocol", "actors/bench", "actors/worker/speculative", "actors/model/heads")
FIELD = re.compile(r"[a-z_]\w*$")


@cache
def routes() -> set[str]:
    return {f"{route.method.upper()} {re.sub(r':[^}]*}', '}', route.path)}" for route in ROUTES}


@cache
def commands() -> dict[str, set[str]]:
    """The options of each command, by the words that lead to it."""
    found: dict[str, set[str]] = {"": {option for option, _ in describe_options()}}

    def look(parser: argparse.ArgumentParser, words: str) -> None:
        found[words] = {option for action in parser._actions for option in action.option_strings}
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, inner in action.choices.items():
                    look(inner, f"{words} {name}".strip())

    look(make_parser(EVERY), "actorserve")
    return found


@cache
def sources() -> str:
    """What speaks with clients, where fields and values have their names."""
    return "\n".join(path.read_text() for folder in SPOKEN for path in (ROOT / folder).rglob("*.py"))


def is_there(name: str) -> bool:
    """A path of the API, an option, a command, a method of `LLM`, a file, or a field."""
    if re.match(r"(GET|POST|DELETE|WS) /", name):
        return name in routes()
    if name.startswith("--"):
        return any(name.split()[0] in options for options in commands().values())
    if name.startswith("actorserve "):
        words = name.split(" -")[0]
        return words in commands() and all(word in commands()[words] for word in name.split() if word[:2] == "--")
    if name.startswith("LLM."):
        return hasattr(LLM, name.removeprefix("LLM."))
    if (ROOT / name).exists() or name.startswith("python -m ") or hasattr(actorserve, name):
        return True
    return bool(FIELD.match(name)) and re.search(rf"\b{name}\b", sources()) is not None


def test_the_table_is_whole() -> None:
    assert len(FEATURES) >= 228 and len({row.name for row in FEATURES}) == len(FEATURES)
    for row in FEATURES:
        assert row.state in GENERATOR["STATES"], row
        assert row.how, f"{row.name}: it is asked for by something, or missing for a reason"
        assert bool(row.test) or row.state == "no", f"{row.name}: a test shows what there is"


@pytest.mark.parametrize("state", ["yes", "untried", "part"])
def test_what_a_row_names_is_there(state: str) -> None:
    named = [(row.name, name) for row in FEATURES if row.state == state for name in NAMED.findall(row.how)]
    assert [pair for pair in named if not is_there(pair[1])] == []


def test_what_shows_it_is_there() -> None:
    missing = []
    for row in FEATURES:
        for shown in NAMED.findall(row.test):
            file, _, name = shown.partition("::")
            path = ROOT / file
            if not path.is_file() or f"def {name}(" not in path.read_text():
                missing.append((row.name, shown))
    assert missing == []


@pytest.mark.parametrize("name", ["POST /v1/nothing", "--no-such-option", "actorserve bench nothing", "LLM.nothing"])
def test_what_is_not_there_is_noticed(name: str) -> None:
    assert not is_there(name)
