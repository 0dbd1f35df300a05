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
from actorserve.actors.options.config import ToolParser, make_config

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
            config=make_config({}),
            model=model,
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
