"""Models of the hub: what cannot be served is told before weights come, which come last."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from actorserve.actors.cli import main
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import ConfigError, make_config
from tests.model.hub.served import COMMIT, NAME, Hub, refusal
from tests.support.models import heads


def test_a_model_of_the_hub_is_had_with_its_weights_last(hub: Hub, here: Path) -> None:
    hub.files["original.safetensors"] = b"the same in another form"
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert Path(model.folder).name == COMMIT and (Path(model.folder) / "model.safetensors").exists()
    assert set(hub.asked[:2]) == {"config.json", "generation_config.json"}
    assert hub.asked[-1] == "model.safetensors" and "original.safetensors" not in hub.asked
    find_model(make_config({"model": NAME, "device": "cpu"}))
    assert len(hub.asked) == len(set(hub.asked)), "nothing is fetched again"


def test_the_folder_for_models_of_the_hub(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "")  # which is put back
    model = find_model(make_config({"model": NAME, "device": "cpu", "download_dir": str(here / "models")}))
    assert Path(model.folder).is_relative_to(here / "models") and (Path(model.folder) / "model.safetensors").exists()


def test_overrides_are_looked_at_before_weights_are_downloaded(
    hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "kept"))
    hub.change("config.json", lambda v: v.update(architectures=["Unknown"]))
    right: dict[str, object] = {"model": NAME, "device": "cpu", "hf_overrides": {"architectures": ["LlamaForCausalLM"]}}
    model = find_model(make_config(right))
    assert (Path(model.folder) / "model.safetensors").exists() and model.architecture == "LlamaForCausalLM"
    hub.asked.clear()
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        find_model(
            make_config({**right, "hf_overrides": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0}})
        )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda hub: hub.change("config.json", lambda v: v.update(architectures=[])), "names no architecture"),
        (lambda hub: hub.change("generation_config.json", lambda v: v.update(top_p=7)), "generation_config.json says"),
        (lambda hub: hub.files.pop("tokenizer.json"), "has none of tokenizer.json, tokenizer.model,"),
        (
            lambda hub: hub.files.update({"model.safetensors.index.json": b'{"weight_map": {"x": "y.safetensors"}}'}),
            "model.safetensors.index.json does not fit config.json: it lacks model.embed_tokens.weight",
        ),
        (lambda hub: hub.files.pop("config.json"), "has no config.json: it is no model"),
        (
            lambda hub: (
                hub.files.clear(),
                hub.files.update(dict.fromkeys(("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj.gguf"), b"")),
            ),
            "has several GGUF files; name one: org/name:Q4_0 or :Q8_0",
        ),
        (lambda hub: (hub.files.clear(), hub.files.update({"q.bin": b""})), "has no config.json, but q.bin"),
        (lambda hub: (hub.files.clear(), hub.files.update({"adapter_config.json": b"{}"})), "is a LoRA adapter"),
    ],
)
def test_what_cannot_be_served_is_told_before_weights_are_downloaded(
    hub: Hub, damage: Callable[[Hub], object], words: str
) -> None:
    damage(hub)
    assert words in refusal(NAME)
    assert not [file for file in hub.asked if file.endswith(".safetensors")]


def test_weights_of_another_form(hub: Hub) -> None:
    hub.files["weights.pth"] = hub.files.pop("model.safetensors")
    assert "has no safetensors, but weights.pth, which are not read" in refusal(NAME)
    find_model(make_config({"model": NAME, "device": "cpu", "load_format": "dummy"}))
    assert "weights.pth" not in hub.asked


@pytest.mark.parametrize("alone", [True, False])
def test_pickled_weights_are_for_where_there_are_no_others(hub: Hub, tmp_path: Path, alone: bool) -> None:
    torch.save(load(hub.files["model.safetensors"]), tmp_path / "pickled")
    hub.files["pytorch_model.bin"] = (tmp_path / "pickled").read_bytes()
    if alone:
        hub.files.pop("model.safetensors")
    find_model(make_config({"model": NAME, "device": "cpu"}))
    assert ("pytorch_model.bin" in hub.asked) == alone


def test_a_tokenizer_comes_without_weights(hub: Hub) -> None:
    hub.files["additional_chat_templates/rag.jinja"] = b"{{ x }}"
    find_model(make_config({"tokenizer": NAME, "device": "cpu"}))
    assert {"tokenizer.json", "additional_chat_templates/rag.jinja"} < set(hub.asked)
    assert "model.safetensors" not in hub.asked


@pytest.mark.parametrize("trust", [True, False])
def test_code_comes_only_where_it_is_trusted(hub: Hub, trust: bool) -> None:
    """That which config.json names of another repository may be missing: this model needs none."""
    code = {"modeling_own.py": b"raise SystemExit", "own_parts.py": b"x = 1"}
    hub.files |= code
    classes = {"AutoConfig": "org/other--configuration.Own", "AutoModel": "modeling_own.Own"}
    hub.change("config.json", lambda v: v.update(auto_map=classes))
    find_model(make_config({"model": NAME, "device": "cpu", "trust_remote_code": trust}))
    assert set(code) & set(hub.asked) == (set(code) if trust else set())
    assert hub.asked[-1] == "model.safetensors"
    assert ("org/other" in hub.others) == trust


def test_code_is_pulled_where_it_is_wanted(hub: Hub) -> None:
    hub.files["modeling_own.py"] = b"raise SystemExit"
    assert main(["models", "pull", NAME]) == 0 and "modeling_own.py" not in hub.asked
    assert main(["models", "pull", NAME, "--trust-remote-code"]) == 0 and "modeling_own.py" in hub.asked


@pytest.mark.parametrize(
    ("method", "file"),
    [("eagle", "pytorch_model.bin"), ("eagle3", "model.safetensors"), ("medusa", "medusa_lm_head.pt")],
)
def test_a_head_is_had_from_the_hub(method: str, file: str, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    if method == "medusa":
        heads.write_medusa(folder, heads.medusa(DEMO_FOLDER))
    else:
        write = heads.write_eagle if method == "eagle" else heads.write_eagle3
        write(folder, DEMO_FOLDER, getattr(heads, method)(DEMO_FOLDER))
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    drafts = {"method": method, "model": NAME, "num_speculative_tokens": 2}
    find_model(make_config({"device": "cpu", "speculative_config": json.dumps(drafts)}))
    assert hub.asked == ["config.json", file]


def test_what_refuses_a_head_comes_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    folder = heads.write_dflash(tmp_path / "head", DEMO_FOLDER, heads.dflash(DEMO_FOLDER))
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"mask_embedding.pt": b"x"}
    drafts = {"method": "dflash", "model": NAME, "num_speculative_tokens": 2}
    with pytest.raises(ConfigError, match=r"has mask_embedding\.pt, which is not supported"):
        find_model(make_config({"device": "cpu", "speculative_config": json.dumps(drafts)}))


def test_the_hub_has_no_such_model(hub: Hub) -> None:
    assert "the hub has no such model (or it is private: set HF_TOKEN); is it a typo?" in refusal("org/nome")
