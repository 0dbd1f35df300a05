"""What both sides of a connection must have in common, told by name where it differs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.sockets.engine_facts import END_TOKENS, facts_of, refusal_of


def copy_with(folder: Path, name: str, place: int) -> str:
    shutil.copytree(DEMO_FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    data = bytearray((folder / name).read_bytes())
    data[place] ^= 1
    (folder / name).write_bytes(data)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "place", "told"),
    [("model.safetensors", -5, "weights"), ("tokenizer.json", -3, "tokenizer"), ("config.json", -1, "model")],
)
def test_engines_with_other_files_are_told_apart(tmp_path: Path, name: str, place: int, told: str) -> None:
    """By what is in them, wherever they lie."""
    config = make_config({})
    model = find_model(config)
    own = facts_of(config, model)
    shutil.copytree(DEMO_FOLDER, tmp_path / "same")
    (tmp_path / "same" / name).touch()

    class Elsewhere:
        folder = str(tmp_path / "same")
        tokenizer_folder = ""
        max_model_len = model.max_model_len
        end_tokens = model.end_tokens
        pooling = model.pooling

    assert refusal_of(facts_of(config, Elsewhere()), own) == ""  # type: ignore[arg-type]
    Elsewhere.folder = copy_with(tmp_path / "other", name, place)
    refusal = refusal_of(facts_of(config, Elsewhere()), own)  # type: ignore[arg-type]
    assert told in refusal
    assert refusal.count(" here, ") == 1


@pytest.mark.parametrize(
    ("option", "value"), [("dtype", "bfloat16"), ("block_size", 16), ("max_model_len", 512), ("quantization", "int8")]
)
def test_engines_with_other_options_are_told_apart(option: str, value: object) -> None:
    facts = []
    for values in ({}, {option: value}):
        config = make_config(values)
        facts.append(facts_of(config, find_model(config)))
    assert f"--{option.replace('_', '-')}" in refusal_of(*facts)


def test_engines_whose_tokens_mean_other_texts_are_told_apart(tmp_path: Path) -> None:
    """Wherever the tokenizer is from: of some models it is made of files with other names."""
    shutil.copytree(DEMO_FOLDER, tmp_path / "same")
    content = json.loads((tmp_path / "same" / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 1 << 20, "content": "<|late|>"})
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(content))
    configs = [make_config({}), *(make_config({"tokenizer": str(tmp_path / name)}) for name in ("same", "other"))]
    here, same, other = (facts_of(config, find_model(config)) for config in configs)
    assert refusal_of(here, same) == "" and refusal_of(here, other).startswith("it differs: tokenizer: ")


def test_engines_that_would_end_or_change_a_text_otherwise_are_told_apart(tmp_path: Path) -> None:
    """By what a file of processors holds, not by where it lies."""

    def facts(**values: object) -> dict[str, str]:
        config = make_config(values)
        return facts_of(config, find_model(config))

    ends = facts(override_generation_config='{"eos_token_id": [7, 9]}')
    assert refusal_of(facts(), ends).startswith(f"it differs: {END_TOKENS}: [")
    made = [tmp_path / name / "mine.py" for name in ("here", "there", "other")]
    for path, text in zip(made, ("class A: ...", "class A: ...", "class A: 'else'"), strict=True):
        path.parent.mkdir()
        path.write_text(text)
    here, there, other = (facts(logits_processors=[f"{path}:A"]) for path in made)
    assert refusal_of(here, there) == ""
    assert all("--logits-processors: mine.py:A (" in refusal_of(here, one) for one in (other, facts()))
    assert "--logits-processor-pattern" in refusal_of(facts(logits_processor_pattern="a"), facts())
