"""Models of the hub in Mistral's own form: which files are fetched, and what is told before weights come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

from actorserve.actors.cli import main
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import ConfigError, make_config
from tests.model.hub.served import NAME, Hub
from tests.support.models.mistral.files import convert

PARAMS, WEIGHTS = "params.json", "consolidated.safetensors"


@pytest.fixture
def own(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The packaged model in that form alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "kept"))
    return convert(DEMO_FOLDER, here / "own")


def to_hub(hub: Hub, folder: Path) -> None:
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("index", [True, False])
def test_a_model_of_the_hub(parts: int, index: bool, hub: Hub, own: Path) -> None:
    folder = convert(DEMO_FOLDER, own.parent / "parts", parts)
    if not index:
        (folder / f"{WEIGHTS}.index.json").unlink(missing_ok=True)
    to_hub(hub, folder)
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.architecture == "MistralForCausalLM"
    weights = [file for file in hub.asked if file.endswith(".safetensors")]
    assert len(weights) == parts and hub.asked[-parts:] == weights


@pytest.mark.parametrize(
    ("options", "file"),
    [({}, "model.safetensors"), ({"load_format": "mistral"}, WEIGHTS), ({"config_format": "mistral"}, WEIGHTS)],
)
def test_of_both_forms_at_the_hub_one_is_downloaded(options: dict[str, object], file: str, hub: Hub, own: Path) -> None:
    both = hub.files
    to_hub(hub, own)
    hub.files |= both
    find_model(make_config({"model": NAME, "device": "cpu", **options}))
    assert [asked for asked in hub.asked if asked.endswith(".safetensors")] == [file]


@pytest.mark.parametrize("name", ["--load-format", "--config-format"])
def test_what_was_pulled_in_a_form_is_launched_in_it(
    name: str, hub: Hub, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = hub.files
    to_hub(hub, own)
    hub.files |= both
    assert main(["models", "pull", NAME, name, "mistral"]) == 0
    assert [asked for asked in hub.asked if asked.endswith(".safetensors")] == [WEIGHTS]
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    options: dict[str, object] = {"model": NAME, "device": "cpu", "load_format": "mistral"}
    assert find_model(make_config(options)).architecture == "MistralForCausalLM"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda files: files.update({PARAMS: b'{"dim": 0}'}), "params.json says"),
        (lambda files: files.update({f"{WEIGHTS}.index.json": b'{"weight_map": {"x": "c.safetensors"}}'}), "it lacks"),
        (lambda files: files.pop("tokenizer.json"), "has none of tokenizer.json"),
    ],
)
def test_what_is_wrong_at_the_hub_is_told_before_weights_come(
    damage: Callable[[dict[str, bytes]], object], words: str, hub: Hub, own: Path
) -> None:
    to_hub(hub, own)
    if words == "it lacks":
        hub.files["consolidated-00001-of-00001.safetensors"] = hub.files.pop(WEIGHTS)
    damage(hub.files)
    with pytest.raises(ConfigError, match=words):
        find_model(make_config({"model": NAME, "device": "cpu"}))
    assert not [file for file in hub.asked if file.endswith(".safetensors")]


def test_a_form_that_the_hub_has_not(hub: Hub, here: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config-format mistral: .* has no params\.json"):
        find_model(make_config({"model": NAME, "device": "cpu", "config_format": "mistral"}))
