"""Models that transformers computes, behind HTTP: every actor is killed (-9) under load, no answer is another."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import http_client
from tests.support.models.census import write_tiny
from tests.support.server import Server

OPTIONS = ("--threads", "1", "--device", "cpu", "--max-model-len", "256", "--max-num-seqs", "6", "--model-impl")
REQUESTS, CLIENTS = 24, 8
PATIENCE_S = 300.0  # some of them compute a row at a time, and each life of a worker tries the model anew
KILLS = {
    3: "worker",
    6: "scheduler",
    9: "renderer-0",
    12: "detokenizer-0",
    15: "frontend-0",
    18: "worker",
}  # by answers


def body(number: int) -> dict[str, Any]:
    """Of different lengths, so that some end while others run."""
    prompt = [3 + (7 * number + 11 * at) % 370 for at in range(5 + 7 * (number % 6))]
    return {"prompt": prompt, "max_tokens": 20 + 9 * (number % 8), "temperature": 0, "ignore_eos": True}


def ask_all(server: Server, kills: dict[int, str] | None = None) -> list[str]:
    """The answers; an actor is killed each time that so many are there."""
    done, left = threading.Condition(), [0]

    def ask(number: int) -> str:
        with http_client(server, PATIENCE_S) as client:
            answer = client.post("/v1/completions", json=body(number))
        assert answer.status_code == 200, answer.text
        with done:
            left[0] += 1
            done.notify_all()
        return str(answer.json()["choices"][0]["text"])

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = [clients.submit(ask, number) for number in range(REQUESTS)]
        for count, name in (kills or {}).items():
            with done:
                assert done.wait_for(lambda count=count: left[0] >= count, PATIENCE_S)  # type: ignore[misc]
            os.kill(server.pids()[name], signal.SIGKILL)
            server.wait_for(rf"{name} is up", PATIENCE_S)
        return [answer.result(PATIENCE_S) for answer in answers]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("gemma2", "flat"),
        ("falcon_h1", "rows: with states"),
        ("gptj", "single"),
        ("qwen3_moe", "flat"),
        ("deepseek_v3", "flat"),
        ("hy_v4", "single"),
        ("deepseek_v4", "single"),
    ],
)
def test_no_answer_is_another_after_a_death(name: str, way: str, tmp_path: Path) -> None:
    write_tiny(name, tmp_path)
    with Server(str(tmp_path), *OPTIONS, "transformers") as server:
        assert way in server.output
        expected = ask_all(server)
        assert len(set(expected)) > REQUESTS // 2
        assert ask_all(server, KILLS) == expected
