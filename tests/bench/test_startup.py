"""`actorserve bench startup`: which starts share their caches, and what is told of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorserve.actors.bench.startup import Start, measure, median_of, phases_of
from actorserve.actors.cli import main


def test_cold_starts_have_empty_caches_and_warm_ones_those_that_were_filled() -> None:
    found: list[tuple[Path, list[str]]] = []

    def begin(caches: Path) -> Start:
        found.append((caches, sorted(path.name for path in caches.iterdir())))
        (caches / str(len(found))).touch()
        return Start(float(len(found)), {})

    starts = measure(begin, cold=2, warmup=1, warm=2)
    assert [names for _, names in found] == [[], [], [], ["3"], ["3", "4"]]
    assert len({folder for folder, _ in found}) == 3 and not any(folder.exists() for folder, _ in found)
    times = {kind: [one.ready_s for one in those] for kind, those in starts.items()}
    assert times == {"cold": [1, 2], "warm": [4, 5]}
    assert measure(begin, cold=0, warmup=0, warm=1).keys() == {"warm"}


def test_phases_are_those_of_the_metrics() -> None:
    text = 'actorserve:startup_seconds{actor="worker",phase="weights"} 0.25\nother{actor="a",phase="b"} 1\n'
    assert phases_of(text) == {"worker: weights": 0.25}
    assert median_of([Start(1, {"a": 3}), Start(1, {"a": 1}), Start(1, {})], "a") == 1


def test_a_server_is_started_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "startup.json"
    words = ("--num-iters-cold", "1", "--num-iters-warm", "0", "--output-json", str(path))
    assert main(["bench", "startup", *words, "--", "--worker", "scripted"]) == 0
    told = json.loads(path.read_text())
    assert told["schema"] == "actorserve-bench-startup/1" and "warm" not in told
    (phases,) = told["cold"]["phases_s"]
    assert any(name.startswith("supervisor: ") for name in phases)
    assert told["cold"]["ready_s"][0] >= max(phases.values()) > 0
    shown = capsys.readouterr().out
    assert "seconds to ready" in shown and all(name in shown for name in phases)


def test_what_cannot_be_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    none = ("--num-iters-cold", "0", "--num-iters-warm", "0")
    for words, name in ((none, "--num-iters-cold"), (("--num-iters-warm", "-1"), "--num-iters-warm")):
        assert main(["bench", "startup", *words]) == 2
        assert name in capsys.readouterr().err
    assert main(["bench", "startup", "--num-iters-cold", "1", "--model", "/nowhere/at/all"]) == 1
    assert "at its start" in capsys.readouterr().err
