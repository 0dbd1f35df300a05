"""Paged decode launched in different ways, each over keys and values that are in no cache: which is quickest where.

Each line is a shape: what each variant takes, and how the quickest compares with the table's own entry. Behind those of
a type of keys and values stands the variant that is best over all its shapes, by the mean of its times over the
table's: it should stand in kernels/triton/attention/decode_launch.py where it wins by more than the measure's noise.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import multiprocessing
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from .. import ceilings
from ..report import TINY, say

from actorserve.kernels.pages import Scoring  # isort: skip
from actorserve.kernels.triton.attention.decode_launch import TABLE, DecodeLaunch, kind_of  # isort: skip
from actorserve.kernels.triton.attention.paged_decode import paged_decode  # isort: skip
from actorserve.kernels.triton.attention.tiles import Scratch  # isort: skip
from actorserve.kernels.triton.quantised_kv import E4M3, supported  # isort: skip
from . import cases  # isort: skip

NOISE = 0.03  # by how much a variant has to win
COMPILERS = 14  # processes
REPEATS, OF_LARGE, LARGE = 10, 3, 4 << 30  # calls that are timed; of those that read so many bytes, or more
SPLITS_OF_64 = "splits of 64"
BATCHES = (1, 32) if TINY else (1, 8, 32, 256)
CONTEXTS = (64,) if TINY else (1024, 16384)


def variants(own: DecodeLaunch) -> dict[str, DecodeLaunch]:
    """The table's entry with one thing or two changed, by what is changed."""
    small = {"tile_bytes": own.tile_bytes // 2, "most_keys": max(16, own.most_keys // 2)}
    return {
        "2 warps": own._replace(warps=2, registers=None),
        "1 warp, half the tile": own._replace(warps=1, registers=None, **small),
        "2 warps, half the tile": own._replace(warps=2, registers=None, **small),
        "twice the tile": own._replace(tile_bytes=2 * own.tile_bytes, most_keys=2 * own.most_keys, registers=None),
        "3 stages": own._replace(stages=3),
        "7 stages": own._replace(stages=7),
        "3 waves": own._replace(waves=3),
        "6 waves": own._replace(waves=6),
        "splits rounded up": own._replace(round_up=True),
        SPLITS_OF_64: own._replace(least=64),
        "one row in splits of 128": own._replace(least_alone=128),
        "one row in splits of 32": own._replace(least_alone=32),
    }


def concerns(name: str, rows: int) -> bool:
    """Whether a variant is another one than the table's for so many rows."""
    return name != SPLITS_OF_64 if rows == 1 else not name.startswith("one row")


@dataclass
class Scores:
    """Logarithms of each variant's times over those of the table, for one type of keys and values."""

    logs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, ratio: float) -> None:
        self.logs.setdefault(name, []).append(math.log(ratio))

    def best(self) -> tuple[str, float, int]:
        """(the variant with the smallest mean, the mean of its ratios, of how many shapes); shapes that it does not
        concern count as 1."""
        shapes = max(len(logs) for logs in self.logs.values())
        means = {name: math.exp(sum(logs) / shapes) for name, logs in self.logs.items()}
        name = min(means, key=lambda one: means[one])
        return name, means[name], shapes


class Case:
    """Inputs of one size, as often as it takes until no cache holds them."""

    def __init__(self, model: cases.Model, rows: int, context: int, kind: torch.dtype, cold: bool = True) -> None:
        self.model, self.rows, self.context, self.kind = model, rows, context, kind
        device = ceilings.device()
        self.processors = cases.processors(device)
        self.moved = 2 * rows * context * model.kv_heads * model.head_dim * kind.itemsize
        queries = torch.randn(rows, model.heads, model.head_dim, device=device)
        self.queries = queries.to(torch.float32 if TINY else torch.bfloat16)
        self.out = torch.empty_like(self.queries)
        make = partial(cases.pages_of, device, model, rows, context, kind)
        self.pages = ceilings.cold(make, self.moved, 32) if cold else [make()]
        self.label = f"{model.name}, {rows} x {context}" + (", 8-bit KV" if kind == E4M3 else "")

    def timed(self, launch: DecodeLaunch) -> float:
        """Seconds of one call."""
        splits = launch.splits(self.rows, self.model.kv_heads, self.context, self.processors)
        scratch, scoring = Scratch.make(self.queries, splits), Scoring(self.model.head_dim**-0.5)
        given = scoring, scratch, self.out
        calls = [partial(paged_decode, self.queries, own, *given, launch=launch) for own in self.pages]
        return ceilings.seconds_each(calls, OF_LARGE if self.moved >= LARGE else REPEATS)


def compare(case: Case, own: DecodeLaunch, scores: Scores) -> None:
    """One line, or one more for each variant that cannot be launched."""
    usual = case.timed(own)
    times = {"the table's": usual}
    for name, launch in variants(own).items():
        if not concerns(name, case.rows):
            continue
        try:
            times[name] = case.timed(launch)
        except Exception as error:  # it takes too much shared memory, or does not compile: others are timed still
            say(f"decode, {case.label}, {name}: {type(error).__name__}: {str(error)[:80]}", "not run")
            continue
        scores.add(name, times[name] / usual)
    best = min(times, key=lambda name: times[name])
    told = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in sorted(times.items(), key=lambda one: one[1]))
    say(f"decode, {case.label} (us: {told}): quickest is {best}, times the table's", times[best] / usual)


def compiled(model: cases.Model, kind: torch.dtype, rows: int, splits: int, launch: DecodeLaunch) -> None:
    """One variant is in Triton's cache; one that cannot be is told of where it is timed."""
    with contextlib.suppress(Exception), torch.inference_mode():
        case = Case(model, rows, 64, kind, cold=False)
        paged_decode(
            case.queries, case.pages[0], Scoring(1.0), Scratch.make(case.queries, splits), case.out, launch=launch
        )


def compile_all() -> None:
    """By many processes: one alone would take longer than all that is timed."""
    jobs = {}
    for kind, (model, rows, context) in itertools.product(kinds(), shapes()):
        own = TABLE[kind_of(torch.bfloat16, model.head_dim, kind == E4M3)]
        for launch in (own, *variants(own).values()):
            splits = min(2, launch.splits(rows, model.kv_heads, context, cases.processors(ceilings.device())))
            alike = launch._replace(waves=0, round_up=False, least=0, least_alone=0)
            jobs[model, kind, splits, alike] = (model, kind, rows, splits, launch)
    with ProcessPoolExecutor(COMPILERS, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(compiled, *job) for job in jobs.values()]:
            done.result()


def kinds() -> list[torch.dtype]:
    """Types of keys and values."""
    if TINY:
        return [torch.float32]
    return [torch.bfloat16, *([E4M3] if supported(ceilings.device()) else [])]


def shapes() -> Iterator[tuple[cases.Model, int, int]]:
    tiny = cases.Model("tiny", 64, 4, 2, 16, 128, 512, True)
    yield from itertools.product((tiny,) if TINY else cases.MODELS, BATCHES, CONTEXTS)


def compare_all(kind: torch.dtype) -> None:
    """All shapes with keys and values of this type; the verdict, also where it is stopped in the middle."""
    scores: dict[str, Scores] = {}
    try:
        for model, rows, context in shapes():
            case = Case(model, rows, context, kind)
            entry = kind_of(case.queries.dtype, model.head_dim, kind == E4M3)
            compare(case, TABLE[entry], scores.setdefault(entry, Scores()))
            del case
    finally:
        for entry, found in scores.items():
            if found.logs:
                tell(entry, found)


def tell(entry: str, found: Scores) -> None:
    name, ratio, shapes_seen = found.best()
    wins = name if ratio < 1 - NOISE else "the table's own"
    what = f"decode, {entry}, over {shapes_seen} shapes: the entry that should win is {wins}; the best of the others"
    say(f"{what}, {name}, times it", ratio)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what was found by then is told
    if torch.cuda.is_available() and not TINY:
        compile_all()
    with torch.inference_mode():
        for kind in kinds():
            compare_all(kind)


if __name__ == "__main__":
    main()
