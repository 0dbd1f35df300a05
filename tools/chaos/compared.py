"""Clients that ask again and again, and compare each answer with the undisturbed one, while something happens."""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.streams.cases import CASES, CHAT, TEXT
from tests.support.streams.dialects import ANSWERS, DIALECTS, seeded, whole_answer
from tests.support.streams.pieces import answer_of

WHOLE = 4  # one of so many requests is not streamed
LONGEST = 150  # tokens
IDS = re.compile(r"call_[0-9a-z_]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass
class Tally:
    """What clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    gaps: list[tuple[float, str]] = field(default_factory=list)  # the longest of each stream, and the last fault then
    last_fault: str = "none"
    problems: list[str] = field(default_factory=list)


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """All cases, long enough to be hit."""
    made = {}
    for name, (path, fields) in CASES.items():
        longer = {"max_tokens": LONGEST} if fields.get("ignore_eos") else {}
        made[name] = (path, {**fields, **longer, "seed": fields.get("seed", 9)})
    return made | {name: (path, seeded(path, fields)) for name, (path, fields) in DIALECTS.items()}


def without_ids(told: str) -> str:
    """They are each answer's own."""
    return IDS.sub("id", told)


class Client:
    """Asks, and compares."""

    def __init__(self, session: aiohttp.ClientSession, tally: Tally) -> None:
        self.session, self.tally = session, tally
        self.wanted: dict[tuple[str, bool], Any] = {}

    async def ask(self, name: str, streamed: bool) -> Any:
        """What the answer says."""
        path, fields = bodies()[name]
        options = {"stream_options": {"include_usage": True}} if streamed and path in (CHAT, TEXT) else {}
        body = {**fields, "stream": streamed, **options}
        async with self.session.post(path, json=body) as response:
            if response.status != 200:
                raise AssertionError(f"{response.status} {(await response.text())[:300]}")
            if not streamed:
                told = whole_answer(path, json.loads(await response.read()))
                return without_ids(json.dumps(told))
            data, gap, last = [], (0.0, ""), time.monotonic()
            async for part in response.content.iter_any():
                gap, last = max(gap, (time.monotonic() - last, self.tally.last_fault)), time.monotonic()
                data.append(part)
            self.tally.gaps.append(gap)
            if (read := ANSWERS.get(path)) is not None:
                return without_ids(json.dumps(read(b"".join(data)), sort_keys=True))
            answer = answer_of(b"".join(data))
            if len(answer.pop("heads")) != 1 or not answer["done"]:
                raise AssertionError("an answer with two heads, or without its end")
            return without_ids(json.dumps(answer, sort_keys=True))

    async def compare(self, name: str, streamed: bool) -> None:
        """Once more, while faults come."""
        try:
            found = await self.ask(name, streamed)
        except (aiohttp.ClientError, AssertionError, TimeoutError, ValueError) as error:
            self.tally.counts["failed"] += 1
            self.tally.problems.append(f"{name}: {error!r}")
            return
        same = found == self.wanted[name, streamed]
        self.tally.counts["as it should be" if same else "wrong"] += 1
        if not same:
            self.tally.problems.append(f"{name} (streamed: {streamed}):\n  {self.wanted[name, streamed]}\n  {found}")


async def under_load(
    session: aiohttp.ClientSession, tally: Tally, streams: int, seed: int, happens: Callable[[], Awaitable[None]]
) -> None:
    """All requests once undisturbed; then so many clients at once, for as long as `happens` takes."""
    client, rng = Client(session, tally), random.Random(seed + 1)
    for name in bodies():
        for streamed in (True, False):
            client.wanted[name, streamed] = await client.ask(name, streamed)
    tally.gaps.clear()
    names, ended = list(bodies()), asyncio.Event()

    async def one() -> None:
        while not ended.is_set():
            await client.compare(rng.choice(names), rng.randrange(WHOLE) > 0)

    clients = [asyncio.create_task(one()) for _ in range(streams)]
    try:
        await happens()
    finally:
        ended.set()
        await asyncio.gather(*clients)


def report(tally: Tally, leaks: Sequence[str] = (), more: Sequence[str] = ()) -> int:
    """Print it, and `more` behind the counts; the exit status."""
    for name, count in sorted(tally.counts.items()):
        print(f"{name:32} {count}")
    print(*more, sep="\n", end="\n" if more else "")
    if tally.gaps:
        seconds = [gap for gap, _ in tally.gaps]
        print(f"{'longest gap':32} {max(seconds):.2f} s; median of streams {statistics.median(seconds):.2f} s")
    for fault in sorted({fault for _, fault in tally.gaps}):
        print(f"    behind {fault}: {max(gap for gap, other in tally.gaps if other == fault):.2f} s")
    for told in (*tally.problems[:10], *leaks):
        print(told)
    bad = tally.counts["failed"] + tally.counts["wrong"]
    print("no request failed or was wrong" if not bad else f"{bad} requests failed or were wrong")
    return 1 if bad or leaks or not tally.counts["as it should be"] else 0
