"""GGUF files of the hub: by their type, and as little of them as is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.cli import main
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.gguf.hub import FIRST
from actorserve.actors.options.config import make_config
from tests.model.hub.served import NAME, Hub, refusal
from tests.support.models.gguf.files import tiny_model as gguf_model


def gguf(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The hub has these files, all with the same model of one layer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "made"))
    body = gguf_model(here).read_bytes()
    hub.files = {name: body if "mmproj" not in name else b"" for name in names} | {"README.md": b"about it"}


@pytest.mark.parametrize(("asked", "file"), [(":Q4_K_M", "m-Q4_K_M.gguf"), (":q8_0", "sub/m.Q8_0.gguf")])
def test_a_gguf_file_is_had_by_its_type(
    asked: str, file: str, hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = ["mmproj-F16.gguf", "a-mmproj-Q4_K_M.gguf", "sub/mtp-m.Q8_0.gguf"]
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "sub/m.Q8_0.gguf", *others)
    for _ in range(2):
        model = find_model(make_config({"model": NAME + asked, "device": "cpu"}))
        assert model.vocab_size == 8 and hub.asked == [f"{file} to {FIRST - 1}", file], "that alone, and once"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"general.architecture": "plamo"}, "the architecture plamo (general.architecture) is not supported in GGUF"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre: unheard-of is not supported"),
        ({"llama.block_count": 0}, "says llama.block_count = 0"),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_what_a_header_says_is_refused_before_the_file_comes(
    fields: dict[str, Any], said: str, ranges: bool, hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parts of the file, of which the first does not have all of the header; or by its beginning."""
    monkeypatch.setattr("actorserve.actors.model.gguf.hub.FIRST", 512)
    gguf(hub, here, monkeypatch, "m-Q8_0.gguf")
    hub.files["m-Q8_0.gguf"] = gguf_model(here, fields).read_bytes() + bytes(64)
    hub.ranges = ranges
    told = refusal(f"{NAME}:Q8_0")
    assert said in told and f"{NAME}/m-Q8_0.gguf" in told
    asked = [f"m-Q8_0.gguf to {size}" for size in (511, 2047)] if ranges else ["m-Q8_0.gguf"] * 2
    assert hub.asked == asked and not list((here / "cache").rglob("*.gguf")), "no more was fetched"


def test_the_only_gguf_file_needs_no_type(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "mmproj-F16.gguf", "imatrix_unsloth.gguf", "m-F16-LoRA.gguf")
    assert find_model(make_config({"model": NAME, "device": "cpu"})).vocab_size == 8
    assert make_config({"model": f"{NAME}:Q4_K_M"}).served_names() == [f"{NAME}:Q4_K_M"]


@pytest.mark.parametrize("name", ["m-imatrix-IQ4_XS.gguf", "my-merged-lora.gguf", "m-imatrix.gguf"])
def test_a_model_may_be_named_as_what_it_is_not(
    name: str, hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf(hub, here, monkeypatch, name, "mmproj-F16.gguf")
    assert find_model(make_config({"model": NAME, "device": "cpu"})).vocab_size == 8
    assert hub.asked[-1] == name


def test_an_adapter_in_two_forms_is_told_as_one(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf(hub, here, monkeypatch, "m-lora.gguf")
    hub.files["adapter_config.json"] = b"{}"
    assert "is a LoRA adapter; name its model" in refusal(NAME)


def test_models_pull_fetches_the_file_that_launch_would_serve(
    hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "mmproj-F16.gguf")
    assert main(["models", "pull", NAME]) == 0
    assert Path(capsys.readouterr().out.strip()).name == "m-Q4_K_M.gguf"


def test_without_the_hub_its_cache_has_the_file(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q8_0.gguf")
    config = make_config({"model": f"{NAME}:Q4_K_M", "device": "cpu"})
    folder = find_model(config).folder
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert find_model(config).folder == folder
    assert "cannot be reached" in refusal("org/other:Q4_K_M")


def test_a_type_that_the_hub_has_not(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q8_0.gguf", "a/m-Q6_K.gguf", "b/m-Q6_K.gguf")
    assert "no GGUF file of the type Q5_K_M; name one: org/name:Q4_K_M or :Q6_K or :Q8_0" in refusal(f"{NAME}:Q5_K_M")
    assert "several GGUF files of the type Q6_K: a/m-Q6_K.gguf, b/m-Q6_K.gguf" in refusal(f"{NAME}:Q6_K")
    hub.files = {"README.md": b"nothing else"}
    assert "has no GGUF file of the type Q8_0: it is no model that can be served" in refusal(f"{NAME}:Q8_0")
    assert not hub.asked
