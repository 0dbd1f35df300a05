"""Which parsers are chosen, and what is said at start where none is known."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actorserve.actors.frontend.actor import Frontend
from actorserve.actors.frontend.parsers import choose_parsers, unknown_calls
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.choices import ToolParser
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.http.output.events import Arguments, CallStart, ReasoningText
from actorserve.http.output.parsers import registry

UNKNOWN = "{% for tool in tools %}{{ tool }}{% endfor %}Call them as !name!arguments!{{ messages }}"


def model_of(folder: Path, *templates: str) -> ModelInfo:
    names = ("default", "tool_use")
    given = [{"name": name, "template": text} for name, text in zip(names, templates, strict=False)]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": given}))
    return ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture="LlamaForCausalLM",
        vocab_size=32,
        max_model_len=64,
        end_tokens=[],
        sampling_defaults={},
    )


@pytest.mark.parametrize(
    ("templates", "options", "warned"),
    [
        ((UNKNOWN,), {}, True),
        (("{{ messages[0].tool_calls | tojson }}",), {}, True),
        (("{{ messages }}", UNKNOWN), {}, True),
        ((UNKNOWN,), {"tool_call_parser": "hermes"}, False),
        ((UNKNOWN,), {"tool_call_parser": "none"}, False),
        ((UNKNOWN,), {"enable_auto_tool_choice": False}, False),
        ((UNKNOWN + "<tool_call>",), {}, False),
        (("{{ messages }}", UNKNOWN + "[TOOL_CALLS]"), {}, False),
        (("{# no tools here #}{{ messages }}",), {}, False),
        ((), {}, False),
    ],
)
def test_tools_without_a_known_form_are_told(
    templates: tuple[str, ...], options: dict[str, object], warned: bool, tmp_path: Path
) -> None:
    config, model = make_config(options), model_of(tmp_path, *templates)
    said = unknown_calls(config, model)
    assert (said is not None) is warned
    if said:
        assert "hermes" in said and "--tool-call-parser" in said and choose_parsers(config, model)[0] == "hermes"


def test_it_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of several frontends by the first, and in its first life."""
    model = model_of(tmp_path, UNKNOWN)
    for index, incarnation in ((0, 1), (1, 1), (0, 2)):
        context = SimpleNamespace(
            system=SimpleNamespace(models=[SimpleNamespace(config=make_config({}), info=model, index=0)]),
            spec=SimpleNamespace(index=index),
            incarnation=incarnation,
            log=logging.getLogger("frontend"),
        )
        Frontend._warn(cast(Any, SimpleNamespace(context=context)))
    (line,) = caplog.records
    assert line.levelname == "WARNING" and "\n" not in line.getMessage()


def test_comments_choose_nothing(tmp_path: Path) -> None:
    model = model_of(tmp_path, "{# unlike <tool_call> and <think></think> #}{{ messages }}")
    assert choose_parsers(make_config({}), model) == ("hermes", None)


def test_all_names_can_be_given(tmp_path: Path) -> None:
    for name in ToolParser.__args__:  # type: ignore[attr-defined]
        if name not in ("auto", "none"):
            assert choose_parsers(make_config({"tool_call_parser": name}), model_of(tmp_path, UNKNOWN))[0] == name


PLUGIN_FILE = """
from actorserve.http.output.events import Arguments, CallStart, Content, ReasoningText

class Shouted:
    def __init__(self, schemas):
        self.text = ""

    def feed(self, text):
        self.text += text
        return []

    def finish(self):
        if not self.text.startswith("!"):
            return [Content(self.text)]
        name, _, arguments = self.text[1:].partition(" ")
        return [CallStart(0, name), Arguments(0, arguments)]

class Whispered:
    markers = ("(", ")")

    def __init__(self, opened):
        self.inside = opened

    def feed(self, text):
        thought, mark, rest = text.partition(")")
        return [ReasoningText(thought), Content(rest)] if mark else [Content(text)]

    def finish(self):
        return []

number = 7
"""


def test_parsers_are_brought_by_options(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(PLUGIN_FILE)
    model = model_of(tmp_path, UNKNOWN)
    given: dict[str, Any] = {
        "tool_parser_plugin": f"{plugin}:Shouted",
        "reasoning_parser_plugin": f"{plugin}:Whispered",
    }
    config = make_config(given)
    try:
        assert choose_parsers(config, model) == ("plugin", "plugin") and unknown_calls(config, model) is None
        assert registry.THINK_MARKERS["plugin"] == ("(", ")")
        made = registry.make_parser(reasoning="plugin", tools="plugin", schemas={}, opened=True)
        pieces = [*made.feed('hm)!look {"at": 1}'), *made.finish()]
        assert pieces == [ReasoningText("hm"), CallStart(0, "look"), Arguments(0, '{"at": 1}')]
    finally:
        registry.TOOL_PARSERS.pop("plugin", None)
        registry.REASONING_PARSERS.pop("plugin", None)
        registry.THINK_MARKERS.pop("plugin", None)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("{}/plugin.py:nothing", "has no nothing"),
        ("{}/plugin.py:number", "cannot be called"),
        ("{}/nowhere.py:x", "there is no file"),
        ("no.such_module:x", "there is no module no"),
        ("unknown-entry", "no entry point of the group actorserve.tool_parsers"),
    ],
)
def test_what_brings_no_parser_is_told(tmp_path: Path, given: str, words: str) -> None:
    (tmp_path / "plugin.py").write_text("number = 7\n")
    with pytest.raises(ConfigError, match=words) as caught:  # when options are read, or parsers are made of them
        choose_parsers(make_config({"tool_parser_plugin": given.format(tmp_path)}), model_of(tmp_path, UNKNOWN))
    assert str(caught.value).startswith("--tool-parser-plugin: ")
