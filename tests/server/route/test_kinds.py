"""Requests that are no streams of texts through `actorserve route`, whose replica dies in the middle of them, whole."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.server.route.test_router import Fleet
from tests.support.models.embedders import write_model
from tests.support.models.sounds.whispers import sound, wav, write_whisper
from tests.support.server import WAIT_S, Server

pytestmark = pytest.mark.slow
ON_CPU = ("--device", "cpu", "--threads", "1", "--dtype", "float32")
TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
POOLED: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": ["one", "another"]},
    "/rerank": {"query": "one", "documents": ["another", "one more"]},
    "/score": {"text_1": "one", "text_2": ["another"]},
    "/pooling": {"input": "one"},
}
TEXTS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "How do I set an API key?", "temperature": 0, "max_output_tokens": 40},
    "/v1/completions": {"prompt": "Once", "seed": 3, "max_tokens": 40, "n": 2},
    "/tokenize": {"prompt": "Once upon a time"},
}


@contextmanager
def fleet(*options: str) -> Iterator[Fleet]:
    """Two replicas of this and a router, which knows only them."""
    with ExitStack() as stack:
        steady, victim = (stack.enter_context(Server(*options)) for _ in range(2))
        given = ("--replicas", f"{steady.base_url},{victim.base_url}", "--admin-api-key", "admin")
        router = stack.enter_context(Server(*given, "--detection-limit", "20", subcommand="route", wait=False))
        router.base_url = router.wait_for(r"routing at (\S+)")[1]
        for server in (steady, victim):
            router.wait_for(f"{server.base_url}: ready", since_start=True)
        stack.callback(lambda: victim.process.wait(WAIT_S))
        yield Fleet(router, steady, victim)


def to_victim(fleet: Fleet, number: signal.Signals) -> None:
    for process in fleet.victim.processes():
        process.send_signal(number)


def in_flight(fleet: Fleet) -> int:
    """Requests that the router has sent to the victim."""
    told = httpx.get(f"{fleet.router.base_url}/metrics").text
    found = re.search(rf'^actorserve_router_in_flight{{replica="{fleet.victim.base_url}"}} (\S+)$', told, re.M)
    assert found is not None, told
    return int(float(found[1]))


def with_victim_stopped(fleet: Fleet, asking: Sequence[Callable[[], Any]]) -> list[Any]:
    """What these requests are answered that have come to a server which stands still, and is killed then."""
    before = in_flight(fleet)
    fleet.drain(fleet.steady)
    to_victim(fleet, signal.SIGSTOP)
    with ThreadPoolExecutor(len(asking)) as clients:
        answers = [clients.submit(ask) for ask in asking]
        while in_flight(fleet) < before + len(asking):
            time.sleep(0.01)  # nothing tells
        fleet.drain(fleet.steady, undo=True)
        to_victim(fleet, signal.SIGKILL)
        return [answer.result(WAIT_S) for answer in answers]


def plain(answer: httpx.Response) -> Any:
    """Without what tells when and by whom it was made."""
    assert answer.status_code == 200, answer.text
    found = json.loads(answer.content)
    for name in ("id", "created", "created_at", "completed_at", "system_fingerprint"):
        found.pop(name, None)
    for item in found.get("output", []):
        item.pop("id")
    for usage in (found.get("usage") or {},):
        for name in ("input_tokens_details", "prompt_tokens_details"):
            usage.pop(name, None)
    return found


def check_whole(fleet: Fleet, bodies: dict[str, dict[str, Any]]) -> None:
    def ask(server: Server, path: str) -> Any:
        return plain(httpx.post(f"{server.base_url}{path}", json=bodies[path], timeout=WAIT_S))

    wanted = [ask(fleet.steady, path) for path in bodies]
    assert with_victim_stopped(fleet, [partial(ask, fleet.router, path) for path in bodies]) == wanted


def test_what_pools_is_computed_elsewhere(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    with fleet(str(tmp_path), *ON_CPU) as made:
        check_whole(made, POOLED)


def test_whole_answers_are_had_elsewhere() -> None:
    with fleet("--threads", "1") as made:
        check_whole(made, TEXTS)


def test_what_a_sound_says_is_written_down_elsewhere(tmp_path: Path) -> None:
    """A stream from where its client is, an answer as a whole anew."""
    write_whisper(tmp_path)
    files = {"file": wav(sound(7.0, seed=1))}
    form = {"model": "ears", "language": "en"}

    def ask(server: Server, path: str, **more: str) -> Any:
        about = {**form, **more}
        return plain(httpx.post(f"{server.base_url}{path}", data=about, files=files, timeout=WAIT_S))

    with fleet(str(tmp_path), *ON_CPU, "--served-model-name", "ears") as made:
        forms: list[dict[str, str]] = [{}, {"response_format": "verbose_json"}]
        kinds = [*((TRANSCRIBE, one) for one in forms), (TRANSLATE, {})]
        wanted = [ask(made.steady, path, **more) for path, more in kinds]
        made.drain(made.steady)
        given = {**form, "stream": "true"}
        url = f"{made.router.base_url}{TRANSCRIBE}"
        with httpx.stream("POST", url, data=given, files=files, timeout=WAIT_S) as stream:
            lines = stream.iter_lines()
            events = [json.loads(next(line for line in lines if line)[6:])]
            asking = [partial(ask, made.router, path, **more) for path, more in kinds]
            assert with_victim_stopped(made, asking) == wanted
            events += [json.loads(line[6:]) for line in lines if line]
        assert made.moves() == 1
        *parts, last = events
        assert last["type"] == "transcript.text.done" and last["text"] == wanted[0]["text"]
        assert "".join(part["delta"] for part in parts).strip() == last["text"]
        assert "".join(part["delta"] for part in parts).strip() == last["text"]
