"""The commands that measure run: on so little that it takes a moment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm import run_module, run_program

TOOLS = Path(__file__).resolve().parents[2] / "tools"
LITTLE = {"bench/worker": ["--batch", "1", "2", "--context", "16", "--steps", "2", "--threads", "1"]}
LOADED = ["--format", "none", "gptq", "--layers", "1", "--words", "512"]
ASKED = sorted(
    str(tool.relative_to(TOOLS))
    for folder in ("bench", "chaos")
    for tool in (TOOLS / folder).iterdir()
    if tool.is_file() and os.access(tool, os.X_OK)
)


@pytest.fixture(scope="module")
def all_help() -> dict[str, tuple[int, str]]:
    """Status and output of each tool's --help."""
    done = run_module("tests.support.runs.tools_help", *(str(TOOLS / name) for name in ASKED))
    assert done.returncode == 0, done.stderr
    found: dict[str, tuple[int, str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", ASKED)
def test_they_say_how_they_are_used(name: str, all_help: dict[str, tuple[int, str]]) -> None:
    status, said = all_help[str(TOOLS / name)]
    assert status == 0 and "usage:" in said, said


@pytest.mark.parametrize("name", LITTLE)
def test_they_measure(name: str) -> None:
    shown = run_program(TOOLS / name, *LITTLE[name])
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert len(rows) == 2 and all(float(row.split()[2]) > 0 for row in rows)


@pytest.mark.slow
def test_families_are_measured_in_both_ways() -> None:
    command: list[str | Path] = [sys.executable, TOOLS / "bench/families", "deepseek_v2", "gpt_oss"]
    options = ["--batch", "1", "2", "--context", "16", "--steps", "2", "--rounds", "1"]
    shown = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0].split("|")[2].strip() == "1 × 16" and [row.split()[1] for row in shown[2:]] == [
        "deepseek_v2",
        "gpt_oss",
    ]
    assert all(row.count(" %)") == 3 for row in shown[2:])


def test_launches_of_a_step_on_a_gpu() -> None:
    """Counted without one: no more than ten a layer, and eight where products do more; and what is compiled late."""
    done = run_program(TOOLS / "bench" / "gpu_host", "--layers", "1", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    counts = [int(line.split(":")[1].split()[0]) for line in shown.splitlines() if "launches a layer" in line]
    assert len(counts) == 5 and max(counts) <= 10 and max(counts[3:]) <= 8
    assert shown.count("by graphs") == 6, "decoding and steps with prompts"
    assert shown.splitlines()[-1] == "kernels compiled while these steps ran: 0"


@pytest.mark.slow
def test_what_loading_takes_is_measured() -> None:
    command: list[str | Path] = [sys.executable, TOOLS / "bench/loading", *LOADED]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = {line.split()[0]: [int(word) for word in line.split()[1:]] for line in shown[1:]}
    assert list(rows) == ["none", "gptq"] and all(0 < held <= peak for _, held, peak, _ in rows.values())


@pytest.mark.slow
def test_weights_of_8_bits_take_what_they_should() -> None:
    """In Qwen3-0.6B's shape 1.1 times their bytes at most, and a tensor and 300 MB more on the way."""
    command: list[str | Path] = [sys.executable, TOOLS / "bench/loading", "--format", "none", "gptq"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for _, weights, held, peak, largest in (line.split() for line in shown[1:]):
        assert int(held) <= 1.1 * int(weights) and int(peak) <= int(weights) + int(largest) + 300
