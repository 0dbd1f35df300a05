"""The products of a step, which are most of its bytes, and a step that torch alone would make: how fast they are.

qkv, out, gate_up, down, head    each as a step calls it, over weights that are in no cache, beside the copy's rate;
                                 of up to 8 rows the product of our own, too, with norm, gate or addition in it, as
                                 it is launched and in other ways
gate_up                          with weights of 4 and 8 bits, too (kernels/stored_products.py), and of e4m3 on both
                                 sides by torch, whose sums are exact as in steps, or quick (use_fast_accum)
a step of torch alone            the same products, with torch's own attention over gathered keys and values, as one
                                 graph: what the kernels of this project gain
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import ceilings
from .report import TINY, say, surviving
from .shapes import DTYPES, SHAPES, read_shape

from .kernels.cases import processors  # isort: skip
from .kernels.stored_products import stored_products  # isort: skip

from actorserve.kernels.triton.linear.gemv import (
    MOST_ROWS,
    TABLE,
    GemvLaunch,
    NormBefore,
    Workspace,
    gemv,
    programmatic_launch,
)  # isort: skip

from tests.support.gpu.scaled_products import are_there  # isort: skip

BATCHES = (1,) if TINY else (1, 8, 32, 128, 256)
NAMES = ("tiny",) if TINY else ("Llama-3.1-8B", "Qwen3-0.6B")
CONTEXT = 64 if TINY else 1024


def sizes_of(name: str) -> dict[str, tuple[int, int]]:
    """Each product's weight [out, in]."""
    shape = read_shape(name)
    heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return {
        "qkv": (heads, shape.hidden_size),
        "out": (shape.hidden_size, shape.heads * shape.head_dim),
        "gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }


def random(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=ceilings.device()).normal_()


def products(name: str, limits: dict[str, float]) -> None:
    dtype = DTYPES[SHAPES[name]["dtype"]]
    for product, (rows, columns) in sizes_of(name).items():
        make = partial(random, (rows, columns), dtype)
        weights = ceilings.cold(make, rows * columns * dtype.itemsize, 128)
        for batch in BATCHES:
            with surviving(f"{name}, {product} {rows} x {columns}, batch {batch}") as label:
                timed(label, product, batch, weights, limits)
        del weights


def timed(label: str, product: str, batch: int, weights: list[Tensor], limits: dict[str, float]) -> None:
    (rows, columns), dtype = weights[0].shape, weights[0].dtype
    x = torch.randn(batch, columns, device=ceilings.device()).to(dtype)
    out = torch.empty(batch, rows, dtype=dtype, device=ceilings.device())
    took = ceilings.seconds_each([partial(torch.mm, x, weight.T, out=out) for weight in weights], 10)
    moved = (rows * columns + batch * (rows + columns)) * dtype.itemsize
    floor = max(moved / limits["bytes"], 2 * batch * rows * columns / limits["flops"])
    say(f"{label} ({took * 1e6:.1f} us): share", floor / took)
    if batch <= MOST_ROWS:
        own_products(label, product, x, weights, took, floor)


def scaled_products(name: str) -> None:
    """What scaled_linear.py leaves to torch: how much the quicker sums, of fewer bits, would gain."""
    if not are_there():
        say(f"{name}, products of e4m3", "not run: this torch has none of rows with scales on a CPU")
        return
    rows, columns = sizes_of(name)["gate_up"]
    weights = ceilings.cold(lambda: e4m3(rows, columns), rows * columns, 128)
    for batch in BATCHES:
        with surviving(f"{name}, gate_up {rows} x {columns} in e4m3, batch {batch}") as label:
            x, on = e4m3(batch, columns), ceilings.device()
            given: dict[str, Any] = {  # apart: cuBLAS may want each on a boundary of 16 bytes
                "scale_a": torch.ones(batch, 1, device=on),
                "scale_b": torch.ones(1, rows, device=on),
                "out_dtype": torch.bfloat16,
            }
            for fast in (False, True):
                calls = [partial(torch._scaled_mm, x, w.t(), **given, use_fast_accum=fast) for w in weights]
                took = ceilings.seconds_each(calls, 10)
                say(f"{label}, {'quick' if fast else 'exact'} sums", took * 1e6, "us")


def e4m3(rows: int, columns: int) -> Tensor:
    return random((rows, columns), torch.bfloat16).to(torch.float8_e4m3fn)


def own_products(label: str, product: str, x: Tensor, weights: list[Tensor], cublas: float, floor: float) -> None:
    """The same by kernels/triton/linear/gemv.py; cuBLAS' time has no norm, gate and addition in it, and these have."""
    variants = {name: gemv_calls(product, x, weights, launch, pdl) for name, launch, pdl in gemv_variants(x.dtype)}
    times = ceilings.compared(f"{label}, own", variants)
    if times:
        told = ", ".join(f"{name} {seconds * 1e6:.1f}" for name, seconds in times.items())
        best, seconds = next(iter(times.items()))
        say(f"{label}, own (us: {told}): share of the quickest, {best}", floor / seconds)
    if ceilings.AS_IT_IS in times:
        say(f"{label}, own: times cuBLAS' time, as it is launched", times[ceilings.AS_IT_IS] / cublas)


def gemv_variants(dtype: torch.dtype) -> Iterator[tuple[str, GemvLaunch, bool]]:
    usual = TABLE[dtype]
    yield ceilings.AS_IT_IS, usual, False
    if programmatic_launch(ceilings.device()):
        yield "pdl", usual, True
    yield "tile_n 16", usual._replace(tile_n=16), False
    yield "tile_n 64", usual._replace(tile_n=64), False
    yield "tile_k 256", usual._replace(tile_k=256, stages=3), False
    yield "tile_n 16, tile_k 256, 2 warps", usual._replace(tile_n=16, tile_k=256, warps=2), False
    yield "4 waves", usual._replace(waves=4), False
    yield "1 wave", usual._replace(waves=1), False


def gemv_calls(product: str, x: Tensor, weights: list[Tensor], launch: GemvLaunch, pdl: bool) -> list[ceilings.Call]:
    """What stands in a layer beside the product is in it."""
    outputs, inputs = weights[0].shape
    options: dict[str, Any] = {"launch": launch, "pdl": pdl}
    if product in ("qkv", "gate_up") and x.dtype != torch.float16:
        options["norm"] = NormBefore(torch.ones_like(x[0]), 1e-5)
    options["gated"] = product == "gate_up"
    if product in ("out", "down"):
        options["add"] = torch.zeros(len(x), outputs, dtype=x.dtype, device=x.device)
        options["splits"] = launch.splits(outputs, inputs, processors(x.device))
        options["workspace"] = Workspace.make(outputs, x.device)
    return [partial(gemv, x, weight, **options) for weight in weights]


class TorchStep:
    """A decode step of this shape in nothing but torch: no paging but an index, no kernel of this project."""

    def __init__(self, name: str, rows: int) -> None:
        self.shape, self.rows, dtype = read_shape(name), rows, DTYPES[SHAPES[name]["dtype"]]
        sizes = sizes_of(name)

        def weight(product: str) -> Tensor:
            return torch.empty(sizes[product], dtype=dtype, device=ceilings.device()).normal_(std=0.02)

        layers = range(self.shape.layers)
        self.layers = [[weight(product) for product in ("qkv", "out", "gate_up", "down")] for _ in layers]
        self.head = weight("head")
        self.x = torch.randn(rows, self.shape.hidden_size, device=ceilings.device()).to(dtype)
        pool = (2, rows * CONTEXT, self.shape.kv_heads, self.shape.head_dim)
        self.pools = [torch.empty(pool, dtype=dtype, device=ceilings.device()).normal_() for _ in layers]
        self.order = torch.randperm(rows * CONTEXT, device=ceilings.device())
        self.angles = torch.rand(rows, 1, self.shape.head_dim // 2, device=ceilings.device()).to(dtype)

    def __call__(self) -> Tensor:
        shape, x = self.shape, self.x
        for (qkv, out, gate_up, down), pool in zip(self.layers, self.pools, strict=True):
            normed = F.rms_norm(x, x.shape[-1:])
            heads = F.linear(normed, qkv).view(self.rows, -1, shape.head_dim)
            q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
            q, k = self._rotated(q), self._rotated(k)
            pool[0, self.order[::CONTEXT]], pool[1, self.order[::CONTEXT]] = k, v
            keys, values = (part[self.order].view(self.rows, CONTEXT, -1, shape.head_dim) for part in pool)
            seen = F.scaled_dot_product_attention(
                q.unsqueeze(2), keys.transpose(1, 2), values.transpose(1, 2), enable_gqa=True
            )
            x = x + F.linear(seen.reshape(self.rows, -1), out)
            gate, up = F.linear(F.rms_norm(x, x.shape[-1:]), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x, x.shape[-1:]), self.head).argmax(-1)

    def _rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.angles - b, b * self.angles + a), -1)


def main() -> None:
    limits = ceilings.known()
    with torch.inference_mode():
        for name in NAMES:
            with surviving(f"{name}, products"):
                products(name, limits)
        with surviving(f"{NAMES[0]}, products of stored weights"):
            stored_products(NAMES[0], *sizes_of(NAMES[0])["gate_up"], DTYPES[SHAPES[NAMES[0]]["dtype"]], limits)
        with surviving(f"{NAMES[0]}, products of e4m3"):
            scaled_products(NAMES[0])
        for rows in (1, 4) if TINY else (1, 32):
            with surviving(f"{NAMES[-1]}, a decode step of torch alone, batch {rows}, {CONTEXT} of context") as label:
                say(label, ceilings.seconds_each([TorchStep(NAMES[-1], rows)], 10) * 1e3, "ms")


if __name__ == "__main__":
    main()
