"""What is left behind faults, and what is said of them."""

from __future__ import annotations

import argparse
import os
import statistics
import time
import urllib.request
from collections import Counter

from tests.support.server import Server
from tools.chaos.clients.answers import Tally
from tools.chaos.faults_options import FAULTS

SETTLED_S = 20.0


def gauges(server: Server) -> dict[str, float]:
    """What /metrics says is held."""
    with urllib.request.urlopen(f"{server.base_url}/metrics", timeout=30) as response:
        rows = [line.rpartition(" ") for line in response.read().decode().splitlines()]
    wanted = (
        *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
        *("actorserve:media_requests_waiting", "actorserve:media_memory_held_bytes", "actorserve:media_inbox_bytes"),
    )
    found: Counter[str] = Counter()
    for name, _, value in rows:
        if name.startswith(wanted):
            found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
    return {**found}


def descriptors(server: Server) -> dict[str, int]:
    """Open files of each process but the frontends, whose clients come and go."""
    pids = {"supervisor": server.pid, **server.pids()}
    return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items() if "frontend" not in name}


def find_leaks(server: Server, before: dict[str, int]) -> list[str]:
    """What is still held when all requests have ended, and descriptors that were not there `before`."""
    deadline = time.monotonic() + SETTLED_S
    while (leaks := _held(server, before)) and time.monotonic() < deadline:
        time.sleep(0.05)  # the last broken off requests end, and connections that rest; can only be asked for
    return leaks


def _most(name: str, before: dict[str, int]) -> int:
    """That one of its kind had, in any engine: of models that change places other ones are loaded now."""
    kind = name.partition("@")[0]
    return max(count for other, count in before.items() if other.partition("@")[0] == kind)


def _held(server: Server, before: dict[str, int]) -> list[str]:
    held = [f"{name} {value:g}" for name, value in gauges(server).items() if value]
    return held + [
        f"{name}: {count} descriptors, {_most(name, before)} before"
        for name, count in descriptors(server).items()
        if count > _most(name, before) + 2
    ]


def report(tally: Tally, options: argparse.Namespace, leaks: list[str]) -> None:
    print(f"| fault | {' | '.join(options.actors)} |\n|---|{'---|' * len(options.actors)}")
    for fault in FAULTS:
        print(f"| {fault} | {' | '.join(str(tally.faults[kind, fault]) for kind in options.actors)} |")
    counts = tally.counts
    pauses = sorted(tally.pauses)
    p99 = pauses[int(len(pauses) * 0.99)]
    print(f"\n| finished | failed | wrong | broken off | longest pause | p50 | p99 | leaks |\n|{'---|' * 8}")
    print(
        f"| {counts['finished']} | {counts['failed']} | {counts['wrong']} | {counts['broken off on purpose']} "
        f"| {pauses[-1]:.2f} s | {statistics.median(pauses):.2f} s | {p99:.2f} s | {', '.join(leaks) or 'none'} |"
    )
    if options.relay or options.http2:
        print(f"\nreset with the relay, and not counted as failed: {counts['reset with the relay']}")
    if options.operations:
        print("\nbeside them, of the operator:", ", ".join(f"{counts[name]} {name}" for name in options.operations))
    gap, fault = max(tally.gaps, default=(0.0, "none"))
    print(f"\nthe longest gap behind the first text of a stream: {gap:.2f} s (the last fault: {fault})")
    for kind in (*options.actors, *options.commands):
        longest = max((gap for gap, fault in tally.gaps if fault.endswith(kind)), default=0.0)
        what = f"{tally.commands[kind]} times {kind}" if kind in options.commands else f"a fault of a {kind}"
        print(f"    behind {what}: {longest:.2f} s")
    print(*tally.examples, sep="\n")
