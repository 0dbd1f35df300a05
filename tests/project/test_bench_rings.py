"""tools/bench/rings measures all that it names, and notices each target that is missed. It times nothing here."""

from __future__ import annotations

import copy
import importlib.util
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import msgspec
import pytest

BENCH = Path(__file__).resolve().parents[2] / "tools" / "bench" / "rings"
CHANNELS = ["rings", "pyzmq", "mp.Queue"]


@pytest.fixture(scope="module")
def bench() -> Any:
    loader = SourceFileLoader("rings", str(BENCH))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})


def figures_of(bench: Any, ours: float = 1.0) -> dict[str, dict[str, float]]:
    """Figures that meet every target, where the others take 100 times what ours do."""
    compared = {name: ours if name == "rings" else 100.0 for name in CHANNELS}
    return {**{row: dict(compared) for row in bench.COMPARED}, bench.APPEND: {"rings": 30.0}}


def test_quick_prints_every_row(bench: Any) -> None:
    done = run("--quick")
    head, *lines = done.stdout.splitlines()
    assert head.split()[1:4] == CHANNELS
    rows = {line[:50].strip(): [float(value) for value in line[50:].split()] for line in lines}
    assert [*rows] == [*bench.COMPARED, *bench.ALONE]
    for row, values in rows.items():
        assert min(values) > 0, row
        assert len(values) == (5 if row in bench.COMPARED else 1)
    for ours, pyzmq, queue, by_pyzmq, by_queue in (rows[row] for row in bench.COMPARED):
        assert by_pyzmq == pytest.approx(ours / pyzmq, rel=0.1, abs=0.002)
        assert by_queue == pytest.approx(ours / queue, rel=0.1, abs=0.002)
    assert done.returncode == bool(done.stderr)  # on a busy machine a target may be missed, which it then says
    assert not done.stderr or (done.stderr.startswith("missed: ") and done.stderr.count("\n") == 1)


def test_nothing_is_said_of_targets_that_are_met(bench: Any) -> None:
    assert bench.missed(figures_of(bench)) == []


def test_each_missed_target_is_named(bench: Any) -> None:
    wanted = {
        (bench.CPU, "pyzmq"): 1 / 3,
        (bench.CPU, "mp.Queue"): 1 / 20,
        (bench.P50, "pyzmq"): 1 / 3,
        (bench.P50, "mp.Queue"): 1 / 3,
    }
    for (row, other), ratio in wanted.items():
        figures = figures_of(bench)
        figures[row][other] = 1.001 / ratio
        assert bench.missed(figures) == []
        figures[row][other] = 0.98 / ratio
        [said] = bench.missed(figures)
        assert row in said and other in said
    figures = copy.deepcopy(figures_of(bench))
    figures[bench.APPEND]["rings"] = 30.5
    [said] = bench.missed(figures)
    assert "30.5" in said


def test_it_exits_with_1_and_the_sentence_for_a_missed_target(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["rings"])
    monkeypatch.setattr(bench.Rounds, "play", lambda *arguments: None)
    monkeypatch.setattr(bench.Rounds, "figures", lambda self: figures_of(bench))
    bench.main()
    monkeypatch.setattr(bench.Rounds, "figures", lambda self: figures_of(bench, ours=34.0))
    with pytest.raises(SystemExit, match=r"^missed: .*round trip p50: 0.340 of pyzmq's"):
        bench.main()


def test_cpu_is_the_best_round_and_latencies_are_quantiles(bench: Any) -> None:
    rounds = bench.Rounds()
    for name in CHANNELS:
        rounds.cpu[name] = [3e-6, 2e-6, 5e-6]
        rounds.trips[name] = [number * 1e-6 for number in range(1, 999)] + [1.0]
    rounds.appends = [(1e-6, 2e-6), (3e-6, 4e-6), (8e-6, 9e-6)]
    figures = rounds.figures()
    assert figures[bench.CPU]["pyzmq"] == pytest.approx(2)
    assert figures[bench.P50]["pyzmq"] == pytest.approx(500)
    assert figures[bench.P99]["pyzmq"] == pytest.approx(990)
    assert [figures[row]["rings"] for row in bench.ALONE] == pytest.approx([3, 4])


def test_the_message_has_64_bytes(bench: Any) -> None:
    assert len(msgspec.msgpack.encode(bench.MESSAGE)) == 64


def test_without_pyzmq_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "zmq.py").write_text("raise ModuleNotFoundError('zmq')\n")
    done = run("--quick", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "test extras" in done.stderr and "Traceback" not in done.stderr
