"""Each kind of `actorserve bench`, from the command line to its file, on the packaged model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import psutil
import pytest

from actorserve.actors.bench import processes
from actorserve.actors.bench import server as bench_server
from actorserve.actors.bench.startup import Start
from actorserve.actors.bench.sweep import Combination, shown
from actorserve.actors.bench.tune import combinations, split_options
from actorserve.actors.cli import main
from tests.support.server import QUEUE, Server
from tests.support.until import until
from tests.support.warm import Copy, server_environment, start_warm

from .fake import Fake

SMALL = ("--num-prompts", "4", "--input-len", "12", "--output-len", "4", "--disable-tqdm")
NUMBER = {"type": "number"}
SPREAD = {"type": ["object", "null"], "required": ["mean", "p50", "p90", "p99"], "additionalProperties": NUMBER}
METRICS = ("ttft", "tpot", "itl", "icl", "e2el")
RATES = ("request_throughput", "output_throughput", "total_throughput", "duration_s", "client_share")
RUN = {
    "type": "object",
    "required": ["completed", "failed", "errors", *RATES, "latency_ms"],
    "properties": {
        "latency_ms": {"type": "object", "required": [*METRICS], "additionalProperties": SPREAD},
        "errors": {"type": "object", "additionalProperties": {"type": "integer"}},
        **dict.fromkeys(RATES, NUMBER),
    },
}
POINT = {"type": "object", "required": ["name", "runs"], "properties": {"runs": {"type": "array", "items": RUN}}}
SCHEMA = {
    "type": "object",
    "required": ["schema", "kind", "date", "options", "points"],
    "properties": {"schema": {"const": "actorserve-bench/1"}, "points": {"type": "array", "items": POINT}},
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--worker", "scripted") as made:
        yield made


@pytest.fixture
def warm_servers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that a bench starts are copies of the process that `server` is a copy of, where that can be."""

    def begin(command: list[str], **options: Any) -> Copy | subprocess.Popen[bytes]:
        words = [*command[command.index("launch") :], *QUEUE]
        return start_warm("", words, os.getcwd(), server_environment()) or subprocess.Popen(command, **options)

    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "STDOUT", "TimeoutExpired")}
    monkeypatch.setattr(bench_server, "subprocess", SimpleNamespace(Popen=begin, **names))


def bench(kind: str, path: Path, *words: str, status: int = 0) -> dict[str, Any]:
    """Run one, and read what it wrote."""
    assert main(["bench", kind, *SMALL, "--result-filename", str(path), *words]) == status
    found: dict[str, Any] = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["kind"] == kind
    return found


def test_serve_sweeps_and_its_files_are_compared_and_plotted(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, drawn = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "out.svg"
    for path, repeat in ((a, "2"), (b, "2")):
        words = ("--base-url", server.base_url, "--request-rate", "50,inf", "--max-concurrency", "2")
        found = bench("serve", path, *words, "--repeat", repeat, "--goodput", "ttft:60000")
    assert [point["name"] for point in found["points"]] == ["rate 50, 2 at once", "rate inf, 2 at once"]
    for run in (run for point in found["points"] for run in point["runs"]):
        assert (run["completed"], run["failed"], run["output_tokens"], run["prompt_tokens"]) == (4, 0, 16, 48)
        assert run["token_counts"] == {"chunk": 4} and run["good"] == 4
        assert run["server_pid"] == server.pid and run["server_pss_bytes"] > 50e6
    assert found["prompts_counted_by"] == "/tokenize"
    assert main(["bench", "compare", str(a), str(b)]) == 0
    assert "rate 50, 2 at once (2 and 2 runs)" in capsys.readouterr().out
    pytest.importorskip("matplotlib")
    assert main(["bench", "plot", str(a), str(b), "-o", str(drawn)]) == 0
    assert "output tokens a second" in drawn.read_text() or drawn.stat().st_size > 5000


def test_chat(server: Server, tmp_path: Path) -> None:
    found = bench("serve", tmp_path / "a.json", "--base-url", server.base_url, "--backend", "openai-chat")
    assert found["points"][0]["runs"][0]["output_tokens"] == 16


def test_latency_repeats_a_batch(server: Server, tmp_path: Path) -> None:
    words = ("--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1", "--save-detailed")
    found = bench("latency", tmp_path / "a.json", "--base-url", server.base_url, *words)
    run = found["points"][0]["runs"][0]
    assert (run["completed"], len(run["detail"])) == (6, 6)
    assert run["batch_latency_ms"]["p50"] >= run["latency_ms"]["ttft"]["min"]


def test_throughput_sends_all_at_once(server: Server, tmp_path: Path) -> None:
    found = bench("throughput", tmp_path / "a.json", "--base-url", server.base_url + "/v1")
    assert found["points"][0]["name"] == "all at once"


@pytest.mark.usefixtures("warm_servers")
def test_tune_starts_its_servers_and_ends_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    words = ("--goodput", "ttft:60000", "--", "--max-num-seqs", "1,4", "--max-model-len", "64", "--worker", "scripted")
    found = bench("tune", tmp_path / "t.json", *words)
    assert [point["engine"] for point in found["points"]] == [["--max-num-seqs", "1"], ["--max-num-seqs", "4"]]
    assert "best: actorserve launch --max-model-len 64 --worker scripted --max-num-seqs " in capsys.readouterr().out
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before


def test_false_turns_off_what_is_on_by_default() -> None:
    on, off = "--enable-prefix-caching", "--no-enable-prefix-caching"
    assert list(combinations({on: ["true", "false"]})) == [[on], [off]]
    assert list(combinations({off: ["false"]})) == [[on]]
    assert Combination({"enable_prefix_caching": False, "max_num_seqs": 2}).words == [off, "--max-num-seqs", "2"]


def test_only_numbers_switches_and_choices_vary_by_commas() -> None:
    fixed = ["--kv-offload", "host:4Gi,folder:/x:1Gi", "--served-model-name=a,b", "--engines", "a:1,b:2"]
    fixed += ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 5}', "--debug", "--port", "0"]
    grid = ["-tp", "1,2", "--max-num-seqs=16,64", "--ctx-size", "1k,2k", "--dtype", "float32,bfloat16"]
    grid += ["--enable-prefix-caching", "true,false", "-np", "2,-1"]
    assert split_options([*grid[:2], *fixed, *grid[2:]]) == (
        fixed,
        {
            "-tp": ["1", "2"],
            "--max-num-seqs": ["16", "64"],
            "--ctx-size": ["1k", "2k"],
            "--dtype": ["float32", "bfloat16"],
            "--enable-prefix-caching": ["true", "false"],
            "-np": ["2", "-1"],
        },
    )


def test_a_sweep_goes_on_where_it_was(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each point is a file; what is there, and whole, is not measured again."""
    (tmp_path / "loads.yaml").write_text("max_concurrency: [1, 4]\nrandom_output_len: [3, 5]\n")
    folder = tmp_path / "found"
    words = ("--bench-params", str(tmp_path / "loads.yaml"), "--num-runs", "1", "-o", str(folder))

    def sweep(*more: str) -> dict[str, Any]:
        assert main(["bench", "sweep", *SMALL, "--base-url", server.base_url, *words, *more]) == 0
        found: dict[str, Any] = json.loads((folder / "sweep.json").read_text())
        jsonschema.validate(found, SCHEMA)
        return found

    first = sweep()
    assert [point["runs"][0]["output_tokens"] for point in first["points"]] == [12, 20, 12, 20]
    assert first["points"][1]["load"] == ["--max-concurrency", "1", "--random-output-len", "5"]
    files = sorted((folder / "points").glob("*.json"))
    assert len(files) == 4 and "4 of 4 loads" in capsys.readouterr().out
    files[0].write_text(files[0].read_text()[:100])  # as a death may leave it
    again = sweep()
    assert "1 of 4 loads" in capsys.readouterr().out
    assert sum(one == other for one in first["points"] for other in again["points"]) == 3
    assert sweep()["points"] == again["points"] and "measuring" not in capsys.readouterr().out
    assert not find_spec("matplotlib") or (folder / "pareto.svg").stat().st_size > 5000


def test_a_sweep_measures_again_what_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--num-runs", "1", "-o", str(tmp_path))
    with Fake() as fake:
        fake.refuse = lambda number, body: 503 if number == 4 else None
        assert main(["bench", "sweep", *SMALL, "--base-url", fake.base_url, *words]) == 1
        assert len(json.loads((tmp_path / "sweep.json").read_text())["points"]) == 1
        for measured in (True, False):
            assert main(["bench", "sweep", *SMALL, "--base-url", fake.base_url, *words]) == 0
            assert ("1 of 1 loads" in capsys.readouterr().out) == measured


def test_no_key_stands_in_a_file() -> None:
    words = ["--api-key", "a", "b", "--max-num-seqs", "4", "--admin_api_key=c", "--port", "1"]
    assert shown(words) == ["--max-num-seqs", "4", "--port", "1"]
    assert Combination({"api_key": "secret", "port": 1}).name == "--port 1"


@pytest.mark.usefixtures("warm_servers")
def test_a_sweep_starts_each_server_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "servers.json").write_text(json.dumps([{"max_num_seqs": 2}, {"no_such_option": True}]))
    words = ("--serve-params", str(tmp_path / "servers.json"), "--num-runs", "1", "-o", str(tmp_path / "found"))
    assert main(["bench", "sweep", *SMALL, *words, "--", "--worker", "scripted"]) == 1
    found = json.loads((tmp_path / "found" / "sweep.json").read_text())["points"]
    assert found[0]["engine"] == ["--max-num-seqs", "2"] and found[0]["runs"][0]["completed"] == 4
    assert "no such option" in found[1]["error"] and not found[1]["runs"]
    assert "not measured: --no-such-option" in capsys.readouterr().out


def test_a_bench_that_is_terminated_leaves_no_server(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "actorserve", "bench", "serve", "--num-prompts", "9999", "--request-rate", "1"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    until(lambda: process.poll() is not None or psutil.Process(process.pid).children())
    started = psutil.Process(process.pid).children()
    assert process.poll() is None and started
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not psutil.wait_procs(started, timeout=60)[1]


def test_failures_are_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Fake() as fake:
        fake.refuse = lambda number, body: 503 if number == 4 else None
        found = bench("serve", tmp_path / "a.json", "--base-url", fake.base_url, status=1)
    assert found["points"][0]["runs"][0]["errors"] == {"http 503": 1}
    assert "1 failed: http 503: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["serve", *SMALL, "--result-filename", "/dev/full"], "bench serve"),
        (["startup", "--num-iters-warm", "0", "--output-json", "/dev/full"], "cold"),
        (["mm", "--num-prompts", "1", "--image-sizes", "8x8", "--output-json", "/dev/full"], "8x8"),
    ],
)
def test_what_was_measured_is_shown_where_it_cannot_be_written(
    words: list[str], shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("actorserve.actors.bench.startup.start", lambda *_: Start(1.5, {}))
    monkeypatch.setattr("actorserve.actors.bench.mm.Client.ask", lambda *_: (1.0, 7))
    with Fake() as fake:
        address = [] if words[0] == "startup" else ["--base-url", fake.base_url]
        assert main(["bench", *words, *address]) == 1
    said = capsys.readouterr()
    assert shown in said.out
    assert said.err == "actorserve: error: /dev/full cannot be written: No space left on device\n"


def test_a_sweep_shows_what_it_cannot_write(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "points").touch()  # in the place of the folder
    words = ("--base-url", server.base_url, "--num-runs", "1", "-o", str(tmp_path))
    assert main(["bench", "sweep", *SMALL, *words]) == 1
    said = capsys.readouterr()
    assert "as it is (rate inf)" in said.out and "output tok/s" in said.out
    assert said.err.startswith("actorserve: error: ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve", "--goodput", "speed:3"], "--goodput speed:3"),
        (["serve", "--request-rate", "0"], "--request-rate"),
        (["serve", "--base-url", "http://127.0.0.1:9", "--", "--x"], "--x: --base-url"),
        (["tune", "--goodput", "ttft:9"], "nothing varies"),
        (["sweep", "--bench-params", "no.yaml"], "--bench-params no.yaml"),
        (["sweep", "--serve-params", sys.executable], f"--serve-params {sys.executable}"),
        (["tune", "--grid", sys.executable], f"--grid {sys.executable}"),
        (["sweep", "--base-url", "http://127.0.0.1:9", "--", "--x"], "--base-url names a server that runs"),
        (["sweep", "--num-runs", "0"], "--num-runs"),
        (["serve", "--burstiness", "0"], "--burstiness"),
        (["serve", "--num-prefixes", "0"], "--num-prefixes: at least 1"),
        (["serve", "--input-len", "-1"], "--random-input-len: at least 1"),
        (["serve", "--tokenizer", "/none"], "--tokenizer: there is no file /none/tokenizer.json"),
        (["serve", "--save-result", "--result-dir", "/dev/null/x"], "/dev/null/x/bench-serve.json cannot be written"),
        (["sweep", "--output-dir", "/dev/null/x"], "/dev/null/x/sweep.json cannot be written"),
        (["compare", "no.json", "no.json"], "no.json"),
    ],
)
def test_mistakes_are_said_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_cpu_of_children_that_have_ended_counts() -> None:
    own = os.getpid()
    before = processes.cpu_seconds(own)
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    after = processes.cpu_seconds(own)
    assert before is not None and after is not None and after - before >= 0.05
    assert processes.cpu_seconds(2**22 + 1) is None


def test_what_is_not_counted_has_prompts_of_its_own(tmp_path: Path) -> None:
    with Fake() as fake:
        bench("serve", tmp_path / "run.json", "--base-url", fake.base_url, "--num-warmups", "2")
    prompts = [body["prompt"] for body in fake.bodies]
    assert len(set(prompts[-4:])) == 4  # those that count: the trial and what warms up came before them
    assert len(prompts) == 7 and not set(prompts[:3]) & set(prompts[3:])


@pytest.mark.parametrize(
    ("kind", "words", "runs"),
    [
        ("serve", ("--request-rate", "900,inf", "--repeat", "2", "--num-warmups", "0"), 4),
        ("latency", ("--batch-size", "4", "--num-iters", "2", "--num-iters-warmup", "1", "--dataset", "fixed"), 3),
        ("throughput", ("--repeat", "2", "--num-warmups", "0"), 2),
    ],
)
def test_no_run_sends_what_another_has_sent(kind: str, words: tuple[str, ...], runs: int, tmp_path: Path) -> None:
    """A server with a prefix cache would have computed it."""
    with Fake() as fake:
        bench(kind, tmp_path / "run.json", "--base-url", fake.base_url, *words)
    of_run = [{body["prompt"] for body in fake.bodies[1:][4 * run :][:4]} for run in range(runs)]
    assert len(fake.bodies) == 1 + 4 * runs
    assert sum(map(len, of_run)) == len(set().union(*of_run)) and all(of_run)


def test_prompts_of_a_file_have_a_salt_for_each_run(tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").write_text('{"prompt": "one"}\n')
    words = ("--dataset", "file", "--dataset-path", str(tmp_path / "file.jsonl"), "--repeat", "2", "--output-len", "4")
    with Fake() as fake:
        bench("serve", tmp_path / "run.json", "--base-url", fake.base_url, *words)
    salts = [body["cache_salt"] for body in fake.bodies]
    assert len(salts) == 1 + 2 * (1 + 4) and len(set(salts)) == 5  # the trial, and in each run what warms up


def test_a_server_that_takes_no_salt_may_know_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file.jsonl").write_text('{"prompt": "one"}\n')
    words = ("--dataset", "file", "--dataset-path", str(tmp_path / "file.jsonl"), "--output-len", "4")
    with Fake() as fake:
        fake.refuse = lambda number, body: 400 if "cache_salt" in body else None
        bench("serve", tmp_path / "run.json", "--base-url", fake.base_url, *words)
        assert "rate inf: the server may have known the file's prompts" in capsys.readouterr().out
        bench("serve", tmp_path / "run.json", "--base-url", fake.base_url)
    assert "may have known" not in capsys.readouterr().out


def test_prompts_of_a_run_are_computed_by_a_server_that_keeps_prefixes(tmp_path: Path) -> None:
    with Server("--worker", "scripted", "--block-size", "8") as own:
        words = ("--base-url", own.base_url, "--input-len", "40", "--repeat", "2")
        found = bench("serve", tmp_path / "run.json", *words)
        again = bench("serve", tmp_path / "run.json", *words)
    assert [run["cached_share"] for one in (found, again) for run in one["points"][0]["runs"]] == [0, 0, 0, 0]


def test_a_server_that_has_a_key_of_the_environment_lets_its_bench_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTORSERVE_API_KEY", "of-environment")
    monkeypatch.setenv("OPENAI_API_KEY", "of-others")
    found = bench("throughput", tmp_path / "run.json", "--", "--worker", "scripted")
    assert found["points"][0]["runs"][0]["completed"] == 4
