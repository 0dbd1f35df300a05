"""A name that is no folder of a model: what it is instead is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from actorserve.actors.model.checks.model import find_model, find_models
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import ConfigError, PassingError, make_config
from actorserve.actors.options.serving.models import with_models
from actorserve.actors.options.sources import warn
from tests.model.hub.served import NAME, Hub, refusal


def test_a_typo_names_folders_that_are_near(here: Path) -> None:
    (here / "Qwen3-0.6B" / "deep").mkdir(parents=True)
    assert f"did you mean {here / 'Qwen3-0.6B'}?" in refusal("Qwem3-0.6B")
    assert f"did you mean {here / 'Qwen3-0.6B'}?" in refusal("./qwen3-0.6b/deep")
    assert f"did you mean {here / 'Qwen3-0.6B' / 'deep'}?" in refusal(str(here / "Qwen3-0.6B" / "deeep"))
    assert refusal("/nowhere/at/all") == "model: there is no folder /nowhere/at/all"
    assert "there is no folder 'a\\nb'" in refusal("a\nb")
    assert refusal("Some/Model 1B").endswith(", or ORGANISATION/NAME:TYPE for a GGUF file of a type")
    assert "the hub cannot be reached" in refusal("some/model-1B-GGUF:Q4_K_M")
    assert "there is no folder" in refusal("x" * 300 + "/y/z") or "cannot be looked at" in refusal("x" * 300 + "/y/z")


def test_no_network(here: Path) -> None:
    assert "no folder org/name, and the hub cannot be reached ([Errno 111] Connection refused)" in refusal(NAME)


def test_no_network_may_pass_and_a_wrong_name_does_not(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service is started again after the first alone."""
    with pytest.raises(PassingError, match=f"--also {NAME}: .* the hub cannot be reached"):
        find_models(make_config({"also": [NAME], "device": "cpu"}))
    with pytest.raises(PassingError, match=r"--tokenizer: there is no folder .* the hub cannot be reached"):
        find_model(make_config({"tokenizer": NAME, "device": "cpu"}))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (NAME, "./nowhere"):
        with pytest.raises(ConfigError) as caught:
            find_model(make_config({"model": name, "device": "cpu"}))
        assert type(caught.value) is ConfigError and caught.value.status == 2


def test_of_a_folder_those_are_served_that_can_be(tmp_path: Path, here: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    values = with_models({"models_dir": str(tmp_path), "device": "cpu"}, warn)
    with pytest.raises(ConfigError, match=r"--models-dir: none of its models can be served: a: .* no architecture"):
        find_models(make_config(values))
    (tmp_path / "z").symlink_to(DEMO_FOLDER)
    values = with_models({"models_dir": str(tmp_path), "device": "cpu"}, warn)
    config, (info,) = find_models(make_config(values))
    assert config.served_names() == ["z"] and Path(info.folder) == DEMO_FOLDER
    assert config.unserved.keys() == {"a"} and "no architecture" in config.unserved["a"]
    with pytest.raises(ConfigError, match=f"--also {tmp_path / 'a'}: .* no architecture"):  # which somebody has named
        find_models(make_config({"also": [str(tmp_path / "a")], "device": "cpu"}))


def test_a_download_that_was_cut_off_may_go_on_later(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    del hub.files["model.safetensors"]
    assert "has no safetensors: it is no model" in refusal(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(PassingError, match=f"cache here has no safetensors of {NAME}, and the hub cannot be reached"):
        find_model(make_config({"model": NAME, "device": "cpu"}))


def test_what_is_no_folder(here: Path) -> None:
    (here / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    (here / "empty.gguf").touch()
    (here / "notes.txt").write_text("hello")
    (here / "bits").write_bytes(b"\xff\xfe\xfd" * 100)
    shutil.copy(DEMO_FOLDER / "config.json", here)
    for name, words in (
        ("m.gguf", "m.gguf is broken, cut off or not supported: it ends inside the header"),
        ("empty.gguf", "is a text file; a folder with config.json"),
        ("notes.txt", "is a text file; a folder with config.json"),
        ("config.json", f"is a text file of a model folder, {here}"),
        ("bits", "is a binary file"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "is a URL; the hub's name of it is Qwen/Qwen3-0.6B"),
        ("https://example.com/model", "is a URL; a folder with"),
    ):
        assert words in refusal(name), name


def test_a_pattern_that_no_shell_has_read(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.gguf"):  # it is found, and it is none
        find_model(make_config({"model": f"{_with_gguf(here)}/*.gguf", "device": "cpu"}))


def _with_gguf(here: Path) -> Path:
    (here / "of-gguf").mkdir()
    (here / "of-gguf" / "model.gguf").write_bytes(b"GGUF")
    return here / "of-gguf"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            "is a LoRA adapter; name its model and beside it --enable-lora --lora-modules",
        ),
        (["q4.gguf", "q8.gguf"], "has several GGUF models (q4.gguf, q8.gguf); name the file of one"),
        (["inner/config.json"], "config.json is missing; these folders in it have one: inner"),
        ([], "config.json is missing"),
    ],
)
def test_folders_of_other_things(files: list[str], words: str, here: Path) -> None:
    for file in ("readme.md", *files):
        (here / "model" / file).parent.mkdir(parents=True, exist_ok=True)
        (here / "model" / file).write_text("{}")
    assert words in refusal("model")
