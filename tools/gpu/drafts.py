"""What drafts cost a step, and whether texts stay: found in the text, said by a smaller model, by a head of EAGLE-3, by
a model of blocks (DFlash).

With random weights no head is right but by chance: what a step with drafts takes says how many of them would have to
count for it to pay, and tokens have to be those of a run without drafts, whatever counts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .report import TINY, at_most, say, surviving
from .shapes import DTYPES, SHAPES, Bench, capture_graphs, compile_kernels, read_shape

from actorserve.actors.model.architecture import Architecture  # isort: skip
from actorserve.actors.model.heads.formats import (  # isort: skip
    BLOCK_LAYER,
    EAGLE3,
    TO_TARGET,
    BlockShape,
    RecurrentShape,
    TargetStates,
)
from actorserve.actors.worker.gpu.drafts.ahead import CachedDraftingRunner  # isort: skip
from actorserve.actors.worker.gpu.drafts.blocks import BlockDrafter, BlockDraftingRunner  # isort: skip
from actorserve.actors.worker.gpu.drafts.draft_model import ModelDraftingRunner  # isort: skip
from actorserve.actors.worker.gpu.drafts.recurrent import RecurrentDraftingRunner, RecurrentHead  # isort: skip
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner  # isort: skip
from actorserve.actors.worker.gpu.executor import GpuBuilder, GpuModel  # isort: skip
from actorserve.actors.worker.gpu.runner import GpuRunner  # isort: skip
from actorserve.kernels.triton.drafts import Lookup  # isort: skip

NAME, DRAFTED_WORDS = ("tiny", 128) if TINY else ("Qwen3-0.6B", 32000)
SMALL_LAYERS = 1 if TINY else 4  # of the model that drafts
DRAFTS = 3
ROWS = (2,) if TINY else (1, 8, 32)
CONTEXT, STEPS, TURNS = (24, 2, 1) if TINY else (1024, 30, 3)
WARM = 1 if TINY else 5
TOKENS = 8 if TINY else 48  # of texts that are compared
SPREAD = 5.0  # in those
CHUNK = 32 if TINY else 512
LENGTH = CONTEXT + (1 + DRAFTS) * (WARM + STEPS + 4)
GOALS = {"n-gram": 1.4, "EAGLE-3": 1.9}  # times as long as a step without, for up to 8 rows
SHARED = "vocab_size hidden_size intermediate_size heads kv_heads head_dim norm_eps rope".split()
KINDS = ("n-gram", "a model", "EAGLE-3", "DFlash")
kept: list[Bench] = []  # graphs that went would take the others' workspace along (actors/worker/gpu/graphs.py)


def head_of(target: Architecture) -> RecurrentShape:
    """A head as they are published: it reads three layers, and may say the words that are most frequent."""
    return RecurrentShape(
        **{name: getattr(target, name) for name in SHARED},
        windows=(None,),
        format=EAGLE3,
        states=TargetStates((min(2, target.layers), target.layers // 2, max(0, target.layers - 3))),
        target_hidden=target.hidden_size,
        draft_vocabulary=DRAFTED_WORDS,
        own_embeddings=False,
        own_head=True,
        mapped=True,
    )


def blocks_of(target: Architecture) -> BlockShape:
    """A small model of blocks: it reads as many layers as it has, and shares embeddings and head with the model."""
    count = 1 if TINY else 5
    reads = tuple(1 + number * (target.layers - 1) // count for number in range(count))
    return BlockShape(
        **{name: getattr(target, name) for name in SHARED},
        windows=(None,) * count,
        causal=(False,) * count,
        layer=BLOCK_LAYER.with_biases(lambda linear: False),
        states=TargetStates(reads),
        target_hidden=target.hidden_size,
        draft_vocabulary=target.vocab_size,
        own_embeddings=False,
        own_head=False,
        mapped=False,
        block=1 + DRAFTS,
        mask=7,
    )


def smaller(name: str) -> Architecture:
    """The same with few layers, as what drafts may be."""
    return read_shape(name, num_hidden_layers=SMALL_LAYERS)


class DraftBench(Bench):
    """A runner whose rows have drafts of this kind, or none."""

    def __init__(self, kind: str | None, name: str, rows: int, length: int, tokens: int, spread: float = 1.0) -> None:
        """`spread`: times as large as they are at first are all matrices, which says how much of a token's hidden state
        is not its embedding."""
        self.kind, self.spread = kind, spread
        super().__init__(name, rows, length, tokens, drafts=DRAFTS if kind else 0)
        if isinstance(runner := self.runner, CachedDraftingRunner):
            shape, dtype, spare = runner.draft_memory
            runner.draft_pools = self.make_pools(shape, self.table.size + spare, dtype)

    def weights(self, shape: Architecture, seed: int) -> Callable[[str], torch.Tensor]:
        get = super().weights(shape, seed)
        return lambda name: found * self.spread if (found := get(name)).ndim > 1 else found

    def make_runner(self, model: GpuModel, *given: Any, **named: Any) -> GpuRunner:
        length = self.sizes.length
        if self.kind is None:
            return GpuRunner(model, *given, **named)
        if self.kind == "n-gram":
            return DraftingRunner(model, *given, lookup=Lookup(1, 3, DRAFTS), adaptive=False, **named)
        lookup = Lookup(1, 1, DRAFTS)
        if self.kind == "a model":
            shape = smaller(self.name)
            draft = GpuModel(GpuBuilder(shape, self.weights(shape, 1), self.dtype, self.device), length)
            return ModelDraftingRunner(model, *given, lookup=lookup, adaptive=False, draft=draft, **named)
        if self.kind == "DFlash":
            blocks = blocks_of(self.shape)
            drafter = BlockDrafter(blocks, self.weights(blocks, 3), model, length, DRAFTS)
            return BlockDraftingRunner(model, *given, lookup=lookup, adaptive=False, drafter=drafter, **named)
        shape = head_of(self.shape)
        own = self.weights(shape, 2)
        words = torch.zeros(shape.draft_vocabulary, dtype=torch.int64)
        head = RecurrentHead(shape, lambda name: words if name == TO_TARGET else own(name), model, length)
        return RecurrentDraftingRunner(model, *given, lookup=lookup, adaptive=False, head=head, **named)


def step_time(bench: Bench, rows: int, tokens: int) -> float:
    """Seconds of a step of so many tokens a row."""
    bench.runner.run(bench.step(bench.place(rows, CONTEXT - 1, CONTEXT), [1] * rows))
    bench.decode(rows, WARM, tokens)
    begun = time.perf_counter()
    bench.decode(rows, STEPS, tokens)
    return (time.perf_counter() - begun) / STEPS


def texts(bench: Bench, rows: int, tokens: int) -> tuple[list[list[int]], float]:
    """What rows say, in steps of so many tokens a row; how many drafts of a step counted in the mean."""
    runner = bench.runner
    said = [[int(token)] for token in runner.run(bench.step(bench.place(rows, 0, CHUNK), [CHUNK] * rows))]
    counted: list[int] = []
    while min(map(len, said)) < TOKENS:
        drawn = runner.run(bench.step([], [tokens] * rows))
        counts = np.ones(rows, int) if runner.outcome is None else runner.outcome.drawn
        counted += (counts - 1).tolist()
        for own, more in zip(said, np.split(drawn, np.cumsum(counts)[:-1]), strict=True):
            own += more.tolist()
    return [own[:TOKENS] for own in said], statistics.fmean(counted)


def captured(bench: Bench) -> None:
    label = f"{bench.name}, {type(bench.runner).__name__}"
    compile_kernels(bench.runner, label)
    capture_graphs(bench.runner, label)
    if torch.cuda.is_available():
        kept.append(bench)


def costs() -> None:
    """Steps with drafts beside steps without, by turns."""
    plain = DraftBench(None, NAME, max(ROWS), LENGTH, CHUNK)
    captured(plain)
    for kind in KINDS:
        with surviving(f"drafts of {kind}"):
            bench = DraftBench(kind, NAME, max(ROWS), LENGTH, CHUNK)
            captured(bench)
            for rows in ROWS:
                with surviving(f"drafts of {kind}, {rows} rows"):
                    took = [(step_time(plain, rows, 1), step_time(bench, rows, 1 + DRAFTS)) for _ in range(TURNS)]
                    without, with_drafts = (statistics.median(own) for own in zip(*took, strict=True))
                    label = f"{NAME}, {rows} rows, {DRAFTS} drafts of {kind}"
                    goal = GOALS.get(kind) if rows <= 8 else None
                    at_most(f"{label}: a step, times as long as without", with_drafts / without, "", goal)
                    say(f"{label}: so many have to count in each", max(0.0, with_drafts / without - 1))


def sameness() -> None:
    """Texts of a small model in float32, with drafts and without."""
    rows, length = 4, CHUNK + 2 * (1 + DRAFTS) * TOKENS
    plain = DraftBench(None, "tiny", rows, length, rows * CHUNK, SPREAD)
    compile_kernels(plain.runner, "tiny, without drafts")
    wanted, _ = texts(plain, rows, 1)
    words = len({word for said in wanted for word in said})
    say(f"different words in texts of {rows} rows, of {TOKENS} each", words, "", "several", words > rows)
    for kind in KINDS:
        with surviving(f"texts with drafts of {kind}"):
            bench = DraftBench(kind, "tiny", rows, length, rows * CHUNK, SPREAD)
            captured(bench)
            said, counted = texts(bench, rows, 1 + DRAFTS)
            differ = sum(mine != theirs for mine, theirs in zip(said, wanted, strict=True))
            say(f"texts of {rows} rows that drafts of {kind} change", differ, "", "none", differ == 0)
            say(f"drafts of {kind} that counted there, of {DRAFTS} in each step", counted)


def main() -> None:
    assert SHAPES["tiny"]["dtype"] == "float32" and DTYPES["float32"] is torch.float32
    with torch.inference_mode():
        for part in (sameness, costs):
            with surviving(f"drafts: {part.__name__}"):
                part()


if __name__ == "__main__":
    main()
