"""A kind of actors of which nothing but the registry knows is started, shown, counted, missed, replaced after a death
and in a rolling restart, and ended, as any other.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.page.browser import browsing, find_chromium
from tests.page.person import IN_A_BROWSER, check_calm, open_page
from tests.support.rolling import command, restart
from tests.support.server import Server, stopped

NAMES = ["toy-0", "toy-1"]
SHORT: dict[str, Any] = {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 4}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """`restart` and `ps` lay the shared memory out as it does, so that they know the kind, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("toy_kind")))
        with Server("--renderers", "2", "--worker", "scripted", "--max-model-len", "256") as made:
            yield made


def get(server: Server, path: str) -> tuple[int, str]:
    """The status and the text."""
    try:
        with urllib.request.urlopen(server.base_url + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def complete(server: Server) -> str:
    data = json.dumps(SHORT).encode()
    request = urllib.request.Request(f"{server.base_url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["choices"][0]["text"])


def samples(server: Server) -> dict[tuple[str, ...], float]:
    """Of /metrics, by name and the labels that tell actors and phases apart."""
    found = {}
    for family in text_string_to_metric_families(get(server, "/metrics")[1]):
        for sample in family.samples:
            told = (sample.labels.get(label, "") for label in ("actor", "phase"))
            found[(sample.name, *filter(None, told))] = sample.value
    return found


def report(server: Server) -> dict[str, Any]:
    """What `ps --json` says."""
    done = command(server, "ps", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_it_is_started_and_shown(server: Server) -> None:
    assert set(NAMES) <= server.pids().keys()
    told = report(server)
    toys = [actor for actor in told["actors"] if actor["kind"] == "toy"]
    assert [(toy["name"], toy["state"]) for toy in toys] == [(name, "ready") for name in NAMES]
    assert all(toy["gauges"]["ticks"] >= toy["gauges"]["since_birth"] for toy in toys)
    sent = {(lane["source"], lane["target"]): lane["sent_records"] for lane in told["lanes"]}
    assert sent["toy-0", "scheduler"] and sent["toy-1", "toy-1"]  # and both are read
    assert "toy-1" in command(server, "top", "--once", "--interval", "0.1").stdout
    assert complete(server)


def test_it_is_counted(server: Server) -> None:
    found = samples(server)
    assert found["actorserve:actor_up", "toy-1"] == 1
    assert found["toy:ticks_total",] > 0 and found["toy:number_count",] > 0
    assert ("actorserve:startup_seconds", "toy-0", "winding") in found
    assert ("actorserve:startup_seconds", "toy-0", "weights") not in found


def test_the_server_is_ready_only_with_it(server: Server) -> None:
    with stopped(server, "toy-1"):
        status, text = get(server, "/ready")
    assert status == 503 and "toy-1: stopped by a signal" in text
    assert get(server, "/ready")[0] == 200
    with stopped(server, "cold"):  # its record says that it is not needed
        assert get(server, "/ready")[0] == 200


def test_a_death(server: Server) -> None:
    before = samples(server)["toy:ticks_total",]
    os.kill(server.pids()["toy-0"], signal.SIGKILL)
    server.wait_for(r"toy-0 ended \(.*killed by SIGKILL.*it is started again")
    server.wait_for(r"toy-0 is up \(")
    [toy] = [actor for actor in report(server)["actors"] if actor["name"] == "toy-0"]
    assert toy["restarts"] == 1 and toy["state"] == "ready"
    assert samples(server)["toy:ticks_total",] >= before
    assert complete(server)


def test_rolling_restarts(server: Server) -> None:
    before = server.actors()
    replaced = [line.split()[0] for line in restart(server, "toy", "--set", "seed=7").splitlines()]
    assert replaced == NAMES
    after = server.actors()
    assert {name for name in before if before[name] != after[name]} == set(NAMES)
    everybody = [line.split()[0] for line in restart(server, "all").splitlines()]
    assert everybody[:3] == [*NAMES, "cold"] and everybody[-2:] == ["scheduler", "worker"]  # by the order in its entry
    assert set(everybody) == before.keys()
    refused = command(server, "restart", "toy", "--set", "max_num_batched_tokens=64")
    assert refused.returncode == 1 and "cannot change in a restart of toy" in refused.stderr
    assert complete(server)


def test_help_has_it(server: Server) -> None:
    told = command(server, "restart", "--help").stdout
    assert "toy         nobody's requests pass it" in told
    order = (
        "toys, the cold, the porter, the keeper, the herald, the tools, the caretaker, detokenizers, the batcher, "
        "renderers, media, the steward, frontends, then the scheduler and workers"
    )
    assert order in " ".join(told.split())


@IN_A_BROWSER[0]
async def test_the_page_draws_it(server: Server) -> None:
    """Beside the others, and not one above the other."""
    chromium = find_chromium()
    assert chromium is not None
    async with browsing(chromium) as page:
        await page.renew()
        await open_page(page, server)
        await page.until("document.querySelectorAll('.map .actor.toy[data-state=ready]').length === 2")
        cards = "[...document.querySelectorAll('.map .actor')].map((one) => one.getAttribute('transform'))"
        places = await page.evaluate(cards)
        assert len(places) == len(set(places)) == len(server.actors())
        check_calm(page, server.base_url)
