"""Options from a YAML file and from the environment, and which of them count."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.config import Config, ConfigError

from .command_line import read


def test_yaml_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1234\nmax-num-seqs: 7\nmax_model_len: 2k\napi_key: one\nenable_prefix_caching: false\n")
    config = read("--config", str(file), "--port", "99")
    assert (config.port, config.max_num_seqs, config.max_model_len) == (99, 7, 2000)
    assert config.api_key == ["one"] and not config.enable_prefix_caching


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-sequences: 7", "max-num-sequences"),
        ("port: eighty", "--port: eighty"),
        ("frontends: 0", "--frontends"),
        ("dtype: 8", "--dtype"),
        ("- a\n- b", "no mapping"),
        ("a: [", r"cannot be read: expected [^\n]* \(line 1\)$"),
        ("port: 1\nmodel: a\nport: 2", r"cannot be read: port is there twice \(line 3\)"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max_num_seqs: it is there twice"),
        ("tp: 2\ntp-size: 4", "tp-size: it is there twice, or by two of its names"),
        ("tensor-parallel-size: 2\ntp: 4", "tp: it is there twice, or by two of its names"),
        ("disable-cuda-graph: true\nenforce-eager: false", "enforce-eager: it is there twice"),
        ("compilation-config: 0\nenforce-eager: false", "enforce-eager: it is there twice"),
        ("hf-overrides: {a: 1}\nhf_overrides: {b: 1}", "hf_overrides: it is there twice"),
        ("hf-overrides: {a: 1}\nhf-overrides.a: 2", "hf-overrides.a: it is there twice, or by two of its names"),
        ("hf-overrides.a.b: 1\nhf-overrides: {a: 2}", "hf-overrides: it is there twice, or by two of its names"),
        ("hf-overrides.a: 1\nhf-overrides: {b: 2}\nhf-overrides: {c: 2}", "hf-overrides is there twice"),
        ("spec-method: mtp\nspeculative-algorithm: NGRAM", "speculative-algorithm: it is there twice, or by two"),
        ("hf-overrides.list+: 3", r"hf-overrides.list\+: no such key; a list is written as one"),
        ("port.a: 3", "port.a: there is no such option"),
        ('warm-up: "maybe"', "--warm-up: maybe is neither true nor false"),
        ('shutdown-timeout: "soon"', "--shutdown-timeout: soon is not a number"),
        ("served-model-name: [a, '']", "--served-model-name: one of the names is empty"),
    ],
)
def test_yaml_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read("--config", str(file))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('warm-up: "true"', "warm_up", True),
        ('warm-up: "0"', "warm_up", False),
        ('shutdown-timeout: "30"', "shutdown_timeout", 30.0),
        ("port: '9000'", "port", 9000),
        ("served-model-name: 7", "served_model_name", ["7"]),
        ("served-model-name: [1.10, on]", "served_model_name", ["1.10", "on"]),
        ("alias: 1.10", "served_model_name", ["1.10"]),
        ("api-key: 012345", "api_key", ["012345"]),
        ("revision: 2e10", "revision", "2e10"),
        ("revision: null", "revision", None),
        ("speculative-config: off", "speculative_config", "none"),
        ("cudagraph-capture-sizes: 8", "cudagraph_capture_sizes", [8]),
        ("cudagraph-capture-sizes: ['1', 2k]", "cudagraph_capture_sizes", [1, 2000]),
        ("enable-lora: true\nlora-modules: [{name: a, path: /x}]", "lora_modules", ['{"name":"a","path":"/x"}']),
        ("enable-lora: true\nlora-modules: {name: a, path: /x}", "lora_modules", ['{"name":"a","path":"/x"}']),
    ],
)
def test_yaml_is_read_as_it_is_meant(tmp_path: Path, text: str, name: str, value: object) -> None:
    """By Helm and envsubst all is quoted, and by others texts that look like numbers are not."""
    (tmp_path / "options.yaml").write_text(text)
    assert getattr(read("--config", str(tmp_path / "options.yaml")), name) == value


@pytest.mark.parametrize(
    ("lines", "name", "expected"),
    [
        (
            ["hf-overrides: {a: 1, b: {c: 2}}", "hf-overrides.b.d: 3", "hf_overrides.e: f"],
            "hf_overrides",
            {"a": 1, "b": {"c": 2, "d": 3}, "e": "f"},
        ),
        (
            ["speculative-config: {method: ngram}", "spec-tokens: 3"],
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        (
            ["speculative-config: null", "spec-method: ngram", "speculative-num-steps: 3"],
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        (
            ["chat-template-kwargs.a: true", "default-chat-template-kwargs: '{\"b\": 1}'"],
            "default_chat_template_kwargs",
            {"a": True, "b": 1},
        ),
    ],
)
def test_an_object_and_its_keys_are_one(tmp_path: Path, lines: list[str], name: str, expected: dict[str, Any]) -> None:
    """In any order, as on the command line."""
    for ordered in (lines, lines[::-1]):
        (tmp_path / "options.yaml").write_text("\n".join(ordered))
        assert json.loads(getattr(read("--config", str(tmp_path / "options.yaml")), name)) == expected


def test_missing_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config: .*/none.yaml cannot be read: No such file or directory$"):
        read("--config", str(tmp_path / "none.yaml"))


def test_yaml_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8"):
        read("--config", str(tmp_path / "options.yaml"))


def test_empty_yaml(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert read("--config", str(tmp_path / "empty.yaml")) == Config()


def test_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORSERVE_API_KEY", "secret")
    assert read().api_key == ["secret"]
    assert read("--api-key", "other").api_key == ["other"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", "16", 16),
        ("max_model_len", "2K", 2048),
        ("shutdown_timeout", "1.5", 1.5),
        ("debug", "1", True),
        ("enable_prefix_caching", "False", False),
        ("dtype", "float16", "float16"),
        ("model", "folder", "folder"),
        ("served_model_name", "a, b", ["a", "b"]),
        ("cudagraph_capture_sizes", "1,2k", [1, 2000]),
        ("cudagraph_capture_sizes", "[1, 8]", [1, 8]),
        ("allowed_origins", '["https://a.example", "null"]', ["https://a.example", "null"]),
        ("api_key", "a,b", ["a,b"]),
        ("max_num_seqs", "", 64),
        ("served_model_name", "a, b,", ["a", "b"]),
        ("lora_modules", '{"name":"a","path":"/x"}', ['{"name":"a","path":"/x"}']),
        ("lora_modules", '["b=/y", {"name":"a","path":"/x"}]', ["b=/y", '{"name":"a","path":"/x"}']),
    ],
)
def test_the_environment_sets_any_option(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv("ACTORSERVE_ENABLE_LORA", "1")
    monkeypatch.setenv(f"ACTORSERVE_{name.upper()}", text)
    assert getattr(read(), name) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("MAX_NUM_SEQS", "many", "many is not a whole number"),
        ("MAX_NUM_SEQS", "0", "0 is out of range (at least 1, at most 4096)"),
        ("SHUTDOWN_TIMEOUT", "soon", "soon is not a number"),
        ("DEBUG", "perhaps", "perhaps is neither 1 nor 0"),
        ("DTYPE", "float8", "float8 is none of auto"),
        ("CUDAGRAPH_CAPTURE_SIZES", "1,x", "not a whole number"),
        ("CUDAGRAPH_CAPTURE_SIZES", "[1", "[1 is no list"),
        ("CONFIG", "/none.yaml", "/none.yaml cannot be read"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    monkeypatch.setenv(f"ACTORSERVE_{name}", text)
    with pytest.raises(ConfigError, match=f"^ACTORSERVE_{name}: .*{re.escape(words)}"):
        read()


def test_a_variable_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert read() == Config(deterministic=True)
    monkeypatch.setenv("ACTORSERVE_DETERMINISTIC", "0")
    assert read() == Config()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "maybe")
    with pytest.raises(ConfigError, match=r"^VLLM_BATCH_INVARIANT: maybe"):
        read()
    monkeypatch.delenv("VLLM_BATCH_INVARIANT")
    monkeypatch.setenv("VLLM_SKIP_MODEL_NAME_VALIDATION", "1")
    assert read() == Config(any_model_name=True)


def test_engines_elsewhere_are_named_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACTORSERVE_ENGINE_SECRET", "sixteen characters")
    expected = read("--engines", "a:1", "b:2").remote_engines
    (tmp_path / "options.yaml").write_text("engines: [a:1, b:2]")
    assert read("--config", str(tmp_path / "options.yaml")).remote_engines == expected == ["a:1", "b:2"]
    monkeypatch.setenv("ACTORSERVE_ENGINES", "a:1,b:2")
    assert read().remote_engines == expected
    monkeypatch.setenv("ACTORSERVE_REMOTE_ENGINES", "c:3")
    assert read().remote_engines == ["c:3"]


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "LLAMA_API_KEY", "LLAMA_ARG_API_KEY"])
def test_a_key_for_another_server_is_one_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, "theirs")
    assert read().api_key == ["theirs"]
    assert read("--admin-api-key", "admin").api_key == ["theirs"]
    assert read("--api-key", "ours").api_key == ["ours"]
    (tmp_path / "keys").write_text("of-file")
    assert read("--api-key-file", str(tmp_path / "keys")).api_key == ["of-file"]
    (tmp_path / "options.yaml").write_text("api-key: of-yaml")
    assert read("--config", str(tmp_path / "options.yaml")).api_key == ["of-yaml"]
    monkeypatch.setenv("ACTORSERVE_API_KEY", "ours")
    assert read().api_key == ["ours"]


def test_an_unknown_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ACTORSERVE_MAX_NUM_SEQ", "secret")
    monkeypatch.setenv("ACTORSERVE_QUITE_OTHER", "")
    assert read() == Config()
    warned = capsys.readouterr().err
    assert "ACTORSERVE_MAX_NUM_SEQ: there is no such option; did you mean ACTORSERVE_MAX_NUM_SEQS?" in warned
    assert "ACTORSERVE_QUITE_OTHER: there is no such option\n" in warned and "secret" not in warned


def test_what_kubernetes_tells_of_a_service_sets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a Service named actorserve, and of one named actorserve-http2."""
    told = {"PORT": "tcp://10.0.0.1:80", "PORT_80_TCP": "tcp://10.0.0.1:80", "PORT_80_TCP_PROTO": "tcp"}
    told |= {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80"}
    for name, text in told.items():
        monkeypatch.setenv(f"ACTORSERVE_{name}", text)
        monkeypatch.setenv(f"ACTORSERVE_HTTP2_{name}", text)
    assert read() == Config()
    assert capsys.readouterr().err == ""


def test_yaml_environment_command_line_in_this_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nfrontends: 1\nrenderers: 1\nserved_model_name: [a, b]\n")
    for name, text in (("FRONTENDS", "2"), ("RENDERERS", "2"), ("SERVED_MODEL_NAME", "c"), ("CONFIG", str(file))):
        monkeypatch.setenv(f"ACTORSERVE_{name}", text)
    config = read("--renderers", "3")
    assert (config.port, config.frontends, config.renderers, config.served_model_name) == (1, 2, 3, ["c"])
    (tmp_path / "other.yaml").write_text("port: 2\n")
    assert read("--config", str(tmp_path / "other.yaml")).port == 2


def test_the_nearest_name_is_told_for_yaml(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max_num_seq: 7\n")
    with pytest.raises(ConfigError, match=r"no such option; did you mean max_num_seqs\?"):
        read("--config", str(file))
