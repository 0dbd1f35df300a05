"""`actorserve bench startup`: how long a server takes to be ready, with empty caches and with full ones, and for what.

Cold is a start whose $XDG_CACHE_HOME is empty: kernels are compiled and weights are packed in it. Warm are starts that
find what an earlier one has left there. Models are looked for where they always are, and their files may be in the
system's page cache either way.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

import actorserve

from ..options.config import ConfigError
from .client_tls import OWN, ClientTls, client_tls
from .results.report import check_writable, save
from .server import ServerError, StartedServer, ask

PHASE = re.compile(r'^actorserve:startup_seconds\{actor="([^"]+)",phase="([^"]+)"\} (\S+)', re.MULTILINE)
ANSWER_S = 30.0
CACHES, HUB = "XDG_CACHE_HOME", "HF_HOME"


class Start(NamedTuple):
    """One of a server: seconds until it was ready, and of each phase by "actor: phase"."""

    ready_s: float
    phases: dict[str, float]


def startup(arguments: argparse.Namespace, console: Console) -> int:
    """Start and stop a server again and again; the exit status."""
    counts = {name: getattr(arguments, f"num_iters_{name}") for name in ("cold", "warmup", "warm")}
    for name, count in counts.items():
        if count < 0:
            raise ConfigError(f"--num-iters-{name}: at least 0")
    if not counts["cold"] + counts["warm"]:
        raise ConfigError("--num-iters-cold and --num-iters-warm: one of them must be at least 1")
    if arguments.output_json:
        check_writable(Path(arguments.output_json))
    words = [*([arguments.model] if arguments.model else []), *arguments.engine]
    tls = client_tls(arguments, own=True)
    starts = measure(lambda caches: start(words, caches, arguments.ready_timeout, tls), **counts)
    show(console, starts)
    if arguments.output_json:
        save(Path(arguments.output_json), document(starts))
        console.print(f"written to {arguments.output_json}", markup=False)
    return 0


def measure(begin: Callable[[Path], Start], cold: int, warmup: int, warm: int) -> dict[str, list[Start]]:
    """`begin` starts a server with these caches. The warm ones share one folder, which uncounted ones fill."""
    starts: dict[str, list[Start]] = {}
    if cold:
        starts["cold"] = []
    for _ in range(cold):
        with tempfile.TemporaryDirectory(prefix="actorserve-bench-") as empty:
            starts["cold"].append(begin(Path(empty)))
    if warm:
        with tempfile.TemporaryDirectory(prefix="actorserve-bench-") as shared:
            every = [begin(Path(shared)) for _ in range(warmup + warm)]
            starts["warm"] = every[warmup:]
    return starts


def start(words: Sequence[str], caches: Path, ready_s: float, tls: ClientTls = OWN) -> Start:
    """Of a server with these options, which is stopped again."""
    hub = os.environ.get(HUB) or str(Path(os.environ.get(CACHES) or "~/.cache").expanduser() / "huggingface")
    begun = time.monotonic()
    env = {**os.environ, CACHES: str(caches), HUB: hub}
    with StartedServer(words, ready_s, env=env, tls=tls) as server:
        taken = time.monotonic() - begun
        return Start(taken, phases_of(_metrics(f"{server.base_url}/metrics", tls)))


def _metrics(url: str, tls: ClientTls) -> str:
    try:
        with ask(url, ANSWER_S, tls) as response:
            text: bytes = response.read()
    except OSError as error:
        raise ServerError(f"{url}: {error}") from None
    return text.decode()


def phases_of(metrics: str) -> dict[str, float]:
    """Seconds by "actor: phase", as /metrics has them."""
    return {f"{actor}: {phase}": float(seconds) for actor, phase, seconds in PHASE.findall(metrics)}


def document(starts: dict[str, list[Start]]) -> dict[str, Any]:
    """All of it, as JSON has it."""
    kinds = {
        kind: {"ready_s": [one.ready_s for one in those], "phases_s": [one.phases for one in those]}
        for kind, those in starts.items()
    }
    return {"schema": "actorserve-bench-startup/1", "version": actorserve.__version__, **kinds}


def show(console: Console, starts: dict[str, list[Start]]) -> None:
    """A table of the times to ready, and one of the phases' medians."""
    ready = Table(title="bench startup: seconds to ready", title_justify="left")
    for name in ("", "starts", "mean", "p50", "min", "max"):
        ready.add_column(name, justify="right" if name else "left")
    for kind, those in starts.items():
        times = [one.ready_s for one in those]
        figures = (statistics.mean(times), statistics.median(times), min(times), max(times))
        ready.add_row(kind, str(len(times)), *(f"{value:.2f}" for value in figures))
    phases = Table(title="phases: seconds, p50; the supervisor's are the whole server's", title_justify="left")
    phases.add_column("")
    for kind in starts:
        phases.add_column(kind, justify="right")
    for name in dict.fromkeys(name for those in starts.values() for one in those for name in one.phases):
        phases.add_row(name, *(f"{median_of(those, name):.2f}" for those in starts.values()))
    console.print(ready, phases)


def median_of(starts: Sequence[Start], phase: str) -> float:
    """0 where a start has no such phase."""
    return statistics.median(one.phases.get(phase, 0.0) for one in starts)
