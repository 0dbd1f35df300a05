"""`actorserve check`: what it says is what `launch` does, and what it refuses `launch` refuses with the same words."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.cli import main
from actorserve.actors.commands.check import size
from actorserve.actors.commands.check_report import Checkup, check_all
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import Config, make_config
from tests.support.models.census import write_tiny
from tests.support.models.checkpoints import checkpoint
from tests.support.server import Server
from tests.support.warm import run_command

SMALL: dict[str, object] = {"device": "cpu", "max_num_seqs": 2, "max_num_queued_reqs": 2, "max_model_len": 128}
OPTIONS = ("--device", "cpu", "--max-num-seqs", "2", "--max-num-queued-reqs", "2", "--max-model-len", "128")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command("check", *OPTIONS, *arguments)


def examine(**options: object) -> Checkup:
    checkup = Checkup(make_config(SMALL | options))
    checkup.run()
    return checkup


def test_further_models_are_looked_at_too(folder: Path) -> None:
    alone = examine()
    (first, second, missing), unserved = check_all(
        make_config(SMALL | {"also": [f"{folder},max-num-seqs=4", "/nothing"]})
    )
    assert not unserved
    assert not first.problems and not second.problems and "no folder" in missing.problems[0]
    (both, other), _ = check_all(make_config(SMALL | {"also": [f"{folder},max-num-seqs=4"]}))
    slots = alone.facts["sharing"]["slots"]
    assert both.facts["sharing"]["slots"] == slots + 4 and "sharing" not in other.facts
    assert other.facts["room"]["sequences"] == 4 and other.facts["model"]["folder"] == str(folder)


def test_a_folders_bad_model_is_left_out_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As launch does; where none can be served that is a problem."""
    (tmp_path / "0-bad.gguf").write_bytes(b"GGUF")
    assert main(["check", *OPTIONS, "--models-dir", str(tmp_path)]) == 2
    assert "cannot be served: " in capsys.readouterr().out
    for name in ("a", "b"):
        (tmp_path / name).symlink_to(DEMO_FOLDER)
    assert main(["check", *OPTIONS, "--models-dir", str(tmp_path)]) == 0
    *_, left_out, last = capsys.readouterr().out.splitlines()
    assert last == "can be served" and left_out.startswith("left out  | 0-bad: ") and "cut off" in left_out
    assert main(["check", *OPTIONS, "--models-dir", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] and list(told["unserved"]) == ["0-bad"] and len(told["also"]) == 1
    assert told["sharing"]["slots"] and "sharing" not in told["also"][0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the packaged model, to be damaged."""
    copy = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER, copy)
    return copy


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_what_it_says_is_what_a_server_has() -> None:
    done = check("--json")
    assert done.returncode == 0 and done.stderr == ""
    told = json.loads(done.stdout)
    assert told["ok"] and told["problems"] == []
    with Server(*OPTIONS) as server:
        assert f"{told['room']['tokens']} tokens of KV memory" in server.output
        assert f"{told['model']['architecture']} in {told['computing']['dtype']} loaded" in server.output
        assert f"threads: {told['computing']['threads']}" in server.output


def test_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *OPTIONS]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[-1] == "can be served"
    for words in ("LlamaForCausalLM, context of 128 tokens, stored: 6.6 MiB in F16", "2,048 words", "hermes", "2 seq"):
        assert words in told
    assert main(["check", *OPTIONS, "--kv-cache-memory-bytes", "1k"]) == 2
    refused = capsys.readouterr().out
    assert "cannot be served: --kv-cache-memory-bytes: 1,000 bytes of KV memory are less than one block" in refused


def test_the_facts_of_the_packaged_model() -> None:
    facts = examine().facts
    weights = json.loads((DEMO_FOLDER / "config.json").read_text())
    computing = facts["computing"]
    assert facts["model"]["stored_bytes"] == {"F16": computing["parameters"] * 2}
    assert computing["weights_bytes"] == computing["parameters"] * 4
    per_token = weights["num_hidden_layers"] * 2 * weights["num_key_value_heads"] * weights["head_dim"] * 4
    assert computing["kv_bytes_per_token"] == per_token
    assert facts["room"] == {"tokens": 256, "sequences": 2, "longest_sequences": 2, "waiting": 2}
    assert facts["chat"] == {"templates": ["default"], "tool_parser": "hermes", "reasoning_parser": None}


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_a_model_of_long_texts(load_format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Fused weights are counted; which factors rotate all texts follows from --max-model-len, and is said."""
    folder = checkpoint("phi3_short", tmp_path)
    options: dict[str, object] = {"model": str(folder), "load_format": load_format, "quantization": "int8"}
    short = examine(**options, max_model_len=1024)
    assert short.problems == [] and short.facts["model"]["architecture"] == "Phi3ForCausalLM"
    assert short.facts["computing"]["parameters"] == 384 * 64 + 64 + 3 * (64 * (128 + 64 + 192 + 96) + 2 * 64)
    assert "longrope" not in caplog.text
    assert examine(**options, max_model_len=1025).problems == []
    assert "longrope: --max-model-len 1025 is more than 1024, so all texts are rotated by long_factor" in caplog.text


def test_a_scripted_worker_has_room_for_all() -> None:
    checkup = examine(worker="scripted")
    assert checkup.problems == [] and checkup.facts["room"]["tokens"] == 256


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"kv_cache_dtype": "nvfp4", "load_format": "dummy", "hf_overrides": '{"head_dim": 24}'},
            "--kv-cache-dtype nvfp4: its heads are 24 numbers wide, and 16 are kept together; int8 takes any width",
        ),
        ({"quantization": "int8", "dtype": "bfloat16"}, "--quantization int8: "),
        ({"tensor_parallel_size": 3}, "--tensor-parallel-size: "),
        ({"pipeline_parallel_size": 5}, "--pipeline-parallel-size: the model has 4 layers"),
        ({"speculative_config": '{"model": "/none", "num_speculative_tokens": 2}'}, "--speculative-config: "),
    ],
)
def test_options_that_do_not_go_with_the_model_or_the_device(options: dict[str, object], words: str) -> None:
    (problem,) = examine(**options).problems
    assert problem.startswith(words)


def test_drafts_for_a_model_with_states(tmp_path: Path) -> None:
    """What the worker would refuse when it has loaded the model."""
    write_tiny("mamba2", tmp_path / "mamba2")
    draft = '{"method": "ngram", "num_speculative_tokens": 2}'
    (problem,) = examine(model=str(tmp_path / "mamba2"), threads=1, speculative_config=draft).problems
    assert problem.startswith("--speculative-config: the model keeps states of its sequences")


def test_blocks_that_are_not_offloaded_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where windows let go of what they do not see, and where states are kept: as the worker's log does."""
    options: dict[str, object] = {"block_size": 8, "max_num_batched_tokens": 16, "threads": 1}
    assert examine(**options, kv_offload="host:64Mi").problems == []
    assert "--kv-offload" not in caplog.text
    windowed = str(checkpoint("qwen2_windows", tmp_path, sliding_window=40))
    for given in ({}, {"kv_offload": "host:64Mi"}):
        assert examine(**options, model=windowed, max_model_len=512, **given).problems == []
        words = "--kv-offload: it has no effect with block tables that let go of what windows do not see"
        assert (words in caplog.text) == bool(given)
    write_tiny("mamba2", tmp_path / "mamba2")
    assert examine(model=str(tmp_path / "mamba2"), threads=1, kv_offload="host:64Mi").problems == []
    assert "--kv-offload: it has no effect with a model that keeps states of its sequences" in caplog.text


def test_options_count() -> None:
    facts = examine(dtype="bfloat16", tool_call_parser="none", reasoning_parser="qwen3", block_size=64).facts
    assert facts["computing"]["weights_bytes"] == facts["computing"]["parameters"] * 2
    assert (facts["chat"]["tool_parser"], facts["chat"]["reasoning_parser"]) == (None, "qwen3")
    assert examine(tensor_parallel_size=2).facts["computing"]["kv_bytes_per_token"] == 2048
    stages = examine(pipeline_parallel_size=2).facts["computing"]
    assert stages["workers"] == 2 and stages["kv_bytes_per_token"] == 4096
    whole, quarter = examine().facts["computing"], examine(quantization="int8").facts["computing"]
    assert whole["weights_bytes"] / 2 < stages["weights_bytes"] < whole["weights_bytes"] * 0.7
    assert whole["weights_bytes"] / 4 < quarter["weights_bytes"] < whole["weights_bytes"] * 0.6
    assert "stored_bytes" not in examine(load_format="dummy").facts["model"]


def test_tools_that_no_parser_reads_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "chat_template.jinja").write_text("{{ tools }}{{ messages }}")
    assert "--tool-call-parser" in examine(model=str(folder)).facts["chat"]["doubt"]
    assert main(["check", str(folder), *OPTIONS]) == 0
    assert "no form that is known: they are read as hermes" in capsys.readouterr().out


def test_a_model_without_chat_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    rewrite(folder / "tokenizer_config.json", lambda values: values.pop("chat_template", None))
    checkup = examine(model=str(folder))
    assert checkup.problems == [] and checkup.facts["chat"]["templates"] == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "ends inside its header"),
        (lambda f: (f / "tokenizer.json").unlink(), "--tokenizer: .* has none of tokenizer.json"),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / "chat_template.jinja").write_text("{% if %}"), "/chat_template.jinja: line 1: "),
        (lambda f: rewrite(f / "config.json", lambda v: v.update(architectures=["GptOss"])), "GptOss"),
        (lambda f: rewrite(f / "config.json", lambda v: v.update(intermediate_size=64)), "do not fit its config.json"),
    ],
)
def test_a_damaged_model(folder: Path, damage: Callable[[Path], object], words: str) -> None:
    damage(folder)
    problems = examine(model=str(folder)).problems
    assert any(re.search(words, problem) for problem in problems), problems


def test_everything_that_is_wrong_is_told_at_once(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "chat_template.jinja").write_text("{% if %}")
    checkup = examine(model=str(folder), kv_cache_memory_bytes=1, max_num_queued_reqs=10**9)
    topics = [problem.split(":")[0] for problem in checkup.problems]
    assert topics == ["--tokenizer", "model", "--kv-cache-memory-bytes", "lanes and request table"]
    assert checkup.facts["model"]["architecture"] == "LlamaForCausalLM"


def test_launch_refuses_with_the_same_words() -> None:
    (problem,) = examine(kv_cache_memory_bytes=4096).problems
    with Server(*OPTIONS, "--kv-cache-memory-bytes", "4096", wait=False) as server:
        assert server.wait() == 2
        assert problem in server.read_all()


def test_a_mistake_in_the_options_is_one_as_for_launch() -> None:
    done = check("--block-size", "12")
    assert done.returncode == 2 and "--block-size" in done.stderr and done.stdout == ""


def test_no_such_model(tmp_path: Path) -> None:
    checkup = Checkup(Config(model=str(tmp_path / "none")))
    checkup.run()
    assert checkup.problems == [f"model: there is no folder {tmp_path / 'none'}"] and checkup.facts == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (1 << 50, "1024.0 TiB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text
