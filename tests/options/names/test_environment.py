"""LLAMA_ARG_…, llama-server's variables: each is its option given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.fields import flag, option_fields
from actorserve.actors.options.names.llama_server import SWITCHES, VARIABLES, WHERE_ON
from actorserve.actors.options.other_servers import meaning_of
from actorserve.actors.options.sources import read_environment

from .command_lines import read


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("MODEL", "folder", {"model": "folder"}),
        ("HF_REPO", "org/name:Q4_K_M", {"model": "org/name:Q4_K_M"}),
        ("CTX_SIZE", "4096", {"max_model_len": 4096}),
        ("CTX_SIZE", "0", {}),
        ("CTX_SIZE", "", {}),
        ("ENDPOINT_SLOTS", "0", {"enable_slots": False}),
        ("ENDPOINT_SLOTS", "1", {"enable_slots": True}),
        ("WEBUI", "0", {"enable_page": False}),
        ("NO_WEBUI", "1", {"enable_page": False}),
        ("MEDIA_PATH", "/pictures", {"allowed_local_media_path": "/pictures"}),
        ("N_PARALLEL", "4", {"max_num_seqs": 4}),
        ("BATCH", "512", {"max_num_batched_tokens": 512}),
        ("THREADS", "-1", {"threads": None}),
        ("HOST", "0.0.0.0", {"host": "0.0.0.0"}),
        ("PORT", "9000", {"port": 9000}),
        ("ALIAS", "a,b", {"served_model_name": ["a", "b"]}),
        ("CHAT_TEMPLATE_KWARGS", '{"a": 1}', {"default_chat_template_kwargs": '{"a": 1}'}),
        ("CACHE_PROMPT", "0", {"enable_prefix_caching": False}),
        ("NO_CACHE_PROMPT", "1", {"enable_prefix_caching": False}),
        ("CORS_CREDENTIALS", "true", {"allow_credentials": True}),
        ("CORS_CREDENTIALS", "disabled", {"allow_credentials": False}),
        ("EMBEDDINGS", "enabled", {"runner": "pooling"}),
        ("EMBEDDINGS", "disabled", {}),
        ("LOG_JSONL", "off", {"log_format": "text"}),
        ("CACHE_TYPE_K", "f16", {}),
        ("N_PREDICT", "128", {"override_generation_config": {"max_new_tokens": 128}}),
        ("TEMPERATURE", "0.5", {"override_generation_config": {"temperature": 0.5}}),
    ],
)
def test_a_variable_is_its_option_given(name: str, text: str, expected: dict[str, Any]) -> None:
    assert read_environment({f"LLAMA_ARG_{name}": text}) == expected


def test_who_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("port: 1\nmax_num_seqs: 1\n")
    monkeypatch.setenv("LLAMA_ARG_PORT", "2")
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "2000")
    monkeypatch.setenv("LLAMA_ARG_THREADS", "2")
    monkeypatch.setenv("ACTORSERVE_THREADS", "3")
    found = read("--config", str(tmp_path / "file.yaml"), "-c", "4000")
    assert found == Config(port=2, max_num_seqs=1, max_model_len=4000, threads=3)


@pytest.mark.parametrize(
    ("name", "text", "warned"),
    [
        ("JINJA", "1", "jinja: not needed: chat templates are always Jinja"),
        ("N_GPU_LAYERS", "99", "n-gpu-layers: not needed"),
        ("KV_OFFLOAD", "1", "not needed: all layers, keys and values are where --device says"),
        ("FLASH_ATTN", "auto", "flash-attn: not needed"),
        ("CONTEXT_SHIFT", "0", "no-context-shift: not needed: it is not there anyway"),
        ("CTX_SZIE", "1", "no option of llama-server that is known"),
    ],
)
def test_what_sets_nothing_is_warned_of(name: str, text: str, warned: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_environment({f"LLAMA_ARG_{name}": text}) == {}
    assert f"warning: LLAMA_ARG_{name}: {warned}" in capsys.readouterr().err.replace("op-offload: ", "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("N_PREDICT", "-1"),
        ("THINK_BUDGET", "-1"),
        ("SPLIT_MODE", "layer"),
        ("SPLIT_MODE", "none"),
        ("CACHE_RAM", "0"),
        ("MAIN_GPU", "0"),
        ("YARN_EXT_FACTOR", "-1.00"),
        ("SPEC_DRAFT_CACHE_TYPE_K", "f16"),
        ("REASONING_EFFORT", "default"),
    ],
)
def test_defaults_ask_for_nothing(name: str, text: str) -> None:
    assert read_environment({f"LLAMA_ARG_{name}": text}) == {}


@pytest.mark.parametrize("name", ["ENDPOINT_METRICS", "ENDPOINT_PROPS"])
def test_what_is_not_asked_for_may_be_there(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_environment({f"LLAMA_ARG_{name}": "0"}) == {}
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("CTX_SIZE", "many", "many is not a whole number"),
        ("PORT", "99999", "99999 is out of range"),
        ("CACHE_PROMPT", "maybe", "maybe is neither 1 nor 0"),
        ("IGNORE_EOS", "1", "ignore-eos: not supported"),
        ("CPU_MOE", "1", "cpu-moe: not supported"),
        ("SPLIT_MODE", "row", "split-mode: not supported"),
        ("CACHE_RAM", "2048", "cache-ram: not supported"),
    ],
)
def test_an_error_names_the_variable(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^LLAMA_ARG_{name}: {words}"):
        read_environment({f"LLAMA_ARG_{name}": text})


def test_every_variable_of_another_name_has_an_option() -> None:
    for option in (*VARIABLES.values(), *SWITCHES, *WHERE_ON):
        assert option.replace("-", "_") in option_fields() or meaning_of(flag(option)) is not None, option
