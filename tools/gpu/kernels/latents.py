"""Attention over latents, as DeepSeek's models keep them, and the choice of what is seen: what to time, as in cases.py.

All heads read one head of keys, whose first numbers are the values. With 16 heads its bytes are what counts, with 128
the products, which by then take about as long: the floor is whichever takes longer.

    python -m tools.gpu.kernels.latents
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from .. import ceilings
from ..report import TINY, say, surviving

from actorserve.kernels.pages import Pages, Scoring  # isort: skip
from actorserve.kernels.triton.attention.decode_launch import places_of  # isort: skip
from actorserve.kernels.triton.attention import indexer, paged_decode, paged_prefill  # isort: skip
from actorserve.kernels.triton.attention.tiles import Scratch  # isort: skip
from .cases import Call, Case, processors  # isort: skip


@dataclass(frozen=True)
class Latents:
    """One model's."""

    name: str
    heads: int
    rank: int = 512  # numbers of a value
    turning: int = 64  # that a key has beside it
    block_size: int = 32

    @property
    def width(self) -> int:
        return self.rank + self.turning


@dataclass(frozen=True)
class Choice:
    """By what a model chooses tokens, and how many."""

    name: str
    heads: int
    dim: int = 128
    topk: int = 2048
    block_size: int = 32


CHOICES = (Choice("a toy", 4, 16, 24, 16),) if TINY else (Choice("DeepSeek-V3.2", 64), Choice("GLM-5", 32))
CHOOSING = (1,) if TINY else (1, 32)  # rows
# Positions, and of how many there may be: of many several programs choose.
CHOSEN_OF = ((64, 64),) if TINY else ((8192, 8192), (8192, 131072), (32768, 32768), (131072, 131072))
TOY = Latents("a toy", 4, 32, 16, 16)
MODELS = (TOY,) if TINY else (Latents("DeepSeek-V2-Lite", 16), Latents("DeepSeek-V3", 128))
DTYPE = torch.float32 if TINY else torch.bfloat16
BATCHES = (1,) if TINY else (1, 32, 128)
CONTEXTS = (64,) if TINY else (1024, 16384)
CHUNKS = ((16, 16),) if TINY else ((2048, 2048), (512, 16384))  # (tokens, positions)


def cases(device: torch.device, models: tuple[Latents, ...] = MODELS, dtype: torch.dtype = DTYPE) -> Iterator[Case]:
    """All of them; nothing is allocated before a case's `make`."""
    for model in models:
        for batch in BATCHES:
            for context in CONTEXTS:
                yield decode(device, model, batch, context, dtype)
        for tokens, positions in CHUNKS:
            yield prefill(device, model, tokens, positions, dtype)


def pages_of(device: torch.device, model: Latents, rows: int, positions: int, dtype: torch.dtype) -> Pages:
    """Random latents of so many positions a row, in blocks anywhere in the pool."""
    needed = -(-positions // model.block_size)
    keys = torch.empty(rows * needed, 1, model.block_size, model.width, dtype=dtype, device=device).normal_()
    blocks = torch.randperm(rows * needed, device=device).int().view(rows, needed)
    lengths = torch.full((rows,), positions, dtype=torch.int32, device=device)
    return Pages(keys, keys[..., : model.rank], blocks, lengths)


def _moved(model: Latents, positions: int, tokens: int, dtype: torch.dtype) -> int:
    """Bytes of so many positions' latents, and of the tokens' queries and results."""
    return (positions * model.width + tokens * model.heads * (model.width + model.rank)) * dtype.itemsize


def _flops(model: Latents, pairs: int) -> int:
    """Of so many pairs of a token and a position that it sees."""
    return 2 * pairs * model.heads * (model.width + model.rank)


def decode(device: torch.device, model: Latents, batch: int, context: int, dtype: torch.dtype) -> Case:
    """One token of each of `batch` rows."""

    def make() -> Call:
        pages = pages_of(device, model, batch, context, dtype)
        queries = torch.randn(batch, model.heads, model.width, device=device).to(dtype)
        places = places_of(model.heads, 1, latents=True)
        splits = paged_decode.split_count(batch, places, context, processors(device), "latents")
        scratch = Scratch.make(queries, splits, model.rank)
        out, scoring = queries.new_empty(batch, model.heads, model.rank), Scoring(model.width**-0.5)
        return lambda: paged_decode.paged_decode(queries, pages, scoring, scratch, out)

    moved = _moved(model, batch * context, batch, dtype)
    shape = f"{model.name}, {model.heads} heads, {batch} x {context}"
    return Case("decode over latents", shape, make, moved, _flops(model, batch * context))


def prefill(device: torch.device, model: Latents, tokens: int, positions: int, dtype: torch.dtype) -> Case:
    """The last `tokens` of one row of so many positions."""

    def make() -> Call:
        pages = pages_of(device, model, 1, positions, dtype)
        queries = torch.randn(tokens, model.heads, model.width, device=device).to(dtype)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        out, scoring = queries.new_empty(tokens, model.heads, model.rank), Scoring(model.width**-0.5)
        return lambda: paged_prefill.paged_prefill(queries, starts, pages, scoring, out)

    seen = tokens * (positions - tokens) + tokens * (tokens + 1) // 2
    shape = f"{model.name}, {model.heads} heads, {tokens} of {positions}"
    return Case("prefill over latents", shape, make, _moved(model, positions, tokens, dtype), _flops(model, seen))


def choices(device: torch.device, models: tuple[Choice, ...] = CHOICES, dtype: torch.dtype = DTYPE) -> Iterator[Case]:
    """Which tokens queries see."""
    for model in models:
        for batch in CHOOSING:
            for context, longest in CHOSEN_OF:
                yield choice(device, model, batch, context, longest, dtype)


def choice(device: torch.device, model: Choice, batch: int, context: int, longest: int, dtype: torch.dtype) -> Case:
    """For one token of each of `batch` rows: keys are read and slots written at least, scores are neither."""

    def make() -> Call:
        needed = -(-context // model.block_size)
        keys = torch.empty(batch * needed, 1, model.block_size, model.dim, dtype=dtype, device=device).normal_()
        table = torch.zeros(batch, -(-longest // model.block_size), dtype=torch.int32, device=device)
        table[:, :needed] = torch.randperm(batch * needed, device=device).view(batch, needed)
        queries = torch.randn(batch, model.heads, model.dim, device=device).to(dtype)
        weights = torch.randn(batch, model.heads, device=device)
        rows = torch.arange(batch, dtype=torch.int32, device=device)
        lengths = torch.full_like(rows, context)
        slots = torch.empty(batch, model.topk, dtype=torch.int32, device=device)
        chosen = indexer.ChosenTokens(rows, lengths, lengths.clamp(max=model.topk), slots)
        return lambda: indexer.choose_tokens(queries, weights, keys, table, chosen)

    moved = batch * (context * model.dim * dtype.itemsize + 4 * model.topk)
    shape = f"{model.name}, {model.heads} heads, {model.topk} of {batch} x {context} of up to {longest}"
    return Case("choice of tokens", shape, make, moved, 2 * batch * context * model.heads * model.dim)


def main() -> None:
    limits = ceilings.known()
    with torch.inference_mode():
        for case in chain(cases(ceilings.device()), choices(ceilings.device())):
            with surviving(f"{case.kernel}, {case.shape}"):
                took = ceilings.seconds_each(ceilings.cold(case.make, case.moved, 32), 10)
                share = case.least(limits["bytes"], limits["flops"]) / took
                say(f"{case.kernel}, {case.shape} ({took * 1e6:.1f} us): share of the ceiling", share)


if __name__ == "__main__":
    main()
