"""What watching costs: phases without and with watchers, in pairs, under the same load; and what follows from them.

Of each phase it counts tokens and the actors' CPU time, from the server's shared memory and /proc.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from actorserve.actors.observer.attach import Attached
from actorserve.actors.observer.rates import Meter
from tools.chaos.soak_watchers import Watchers

SETTLE_S = 4.0  # from when they begin or have ceased to look until it counts: programs start, a page is loaded
DRAWS = 1_000_000
ALLOWED = 0.02  # of throughput
US = 1e6


@dataclass(frozen=True)
class Phase:
    """What was counted in one."""

    tokens_s: float
    cpu_us: float  # of all actors, for a token
    between_ms: float  # median, between two tokens of a stream
    actors: dict[str, float] = field(default_factory=dict)  # CPU of each, us for a token
    watchers: dict[str, float] = field(default_factory=dict)  # CPU of each, percentages of a core


Pair = tuple[Phase, Phase]  # without, with


async def phase(server: Attached, watchers: Watchers, watched: bool, seconds: float) -> Phase:
    """One, behind the time in which all settles."""
    async with watchers.looking() if watched else contextlib.nullcontext():
        await asyncio.sleep(SETTLE_S)
        meter, before, own, began = Meter(), server.look(), watchers.cpu(), time.monotonic()
        meter.add(before, server.histograms())
        await asyncio.sleep(seconds)
        after = server.look()
        rates = meter.add(after, server.histograms())
        spent = {name: cpu - own.get(name, 0.0) for name, cpu in watchers.cpu().items()}
        took = time.monotonic() - began
    assert rates is not None and rates.tokens_s > 0, "nothing was generated"
    tokens = rates.tokens_s * (after.at_s - before.at_s)
    actors = {
        new.name: US * (new.cpu_s - old.cpu_s) / tokens
        for old, new in zip(before.actors, after.actors, strict=True)
        if new.cpu_s is not None and old.cpu_s is not None
    }
    shares = {name: 100 * cpu / took for name, cpu in spent.items()} if watched else {}
    return Phase(rates.tokens_s, sum(actors.values()), 1e3 * (rates.between_s or 0.0), actors, shares)


async def pairs(
    server: Attached, watchers: Watchers, seconds: float, deadline: float, rng: random.Random
) -> list[Pair]:
    """As many as there is time for, each in an order that is drawn."""
    found: list[Pair] = []
    length = 2 * (seconds + SETTLE_S)
    while not found or time.monotonic() + length < deadline:
        order = rng.sample([False, True], 2)
        done = {watched: await phase(server, watchers, watched, seconds) for watched in order}
        found.append((done[False], done[True]))
        plain, watched = found[-1]
        rates, cpu = (plain.tokens_s, watched.tokens_s), (plain.cpu_us, watched.cpu_us)
        text = f"{rates[0]:8.1f} and {rates[1]:8.1f} tokens/s, {cpu[0]:7.1f} and {cpu[1]:7.1f} us of CPU a token"
        print(f"pair {len(found):3}: {text}", flush=True)
    return found


def ratio(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """The mean ratio of pairs, and the ends of its 95 % interval (of Student's distribution, over the logarithms)."""
    logs = np.log(np.asarray(after) / np.asarray(before))
    mean, count = float(logs.mean()), len(logs)
    if count < 2:
        return float(np.exp(mean)), 0.0, float("inf")
    reach = _student(count - 1) * float(logs.std(ddof=1)) / count**0.5
    low, high = mean - reach, mean + reach
    return float(np.exp(mean)), float(np.exp(low)), float(np.exp(high))


@cache
def _student(freedom: int) -> float:
    """Within how many standard errors 95 % lie: drawn, so that no further package is needed."""
    return float(np.quantile(np.abs(np.random.default_rng(0).standard_t(freedom, DRAWS)), 0.95))


def report(found: list[Pair], seconds: float) -> tuple[str, bool]:
    """What all pairs say, and whether watching surely costs more throughput than it may."""
    lines = [f"{len(found)} pairs of {seconds:g} s   without     with    ratio   95 % interval"]
    names = {"tokens_s": "tokens/s", "cpu_us": "CPU, us a token", "between_ms": "between tokens, ms"}
    ends: dict[str, tuple[float, float, float]] = {}
    for field_, name in names.items():
        plain, watched = ([getattr(pair[side], field_) for pair in found] for side in (0, 1))
        if not min(*plain, *watched):
            continue
        ends[field_] = ratio(plain, watched)
        shown = f"{ends[field_][0]:8.4f}   {ends[field_][1]:.4f} to {ends[field_][2]:.4f}"
        lines.append(f"{name:19} {np.median(plain):9.1f} {np.median(watched):9.1f} {shown}")
    for actor in found[0][0].actors:
        plain, watched = ([pair[side].actors.get(actor, 0.0) for pair in found] for side in (0, 1))
        lines.append(f"  {actor:17} {np.median(plain):9.1f} {np.median(watched):9.1f}")
    own = found[0][1].watchers
    shares = [f"{name} {np.median([pair[1].watchers.get(name, 0.0) for pair in found]):.1f} %" for name in own]
    lines.append(f"the watchers' own CPU, of a core: {', '.join(shares)}")
    cost = [1 - end for end in ends["tokens_s"]]
    verdict = "under" if cost[1] < ALLOWED else "over" if cost[2] > ALLOWED else "perhaps under, perhaps over"
    lines.append(
        f"watching costs {cost[0]:.2%} of throughput ({cost[2]:.2%} to {cost[1]:.2%}): {verdict} {ALLOWED:.0%}"
    )
    return "\n".join(lines), verdict == "over"
