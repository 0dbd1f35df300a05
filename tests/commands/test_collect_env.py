"""`actorserve collect-env`."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest

from actorserve.actors.cli import main
from actorserve.actors.commands import collect_env


def test_what_a_report_needs_is_there_and_no_key(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTORSERVE_API_KEY", "of-nobody")
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:word@proxy")
    monkeypatch.setenv("ACTORSERVE_MAX_NUM_SEQS", "16")
    assert main(["collect-env", "--json"]) == 0
    said = capfd.readouterr().out
    found = json.loads(said)
    assert found["versions"]["torch"] == importlib.metadata.version("torch")
    assert "cores that may be used" in found["processor"]
    assert found["limits"]["open files"].count(" of ") == 1
    variables = found["variables"]
    assert variables["ACTORSERVE_MAX_NUM_SEQS"] == "16"
    assert {variables[name] for name in ("ACTORSERVE_API_KEY", "HF_TOKEN", "HTTPS_PROXY")} == {"(set)"}
    assert not any(secret in said for secret in ("of-nobody", "hf_nobody", "word@"))
    assert main(["collect-env"]) == 0
    text = capfd.readouterr().out
    assert f"  torch: {found['versions']['torch']}" in text
    assert all(f"{topic}:" in text for topic in found)


def test_what_is_hidden_is_no_more_and_no_less(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    open_ones = {"ACTORSERVE_MAX_NUM_BATCHED_TOKENS": "512", "ACTORSERVE_TOKENIZER": "a/b", "ACTORSERVE_KEY_FILE": "/k"}
    secrets = {"ACTORSERVE_APIKEY": "s3cret", "ACTORSERVE_ENGINE_SECRET": "s3cret", "HTTP_PROXY": "user:s3cret@proxy"}
    monkeypatch.setenv("ACTORSERVE_OTLP_TRACES_ENDPOINT", "https://user:s3c/ret@host/v1?a=b")
    for name, value in (open_ones | secrets).items():
        monkeypatch.setenv(name, value)
    assert main(["collect-env", "--json"]) == 0
    said = capfd.readouterr().out
    variables = json.loads(said)["variables"]
    assert "s3c" not in said and {variables[name] for name in secrets} == {"(set)"}
    assert {name: variables[name] for name in open_ones} == open_ones
    assert variables["ACTORSERVE_OTLP_TRACES_ENDPOINT"] == "https://…@host/v1?a=b"


def test_programs_that_are_missing_or_fail_are_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "/bin/false")
    assert main(["collect-env", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["system"]["compiler"] == "none"
    assert found["GPUs"] == {"nvidia-smi": "nothing"}


def test_a_machine_without_shared_memory(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Which is why no server starts there, and what a report is for."""
    monkeypatch.setattr(collect_env, "SHARED_MEMORY", tmp_path / "shm")
    assert main(["collect-env"]) == 0
    assert f"  {tmp_path}/shm: No such file or directory\n" in capfd.readouterr().out
