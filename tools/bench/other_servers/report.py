"""What came of all rounds: the middle figure of each server and case, and ours beside the best of the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "actorserve"
HEAD = (
    "server",
    "case",
    "tokens/s",
    "CPU ms/token",
    "PSS MiB",
    "TTFT p50 ms",
    "ITL p50 ms",
    "tokens/s ÷ best",
    "CPU ÷ best",
)


@dataclass(frozen=True)
class Figures:
    """Of one server in one case: one round's, or the middle of several."""

    tokens_s: float
    cpu_ms: float
    pss_mib: float
    ttft_ms: float
    itl_ms: float


Results = Mapping[tuple[str, str], Sequence[Figures]]  # by (server, case)


def figures_of(run: dict[str, Any]) -> Figures:
    """From what the bench wrote of one run."""
    latency = run["latency_ms"]
    return Figures(
        run["output_throughput"],
        run["server_cpu_ms_a_token"],
        run["server_pss_bytes"] / 2**20,
        latency["ttft"]["p50"],
        latency["itl"]["p50"],
    )


def complaints(run: dict[str, Any], prompt: int, answer: int) -> list[str]:
    """What makes a run no fair one: failures, answers or prompts of another length, a client that was too busy."""
    found = [f"{count} failed ({kind}: {run['error_examples'][kind]})" for kind, count in run["errors"].items()]
    done = run["completed"]
    for name, wanted in (("prompt", prompt), ("output", answer)):
        if (tokens := run[f"{name}_tokens"]) != wanted * done:
            found.append(f"{name}s had {tokens / max(1, done):.2f} tokens each, not {wanted}")
    if run["client_busy"]:
        found.append(f"the client used {run['client_share']:.0%} of a core")
    return found


def middle(rounds: Sequence[Figures]) -> Figures:
    """The median of each figure."""
    columns = ("tokens_s", "cpu_ms", "pss_mib", "ttft_ms", "itl_ms")
    return Figures(*(statistics.median(getattr(one, column) for one in rounds) for column in columns))


def rows(results: Results) -> list[tuple[str, ...]]:
    """One for each server and case, case by case."""
    middles = {key: middle(rounds) for key, rounds in results.items() if rounds}
    found = []
    for case in dict.fromkeys(case for _, case in results):
        of_case = {server: one for (server, of), one in middles.items() if of == case}
        found += [(server, case, *_numbers(one), *_ratios(server, of_case)) for server, one in of_case.items()]
    return found


def _numbers(one: Figures) -> tuple[str, ...]:
    return (f"{one.tokens_s:.1f}", f"{one.cpu_ms:.2f}", f"{one.pss_mib:.0f}", f"{one.ttft_ms:.1f}", f"{one.itl_ms:.2f}")


def _ratios(server: str, of_case: Mapping[str, Figures]) -> tuple[str, str]:
    """Against the best of the peers: tokens/s, more is better; CPU a token, less is. Ours has no share in `best`."""
    peers = [one for name, one in of_case.items() if name != OURS]
    if not peers:
        return "", ""
    one = of_case[server]
    tokens, cpu = max(peer.tokens_s for peer in peers), min(peer.cpu_ms for peer in peers)
    return f"{one.tokens_s / tokens:.2f}", f"{one.cpu_ms / cpu:.2f}"


def table(results: Results) -> str:
    """As markdown."""
    lines = [HEAD, ("---", "---", *["---:"] * (len(HEAD) - 2)), *rows(results)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
