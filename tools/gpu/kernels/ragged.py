"""One row behind a long context among many that decode behind short ones: what it costs a layer of the step, with long
rows divided among programs (actors/worker/gpu/layers/scratch.py) and without, which is what the others would wait for.
"""

from __future__ import annotations

from ..report import TINY, at_most, say
from ..shapes import Bench, capture_graphs, compile_kernels

from actorserve.actors.worker.gpu.graphs import size_for  # isort: skip

LONG = 128 if TINY else 32768
LAYERS = 2  # whose KV memory has room for as much in each row


def ragged(name: str, rows: int, context: int, warm: int, steps: int) -> None:
    """So many rows behind `context` tokens, the last of them behind LONG; means of `steps`, behind `warm` others."""
    bench = Bench(name, rows, LONG + warm + steps + 1, rows, layers=LAYERS)
    compile_kernels(bench.runner, name)
    capture_graphs(bench.runner, name)
    divided, usual = bench.runner.uneven.sizes, list[int]()
    label = f"{name}, {rows} rows that decode behind {context}, one of them behind {LONG}"

    def took(last: int) -> float:
        placed = bench.place(rows - 1, context - 1, context) + bench.place(1, last - 1, last, first=rows - 1)
        bench.runner.run(bench.step(placed, [1] * rows))
        return bench.seconds(rows, warm, steps)

    bench.runner.uneven.sizes = usual
    even = took(context)
    whole = (took(LONG) - even) / LAYERS
    say(f"{label}: what that costs a layer, keys of no row divided further", whole * 1e6, "us")
    bench.runner.uneven.sizes = divided
    if size_for(bench.runner.decoding.sizes, rows) in divided:
        parts = (took(LONG) - even) / LAYERS
        say(f"{label}: the same, long rows divided", parts * 1e6, "us")
        at_most(f"{label}: share of it, divided", parts / whole, "", 0.7)
