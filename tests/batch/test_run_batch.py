"""`actorserve run-batch`, from the command line to its file, with deaths of the run, the server and its actors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from actorserve.actors.batch import files
from actorserve.actors.cli import main
from tests.bench.fake import Fake
from tests.support.server import Server
from tests.support.warm import Copy, start_command

DEADLINE_S = 120.0
Command = Copy | subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--worker", "scripted", "--frontends", "2") as made:
        yield made


def write(path: Path, count: int, tokens: int = 4) -> Path:
    """Chats and completions in turns, and a model that is not there at the end."""
    with path.open("w") as file:
        for number in range(count):
            text = f"request {number}"
            body: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
            chat = number % 2 == 0
            body |= {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
            if number == count - 1:
                body["model"] = "nobody"
            url = "/v1/chat/completions" if chat else "/v1/completions"
            file.write(json.dumps({"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}) + "\n")
    return path


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Of each request its answer; there is one alone."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


def check(path: Path, count: int) -> None:
    """Each request has its answer, and the last one the server's refusal."""
    found = read(path)
    assert set(found) == {f"r{number}" for number in range(count)}
    for number in range(count - 1):
        answer = found[f"r{number}"]
        assert answer["error"] is None
        assert answer["response"]["status_code"] == 200
        assert answer["response"]["body"]["usage"]["completion_tokens"] == 4
    assert found[f"r{count - 1}"]["response"]["status_code"] == 404


def command(source: Path, target: Path, *words: str) -> Command:
    return start_command("run-batch", "-i", str(source), "-o", str(target), *words)


def end(process: Command) -> tuple[int, str]:
    """Its status, and what it has said."""
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read().decode()
    return process.wait(DEADLINE_S), said


def wait_for_lines(path: Path, count: int, process: Command) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_each_line_has_its_answer(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in", 40), tmp_path / "out"
    words = ["run-batch", "-i", str(source), "-o", str(target), "--base-url", server.base_url + "/v1"]
    assert main(words) == 0
    check(target, 40)
    assert f"40 requests are answered in {target}, 1 of them with an error" in capfd.readouterr().err
    before = target.read_bytes()
    assert main(words) == 0  # there is nothing left
    assert target.read_bytes() == before
    assert "(40 by an earlier run), 1 of them with an error" in capfd.readouterr().err


def test_one_line_is_one_request(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in", 1), tmp_path / "out"
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--base-url", server.base_url + "/v1"]) == 0
    assert f"1 request is answered in {target}, with an error" in capfd.readouterr().err


def test_a_run_that_was_killed_goes_on(server: Server, tmp_path: Path) -> None:
    source, target = write(tmp_path / "in", 300), tmp_path / "out"
    words = ("--base-url", server.base_url, "--batch-concurrency", "4")
    for done in (20, 120):
        process = command(source, target, *words)
        wait_for_lines(target, done, process)
        process.kill()
        end(process)
        assert len(read(target)) >= done  # a torn line would be no JSON, and is cut off by the next run
    status, said = end(command(source, target, *words))
    assert status == 0, said
    check(target, 300)


def test_a_server_and_its_actors_may_be_killed(tmp_path: Path) -> None:
    """The run has started the server, so it starts another one when all of it has gone."""
    source, target = write(tmp_path / "in", 400), tmp_path / "out"
    process = command(source, target, "--worker", "scripted", "--batch-concurrency", "8")
    victims = ("actorserve: worker", "actorserve: scheduler", "actorserve: frontend", "supervisor")
    for number, victim in enumerate(victims, 1):
        wait_for_lines(target, 60 * number, process)
        supervisor = psutil.Process(process.pid).children()[0]
        if victim == "supervisor":
            supervisor.kill()
        else:
            found = [one for one in supervisor.children(recursive=True) if victim in " ".join(one.cmdline())]
            assert found, [one.cmdline() for one in supervisor.children(recursive=True)]
            found[0].kill()
    status, said = end(process)
    assert status == 0, said
    check(target, 400)


def test_ctrl_c_says_how_to_go_on(server: Server, tmp_path: Path) -> None:
    source, target = write(tmp_path / "in", 3000), tmp_path / "out"
    process = command(source, target, "--base-url", server.base_url, "--batch-concurrency", "2")
    wait_for_lines(target, 5, process)
    process.send_signal(signal.SIGINT)
    status, said = end(process)
    assert status == 130
    assert f"{len(read(target))} of 3000 have an answer; the same command goes on" in said
    assert "Traceback" not in said


def test_what_is_busy_is_asked_again(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    body = {"model": "m", "prompt": "x", "max_tokens": 2, "stream_options": {}}
    source.write_text(json.dumps({"custom_id": "a", "url": "/v1/completions", "body": body}))
    with Fake() as fake:
        fake.refuse = lambda number, body: (503, 429, None)[min(number, 2)]
        assert main(["run-batch", "-i", str(source), "-o", str(target), "--base-url", fake.base_url]) == 0
        assert len(fake.bodies) >= 2
    assert read(target)["a"]["response"]["status_code"] == 200


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_does_not_let_in_answers_nothing(
    status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the right key the same command sends all of it."""
    source, target = write(tmp_path / "in", 3), tmp_path / "out"
    with Fake() as fake:
        fake.refuse = lambda number, body: status
        assert main(["run-batch", "-i", str(source), "-o", str(target), "--base-url", fake.base_url]) == 1
    said = capfd.readouterr().err
    assert f"{fake.base_url} answers r" in said and f"with {status} without a key" in said and "not now" in said
    assert "0 of 3 have an answer; the same command goes on" in said
    assert not target.read_bytes()


def test_the_key_of_a_server_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    source, target = tmp_path / "in", tmp_path / "out"
    body = {"model": "m", "prompt": "x", "max_tokens": 2, "stream_options": {}}
    source.write_text(json.dumps({"custom_id": "a", "url": "/v1/completions", "body": body}))
    with Fake() as fake:
        fake.wants = ("Bearer right", 401)
        words = ["run-batch", "-i", str(source), "-o", str(target), "--base-url", fake.base_url]
        assert main(words) == 1
        assert main([*words, "--api-key", "right"]) == 0
    assert read(target)["a"]["response"]["status_code"] == 200


def test_a_server_that_is_not_there_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, target = write(tmp_path / "in", 2), tmp_path / "out"
    words = ["run-batch", "-i", str(source), "-o", str(target), "--base-url", "http://127.0.0.1:9"]
    assert main([*words, "--ready-timeout", "0"]) == 1
    said = capfd.readouterr().err
    assert "http://127.0.0.1:9 was not ready within 0 s" in said
    assert "0 of 2 have an answer" in said


def test_a_pipe_is_no_input(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is read twice: the second time nothing was there, and all of it counted as answered."""
    lines = write(tmp_path / "in", 2).read_bytes()
    reading, writing = os.pipe()
    with open(reading), open(writing, "wb") as pipe:
        pipe.write(lines)
        pipe.flush()
        words = ["run-batch", "-i", f"/dev/fd/{reading}", "-o", str(tmp_path / "out")]
        assert main([*words, "--base-url", "http://127.0.0.1:9"]) == 2
    assert f"--input-file: /dev/fd/{reading} is no file that can be read twice" in capfd.readouterr().err


def test_an_input_that_changes_is_not_all_answered(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = write(tmp_path / "in", 3), tmp_path / "out"
    find = files.names

    def find_and_cut(path: Path) -> set[str]:
        found = find(path)
        write(path, 1)
        return found

    monkeypatch.setattr(files, "names", find_and_cut)
    with Fake() as fake:
        fake.refuse = lambda number, body: 404  # which is an answer: it is not tried again
        assert main(["run-batch", "-i", str(source), "-o", str(target), "--base-url", fake.base_url]) == 1
    said = capfd.readouterr().err
    assert f"--input-file: {source} has changed since the run began" in said and "1 of 3 have an answer" in said


def test_options_that_contradict_each_other_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["run-batch", "-i", str(write(tmp_path / "in", 1)), "-o", str(tmp_path / "out")]
    assert main([*words, "--base-url", "http://x", "--max-num-seqs", "4"]) == 2
    assert main([*words, "--batch-concurrency", "0"]) == 2
    given = next(Path(word) for word in words if Path(word).is_file())
    before = given.read_bytes()
    assert main(["run-batch", "-i", str(given), "-o", str(given), "--base-url", "http://127.0.0.1:9"]) == 2
    assert given.read_bytes() == before
    said = capfd.readouterr().err
    assert "--base-url names a server that runs" in said
    assert "--batch-concurrency must be at least 1" in said
