"""Chats of models in Mistral's own form: the ids that its library has (of tests/model/mistral/prompts/make.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.model.vocabularies.folder import fast_tokenizer, make
from actorserve.actors.options.config import make_config
from actorserve.actors.renderer.templates.chat_template import ChatTemplate, find_templates
from actorserve.http.output.parsers.registry import detect
from tests.support.models.mistral.tekken import NAMED, SOUNDS, THINKING, VERSIONS, write_tekken

EXPECTED = json.loads((Path(__file__).parents[2] / "model" / "mistral" / "prompts" / "expected.json").read_text())
PICTURE, TEXT = {"type": "image"}, {"type": "text", "text": "What?"}


def model_of(folder: Path, version: str, more: list[str]) -> ModelInfo:
    """With the tokenizer and the template that are made of a tekken.json."""
    for name, text in make([write_tekken(folder, version, more)]).items():
        (folder / name).write_text(text)
    return ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture="MistralForCausalLM",
        vocab_size=512,
        max_model_len=4096,
        end_tokens=[2],
        sampling_defaults={},
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))


def template_of(folder: Path, version: str, more: list[str]) -> ChatTemplate:
    return ChatTemplate(make_config({}), model_of(folder, version, more))


@pytest.mark.parametrize("version", VERSIONS)
def test_prompts_are_those_of_mistrals_library(version: str, tmp_path: Path) -> None:
    template = template_of(tmp_path, version, VERSIONS[version])
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert len(EXPECTED[version]) >= 7
    for asked in EXPECTED[version]:
        effort = {name: asked[name] for name in ("reasoning_effort",) if name in asked}
        text = template.render(asked["messages"], asked["tools"], variables=effort)
        assert tokenizer.encode(text, add_special_tokens=False).ids == asked["ids"], text


@pytest.mark.parametrize(
    ("version", "said"),
    [("v3", "[INST][IMG]What?[/INST]a[INST]b[/INST]"), ("v13", "[INST][IMG]What?[/INST]a[INST]b[/INST]")],
)
def test_a_picture_behind_a_text_comes_first(version: str, said: str, tmp_path: Path) -> None:
    template = template_of(tmp_path, version, VERSIONS[version])
    rest: list[dict[str, Any]] = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert template.render([{"role": "user", "content": [TEXT, PICTURE]}, *rest]) == f"<s>{said}".replace(
        "a[", "a</s>["
    )
    several = template.render([{"role": "user", "content": [TEXT, PICTURE, TEXT, PICTURE]}])
    assert several == "<s>[INST]What?[IMG]What?[IMG][/INST]"


def test_sounds_are_for_those_who_have_tokens_for_them(tmp_path: Path) -> None:
    content = [{"type": "audio"}, TEXT]
    hears = template_of(tmp_path / "hears", "v7", SOUNDS)
    assert hears.render([{"role": "user", "content": content}]) == "<s>[INST][BEGIN_AUDIO][AUDIO]What?[/INST]"
    with pytest.raises(ValueError, match="no parts of type audio"):
        template_of(tmp_path / "deaf", "v7", []).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("version", "more", "reasoning"),
    [("v11", NAMED, None), ("v13", NAMED, None), ("v13", [*NAMED, *THINKING], "mistral")],
)
def test_parsers_are_found(version: str, more: list[str], reasoning: str | None, tmp_path: Path) -> None:
    text = find_templates(make_config({}), model_of(tmp_path, version, more))["default"]
    assert detect(text) == ("mistral", reasoning)


def test_thinking_is_left_out_where_there_is_no_token_for_it(tmp_path: Path) -> None:
    thought = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a "}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": thought}]
    assert template_of(tmp_path, "v11", NAMED).render(messages) == "<s>[INST]q[/INST]a</s>"


def test_what_was_thought_is_written_of_the_field_too(tmp_path: Path) -> None:
    said = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    template = template_of(tmp_path, "v13", VERSIONS["v13"])
    assert template.render([{"role": "user", "content": "q"}, said]) == "<s>[INST]q[/INST][THINK]hm[/THINK]a</s>"


def test_ids_of_others_become_short(tmp_path: Path) -> None:
    call = {"id": "call_12345678901", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        *({"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}),
        {"role": "tool", "tool_call_id": call["id"], "content": "r"},
    ]
    text = template_of(tmp_path, "v11", NAMED).render(messages)
    number = text.partition("[CALL_ID]")[2][:9]
    assert number.isalnum() and text.endswith(f"[TOOL_RESULTS]{number}[TOOL_CONTENT]r[/TOOL_RESULTS]")


def test_an_answer_goes_on(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "so "}]
    template = template_of(tmp_path, "v7", [])
    said = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    assert said.rstrip() == "<s>[INST]q[/INST]so"


def test_an_effort_that_there_is_not_is_refused(tmp_path: Path) -> None:
    template = template_of(tmp_path, "v15", VERSIONS["v15"])
    with pytest.raises(ValueError, match="reasoning_effort is one of none, high"):
        template.render([{"role": "user", "content": "q"}], variables={"reasoning_effort": "medium"})


@pytest.mark.parametrize("version", ["v1", "v99", None])
def test_a_version_that_is_not_known_has_no_template(version: str | None, tmp_path: Path) -> None:
    write_tekken(tmp_path, version or "", [])
    assert "chat_template.jinja" not in make([tmp_path / "tekken.json"])


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(("name", "version"), [("v3", "3"), ("v7m1", "7"), ("v2", ""), ("", "")])
def test_files_of_sentencepiece_say_their_version(name: str, version: str, tmp_path: Path) -> None:
    file = tmp_path / f"tokenizer.model{name and '.'}{name}"
    shutil.copy(Path(__file__).parents[2] / "model" / "vocabularies" / "vocabulary_files" / "llama.model", file)
    assert fast_tokenizer(tmp_path, "auto") != tmp_path
    text = make([file]).get("chat_template.jinja", "")
    assert text.startswith(f"{{%- set version = {version} %}}") if version else not text


def test_a_folder_keeps_its_own_template(tmp_path: Path) -> None:
    write_tekken(tmp_path, "v7", [])
    (tmp_path / "chat_template.jinja").write_text("own")
    assert make([tmp_path / "tekken.json"])["chat_template.jinja"] == "own"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "own"}')
    made = make([tmp_path / "tekken.json"])
    assert "chat_template.jinja" not in made and '"chat_template": "own"' in made["tokenizer_config.json"]
