"""What to time of each kernel: inputs in the shapes of models, a call, and what it moves and computes at least.

    for case in cases("cuda"):
        call = case.make()                          inputs are made here, the call makes no tensor
        share = case.least(copy, rate) / seconds(call)

Who times small cases has to empty the L2 cache between calls (by writing as much memory as it holds).
`copy` is the device's measured copy bandwidth in bytes a second (read and written ones together), `rate` its measured
rate of products. Numbers of `moved` are those that must cross the memory bus once, reads and writes together: what a
kernel reads twice counts once. Attention counts the keys and values of all positions, whatever splits leave in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from actorserve.actors.protocol.request import default_of
from actorserve.kernels.pages import Pages, Scoring
from actorserve.kernels.triton import logits as gpu_logits
from actorserve.kernels.triton import rms_norm, rotary_kv, silu_mul
from actorserve.kernels.triton import sampling as gpu_sampling
from actorserve.kernels.triton.attention import paged_decode, paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.quantised_kv import E4M3, Scales, supported

Call = Callable[[], object]
BATCHES = (1, 8, 32, 128, 256)
CONTEXTS = (1024, 4096, 16384, 65536)
MOST_KV = 24 << 30  # bytes of one case's keys and values
CHUNKS = ((8192, 8192), (2048, 8192), (512, 32768))  # (tokens, positions)


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    words: int
    norms: bool  # of q and k
    block_size: int = 32


LLAMA = Model("Llama-3.1-8B", 4096, 32, 8, 128, 14336, 128256, False)
QWEN = Model("Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151936, True)
MODELS = (LLAMA, QWEN)


@dataclass(frozen=True)
class Case:
    """One line of a table."""

    kernel: str
    shape: str
    make: Callable[[], Call] = field(repr=False)
    moved: int  # bytes
    flops: int = 0  # of products of tensor cores

    def least(self, copy: float, rate: float) -> float:
        """Seconds that a perfect kernel would take."""
        return max(self.moved / copy, self.flops / rate)


def cases(
    device: str | torch.device, models: tuple[Model, ...] = MODELS, dtype: torch.dtype = torch.bfloat16
) -> Iterator[Case]:
    """All of them; nothing is allocated before a case's `make`."""
    device = torch.device(device)
    pools = (dtype, E4M3) if supported(device) else (dtype,)
    for model in models:
        for kind in pools:
            for batch in BATCHES:
                for context in CONTEXTS:
                    if 2 * batch * context * model.kv_heads * model.head_dim * kind.itemsize <= MOST_KV:
                        yield decode(device, model, batch, context, dtype, kind)
            for tokens, positions in CHUNKS:
                yield prefill(device, model, tokens, positions, dtype, kind)
            for batch in BATCHES:
                yield rotary(device, model, batch, dtype, kind)
        for batch in BATCHES:
            yield norm(device, model, batch, dtype)
            yield gate(device, model, batch, dtype)
            yield from sampling(device, model, batch, dtype)
            yield from logits(device, model, batch)


def pages_of(device: torch.device, model: Model, rows: int, positions: int, kind: torch.dtype) -> Pages:
    """Random keys and values of so many positions a row, in blocks anywhere in the pools."""
    needed = -(-positions // model.block_size)
    shape = (2, rows * needed, model.kv_heads, model.block_size, model.head_dim)
    scales = None
    if kind == E4M3:
        codes = torch.randint(0, 0x7F, shape, dtype=torch.uint8, device=device)
        keys, values = codes.view(E4M3)
        scales = Scales.make(keys)
        for part in scales:
            part.fill_(127 - 8)
    else:
        keys, values = torch.empty(shape, dtype=kind, device=device).normal_()
    blocks = torch.randperm(rows * needed, device=device).int().view(rows, needed)
    return Pages(keys, values, blocks, torch.full((rows,), positions, dtype=torch.int32, device=device), scales)


def _kv_bytes(model: Model, positions: int, kind: torch.dtype) -> int:
    """Of keys, values and scales of so many positions."""
    return 2 * positions * model.kv_heads * (model.head_dim * kind.itemsize + (kind == E4M3))


def _label(model: Model, kind: torch.dtype, what: str) -> str:
    return f"{model.name}, {what}" + (", 8-bit KV" if kind == E4M3 else "")


def decode(device: torch.device, model: Model, batch: int, context: int, dtype: torch.dtype, kind: torch.dtype) -> Case:
    """One token of each of `batch` rows."""

    def make() -> Call:
        pages = pages_of(device, model, batch, context, kind)
        queries = torch.randn(batch, model.heads, model.head_dim, device=device).to(dtype)
        out = torch.empty_like(queries)
        splits = paged_decode.split_count(batch, model.kv_heads, context, processors(device))
        scratch = Scratch.make(queries, splits)
        scoring = Scoring(model.head_dim**-0.5)
        return lambda: paged_decode.paged_decode(queries, pages, scoring, scratch, out)

    vectors = batch * model.heads * model.head_dim
    moved = _kv_bytes(model, batch * context, kind) + 2 * vectors * dtype.itemsize
    return Case("decode", _label(model, kind, f"{batch} x {context}"), make, moved, 4 * vectors * context)


def prefill(
    device: torch.device, model: Model, tokens: int, positions: int, dtype: torch.dtype, kind: torch.dtype
) -> Case:
    """The last `tokens` of one row of so many positions."""

    def make() -> Call:
        pages = pages_of(device, model, 1, positions, kind)
        queries = torch.randn(tokens, model.heads, model.head_dim, device=device).to(dtype)
        out = torch.empty_like(queries)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
        scoring = Scoring(model.head_dim**-0.5)
        return lambda: paged_prefill.paged_prefill(queries, starts, pages, scoring, out)

    vectors = model.heads * model.head_dim
    seen = tokens * (positions - tokens) + tokens * (tokens + 1) // 2
    moved = _kv_bytes(model, positions, kind) + 2 * tokens * vectors * dtype.itemsize
    return Case("prefill", _label(model, kind, f"{tokens} of {positions}"), make, moved, 4 * vectors * seen)


def rotary(device: torch.device, model: Model, batch: int, dtype: torch.dtype, kind: torch.dtype) -> Case:
    """Rotation of q and k, and the write of k and v; with the norms of q and k where the model has them."""
    all_heads = model.heads + 2 * model.kv_heads

    def make() -> Call:
        pages = pages_of(device, model, batch, model.block_size, kind)
        merged = torch.randn(batch, all_heads, model.head_dim, device=device).to(dtype)
        q, k, v = merged.split([model.heads, model.kv_heads, model.kv_heads], 1)
        positions = torch.arange(batch, device=device)
        angles = torch.rand(batch, model.head_dim // 2, device=device)
        turns, slots = rotary_kv.RotaryTables(angles.cos(), angles.sin()), positions * model.block_size
        pools = rotary_kv.Pools(pages.keys, pages.values, pages.scales)
        gains = torch.ones(2, model.head_dim, dtype=dtype, device=device)
        norms = rotary_kv.Norms(gains[0], gains[1], 1e-6) if model.norms else None
        out = torch.empty_like(q)
        return lambda: rotary_kv.rotate_and_write(q, k, v, positions, slots, turns, pools, norms=norms, out=out)

    numbers = batch * (all_heads + model.heads) * model.head_dim
    tables = batch * 4 * model.head_dim
    moved = numbers * dtype.itemsize + _kv_bytes(model, batch, kind) + tables + batch * 16
    return Case("rotary", _label(model, kind, str(batch)), make, moved)


def norm(device: torch.device, model: Model, batch: int, dtype: torch.dtype) -> Case:
    """Addition of the residual, and the norm."""

    def make() -> Call:
        x, residual, out = torch.zeros(3, batch, model.hidden, dtype=dtype, device=device)
        gain = torch.ones(model.hidden, dtype=dtype, device=device)
        return lambda: rms_norm.add_rms_norm(x, residual, gain, 1e-5, out)

    return Case("add_rms_norm", f"{model.name}, {batch}", make, (4 * batch + 1) * model.hidden * dtype.itemsize)


def gate(device: torch.device, model: Model, batch: int, dtype: torch.dtype) -> Case:
    def make() -> Call:
        merged = torch.randn(batch, 2 * model.mlp, device=device).to(dtype)
        out = torch.empty(batch, model.mlp, dtype=dtype, device=device)
        return lambda: silu_mul.silu_mul(merged, out)

    return Case("silu_mul", f"{model.name}, {batch}", make, 3 * batch * model.mlp * dtype.itemsize)


FILTERS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0},
    "free": {},
    "top-p": {"top_p": 0.95},
    "top-n-sigma": {"top_n_sigma": 1.0},
    "typical-p": {"typical_p": 0.95},
    "xtc": {"xtc_probability": 0.5, "min_p": 0.05},
    "dynamic": {"dynatemp_range": 0.5, "min_p": 0.05},
    "top-k": {"top_k": 50, "top_p": 0.95, "temperature": 0.7},
}


def sampling(device: torch.device, model: Model, batch: int, dtype: torch.dtype) -> Iterator[Case]:
    """A token a row, by what requests ask for."""
    for name, filters in FILTERS.items():

        def make(filters: dict[str, float] = filters) -> Call:
            rows = torch.arange(batch, device=device)
            scores = (torch.randn(batch, model.words, device=device) * 3).to(dtype)
            workspace = gpu_sampling.Workspace.make(batch, model.words, device)
            given = {"seed": 7} | filters
            each = {
                name: torch.full((batch,), given.get(name, default_of(name)), dtype=kind, device=device)
                for name, kind in zip(
                    gpu_sampling.RowParameters._fields[:-1], gpu_sampling.PARAMETER_DTYPES[:-1], strict=True
                )
            }
            parameters = gpu_sampling.RowParameters(**each, position=rows)
            out = torch.empty_like(rows)
            return lambda: gpu_sampling.sample(scores, rows, parameters, workspace, out)

        yield Case("sample", f"{model.name}, {batch}, {name}", make, batch * model.words * dtype.itemsize)


def logits(device: torch.device, model: Model, batch: int) -> Iterator[Case]:
    """Penalties and masks on all rows, on none; the sums of logprobs."""
    kinds = {"adjust": 4 + 4 + 2 + 2 / 8, "adjust, none asks": 0.0, "log_sums": 4.0}
    for kind, moved in kinds.items():

        def make(kind: str = kind) -> Call:
            rows = torch.arange(batch, device=device)
            scores = torch.randn(batch, model.words, device=device)
            if kind == "log_sums":
                return lambda: gpu_logits.log_sums(scores)
            state = _asked(device, model, batch, kind == "adjust")
            return lambda: gpu_logits.adjust(scores, rows, **state)

        yield Case(kind, f"{model.name}, {batch}", make, math.ceil(batch * (model.words * moved + 16)))


def _asked(device: torch.device, model: Model, batch: int, everything: bool) -> dict[str, Any]:
    """Penalties of 1.1 and a mask for all rows, or for none."""
    factor = torch.full((batch,), 1.1 if everything else 1.0, device=device)
    zeros = factor * 0
    counts: Tensor = torch.zeros(batch, model.words, dtype=torch.int16, device=device)
    bits = torch.full((batch, -(-model.words // 32)), -1, dtype=torch.int32, device=device)
    which = torch.arange(batch, device=device) if everything else torch.full((batch,), -1, device=device)
    penalties = gpu_logits.RowPenalties(factor, zeros, zeros, bits, counts)
    return {"penalties": penalties, "mask": gpu_logits.Mask(bits, which)}


def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; where there is none, as many as an H100 has."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 132
