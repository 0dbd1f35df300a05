"""What a model's folder says of its tokenizer, as /tokenizer_info tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.model.tokenizers.tokenizer import describe_tokenizer, find_templates, template_place
from actorserve.actors.options.choices import TokenizerMode
from actorserve.actors.options.config import Config


def described(folder: Path, config: Any = None, special: Any = None, **options: Any) -> dict[str, Any]:
    """Of a folder with these files."""
    for name, content in (("tokenizer_config", config), ("special_tokens_map", special)):
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content))
    return describe_tokenizer(Config(**options), model_in(folder))


def model_in(folder: Path, *media: str, architecture: str = "LlamaForCausalLM") -> ModelInfo:
    return ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture=architecture,
        vocab_size=9,
        max_model_len=9,
        end_tokens=[],
        sampling_defaults={},
        media=list(media),
    )


def test_special_tokens_are_texts_wherever_they_stand(tmp_path: Path) -> None:
    added = {"__type": "AddedToken", "content": "</s>", "lstrip": False, "special": True}
    about = described(tmp_path, {"eos_token": added, "pad_token": None, "add_bos_token": True}, {"bos_token": "<s>"})
    assert (about["eos_token"], about["bos_token"]) == ("</s>", "<s>")
    assert about["add_bos_token"] is True and about["pad_token"] is None


def test_the_class_is_always_named(tmp_path: Path) -> None:
    assert described(tmp_path) == {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert described(tmp_path, {"tokenizer_class": "LlamaTokenizer"})["tokenizer_class"] == "LlamaTokenizer"


@pytest.mark.parametrize(
    ("found", "given", "told"),
    [
        ("{{ own }}", None, "{{ own }}"),
        ("{{ own }}", "{{ mine }}", "{{ mine }}"),
        ([{"name": "default", "template": "{{ a }}"}, {"name": "rag", "template": "{{ b }}"}], None, "{{ a }}"),
        ([{"name": "rag", "template": "{{ b }}"}], None, None),
        ({"default": "{{ a }}", "rag": "{{ b }}"}, None, "{{ a }}"),
    ],
)
def test_one_template_is_told(tmp_path: Path, found: Any, given: str | None, told: str | None) -> None:
    assert described(tmp_path, {"chat_template": found}, chat_template=given).get("chat_template") == told


@pytest.mark.parametrize("name", ["chat_template.json", "processor_config.json"])
def test_older_processors_have_the_template_in_files_of_their_own(tmp_path: Path, name: str) -> None:
    """What it is of a model that sees goes before its tokenizer's, which may know texts alone."""
    (tmp_path / name).write_text('{"chat_template": "{{ seen }}"}')
    assert described(tmp_path, {})["chat_template"] == "{{ seen }}"
    assert described(tmp_path, {"chat_template": "{{ text }}"})["chat_template"] == "{{ text }}"
    assert find_templates(Config(), model_in(tmp_path, "image")) == {"default": "{{ seen }}"}
    assert (
        template_place(Config(), model_in(tmp_path, "image"), "default") == f"model: {tmp_path / name}: chat_template"
    )
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert find_templates(Config(), model_in(tmp_path, "image")) == {"default": "{{ new }}"}


def test_templates_beside_the_default_one(tmp_path: Path) -> None:
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ tools }}")
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ text }}"}')
    assert find_templates(Config(), model_in(tmp_path)) == {"default": "{{ text }}", "tool_use": "{{ tools }}"}
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert find_templates(Config(), model_in(tmp_path)) == {"default": "{{ new }}", "tool_use": "{{ tools }}"}
    assert template_place(Config(), model_in(tmp_path), "tool_use") == f"model: {more / 'tool_use.jinja'}"


@pytest.mark.parametrize(("name", "mode"), [("DeepseekV32", "deepseek_v32"), ("DeepseekV4", "deepseek_v4")])
def test_models_with_code_for_a_template_have_ours(tmp_path: Path, name: str, mode: TokenizerMode) -> None:
    model = model_in(tmp_path, architecture=f"{name}ForCausalLM")
    ours = find_templates(Config(), model)
    assert "｜DSML｜" in ours["default"]
    assert find_templates(Config(chat_template="{{ mine }}", tokenizer_mode=mode), model) == {"default": "{{ mine }}"}
    (tmp_path / "chat_template.jinja").write_text("{{ own }}")
    assert find_templates(Config(), model) == {"default": "{{ own }}"}
    assert find_templates(Config(tokenizer_mode=mode), model_in(tmp_path)) == ours
    place = template_place(Config(tokenizer_mode=mode), model, "default")
    assert place.startswith(f"--tokenizer-mode {mode}: ") and place.endswith(".jinja")
