"""Requests that come at once are begun a few in each turn of the loop, in order, and none of them is forgotten."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from actorserve.actors.frontend.admission import AdmissionQueue


class Counted:
    """The loop's turns, counted while anything is under way, and the turn in which each request was begun."""

    def __init__(self) -> None:
        self.now = 0
        self.begun: dict[int, int] = {}
        self.handle = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self.now += 1
        self.handle = asyncio.get_running_loop().call_soon(self._tick)

    async def begin(self, turns: AdmissionQueue, number: int) -> None:
        await turns.take()
        self.begun[number] = self.now


async def test_a_few_in_each_turn_in_order() -> None:
    counted, turns = Counted(), AdmissionQueue(2)
    await asyncio.gather(*(counted.begin(turns, number) for number in range(9)))
    counted.handle.cancel()
    assert list(counted.begun) == list(range(9))
    in_a_turn = [list(counted.begun.values()).count(turn) for turn in range(counted.now + 1)]
    assert max(in_a_turn) == 2


async def test_one_alone_does_not_wait() -> None:
    counted, turns = Counted(), AdmissionQueue(2)
    for number in range(3):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        before = counted.now
        await counted.begin(turns, number)
        assert counted.begun[number] == before
    counted.handle.cancel()


async def test_who_has_gone_takes_nobodys_place() -> None:
    counted, turns = Counted(), AdmissionQueue(1)
    tasks = [asyncio.create_task(counted.begin(turns, number)) for number in range(6)]
    await asyncio.sleep(0)
    for number in (1, 2, 4):
        tasks[number].cancel()
    done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
    counted.handle.cancel()
    assert list(counted.begun) == [0, 3, 5]
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [False, True, True, False, True, False]


async def test_one_that_goes_in_its_own_turn_stops_nobody() -> None:
    turns = AdmissionQueue(1)
    tasks = [asyncio.create_task(turns.take()) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the second has been told, and has not run yet
    tasks[1].cancel()
    done, _ = await asyncio.wait(tasks, timeout=10)
    assert done == set(tasks) and [task.cancelled() for task in tasks] == [False, True, False]


async def test_health_passes_by() -> None:
    turns = AdmissionQueue(1)

    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.path)

    async def ask(path: str) -> str:
        answer = await turns.wait(make_mocked_request("GET", path), handler)
        assert isinstance(answer, web.Response)
        order.append(path)
        return path

    order: list[str] = []
    paths = ["/v1/models", "/v1/completions", "/v1/completions", "/health", "/ready"]
    await asyncio.gather(*map(ask, paths))
    assert order == ["/v1/models", "/health", "/ready", "/v1/completions", "/v1/completions"]
