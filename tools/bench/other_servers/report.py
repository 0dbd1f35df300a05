"""What came of all rounds: the middle figure of each server and case, and ours beside the best of the others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

OURS = "actorserve"
CELL = r"tokens/s \| ms between tokens \| ms to the first \| CPU ms a token \| PSS MiB"
RATIOS = ("tokens/s ÷ best", "first token ÷ best", "CPU ÷ best")


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
    return Figures(*(statistics.median(getattr(one, column.name) for one in rounds) for column in fields(Figures)))


def rows(results: Results, servers: Sequence[str]) -> list[tuple[str, ...]]:
    """One for each case: its figures by each of the servers, and ours beside the best of the others."""
    found = []
    for case in dict.fromkeys(case for _, case in results):
        of_case = {server: middle(rounds) for (server, of), rounds in results.items() if of == case and rounds}
        counts = sorted({len(rounds) for (_, of), rounds in results.items() if of == case})
        cells = [_cell(of_case[server]) if server in of_case else "" for server in servers]
        found.append((case, "–".join(map(str, counts)), *cells, *_ratios(of_case)))
    return found


def _cell(one: Figures) -> str:
    figures = (
        f"{one.tokens_s:.1f}",
        f"{one.itl_ms:.1f}",
        f"{one.ttft_ms:.0f}",
        f"{one.cpu_ms:.2f}",
        f"{one.pss_mib:.0f}",
    )
    return r" \| ".join(figures)


def _ratios(of_case: Mapping[str, Figures]) -> tuple[str, ...]:
    """Tokens/s, of which more is better; the time to the first token and CPU a token, of which less is."""
    peers = [one for name, one in of_case.items() if name != OURS]
    if not peers or OURS not in of_case:
        return ("",) * len(RATIOS)
    ours = of_case[OURS]
    return (
        f"{ours.tokens_s / max(peer.tokens_s for peer in peers):.2f}",
        f"{ours.ttft_ms / min(peer.ttft_ms for peer in peers):.2f}",
        f"{ours.cpu_ms / min(peer.cpu_ms for peer in peers):.2f}",
    )


def table(results: Results) -> str:
    """As markdown, under a line that says what stands in a cell."""
    servers = sorted({server for server, _ in results}, key=lambda server: (server != OURS, server))
    head = ("weights, clients × prompt/answer", "rounds", *servers, *RATIOS)
    lines = [head, ("---", *["---:"] * (len(head) - 1)), *rows(results, servers)]
    return f"{CELL}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
