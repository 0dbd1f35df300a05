"""What the soak says of watching: its intervals, its verdict, its load, and one pair of phases on a real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.observer.attach import attach
from tests.support.server import Server
from tools.chaos import soak_pairs
from tools.chaos.soak_load import Load, Tally, clients
from tools.chaos.soak_pairs import Pair, Phase, pairs, ratio, report
from tools.chaos.soak_watchers import Watchers

SCRIPTED = ("--worker", "scripted", "--scripted-step-ms", "5")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*SCRIPTED) as one:
        yield one


def made(cost: float, spread: float, count: int = 20) -> list[Pair]:
    """Pairs in which watching costs so much, with some noise."""
    rng = np.random.default_rng(1)
    noise = rng.normal(0, spread, count)
    return [(Phase(100.0, 50.0, 9.0), Phase(100 * (1 - cost) * float(np.exp(one)), 50.0, 9.0)) for one in noise]


@pytest.mark.parametrize("true", [0.9, 1.0, 1.3])
def test_the_interval_holds_the_truth_as_often_as_it_says(true: float) -> None:
    """Of few pairs, too: 95 of 100, and 200 tries say so within 4 or so."""
    rng, held = np.random.default_rng(2), 0
    for _ in range(200):
        before = rng.uniform(50, 100, 5)
        after = before * true * np.exp(rng.normal(0, 0.1, 5))
        mean, low, high = ratio(list(before), list(after))
        assert low < mean < high
        held += low <= true <= high
    assert 180 <= held < 200


def test_one_pair_says_nothing() -> None:
    mean, low, high = ratio([2.0], [3.0])
    assert mean == pytest.approx(1.5) and (low, high) == (0.0, float("inf"))


@pytest.mark.parametrize(
    ("cost", "spread", "verdict"), [(0.0, 0.005, "under"), (0.1, 0.005, "over"), (0.02, 0.05, "perhaps")]
)
def test_the_verdict(cost: float, spread: float, verdict: str) -> None:
    text, too_much = report(made(cost, spread), 20)
    assert f": {verdict}" in text.splitlines()[-1] and too_much == (verdict == "over")


async def test_arrivals_come_at_their_rate_and_again() -> None:
    """Whatever the server does: this one answers nothing before the end."""
    came: list[bytes] = []
    ended = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        came.append(await request.read())
        if len(came) == 9:
            over.set()
        await ended.wait()
        return web.Response(status=503)

    app, over, tally = web.Application(), asyncio.Event(), Tally()
    app.router.add_post("/{path:.*}", handler)
    async with TestServer(app) as server, clients() as session:
        began = time.monotonic()
        load = Load(str(server.make_url("")).rstrip("/"), session, tally, 0.0, 7)
        going = asyncio.create_task(load.arrivals(20.0, 3, over))
        await over.wait()
        assert time.monotonic() - began >= 8 / 20
        ended.set()
        await going
    assert tally.counts == Counter({"refused (503)": len(came)})
    assert Counter(came[:9]) == dict.fromkeys(came[:3], 3)


async def test_a_pair_on_a_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_pairs, "SETTLE_S", 0.5)
    tally = Tally()
    async with clients() as session:
        over = asyncio.Event()
        load = asyncio.create_task(Load(server.base_url, session, tally, 0.0, 0).arrivals(20.0, 20, over))
        attached, watchers = attach(pid=server.pid), Watchers(server.base_url, server.pid, None)
        (found,) = await pairs(attached, watchers, 2.5, time.monotonic(), random.Random(0))
        attached.close()
        assert not watchers.cpu()
        over.set()
        await load
    assert not tally.failures and tally.counts["finished"] > 20
    plain, watched = found
    assert not plain.watchers and set(watched.watchers) == {"top", "scrapes", "events"}
    assert watched.watchers["top"] > 0
    for one in found:
        assert one.tokens_s > 100 and one.cpu_us > one.actors["frontend-0"] > 0
        assert set(one.actors) > {"supervisor", "worker", "scheduler", "frontend-0"}


async def test_a_watcher_that_ends_is_noticed(server: Server) -> None:
    watchers = Watchers(server.base_url, server.pid, None)

    async def look() -> None:
        async with watchers.looking():
            top = watchers._processes["top"]
            top.kill()
            top.wait()

    with pytest.raises(RuntimeError, match="top"):
        await look()
