"""What a step asks memory for goes with what its rows see, and not with how much KV memory there is: no copy of it is
made to read a few blocks, however it is kept, divided and computed over.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, LayerAttention
from actorserve.actors.model.memory.kv_memory import check_kept
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.cpu.memory.window_tables import TabledKV
from actorserve.actors.worker.memory import make_pools
from actorserve.kernels.cpu.paged_kv import PagedKV
from tests.support.selection import slow

from .test_adapted_windows import BLOCK, HEADS, KINDS, ROWS, Side, plan_of, rule, widths_of

pytestmark = pytest.mark.usefixtures("kernels")
BLOCKS = 1 << 15  # of the memory
LIMIT = BLOCKS * BLOCK * 16  # bytes: a copy is of more, if its numbers took a byte each, and a step needs far less
LATENT = LayerAttention(heads=HEADS, kv_heads=1, key_dim=48, value_dim=32, scale=0.3, values_in_keys=True)
ALIKE = KVSpec(layers=(rule(2, 16, 16, None), *[rule(2, 16, 16, 9)] * 3))
SHAPES = {**KINDS, "heads alike": ALIKE, "latents": KVSpec(layers=(LATENT,) * 2)}
QUICK = ("heads of two widths", True, "bfloat16")
CASES = [
    (shape, tabled, dtype)
    for shape, tabled, dtype in product(SHAPES, (True, False), ("float32", "bfloat16"))
    if shape != "latents" or not tabled  # latents are in no tables of windows
]
STEPS = [20, 40], [1, 1], [5, 1], [1, 1], [40, 17]  # prompts, rows that decode, and drafts


def largest_allocation(run: Callable[[], None]) -> int:
    """The most bytes that torch or numpy asked for at once."""
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    results = profiler.profiler
    assert results is not None and results.kineto_results is not None
    sizes = [event.nbytes() for event in results.kineto_results.events() if event.name() == "[memory]"]
    assert sizes, "nothing was counted"
    return int(max(most, *sizes))


def is_kept(spec: KVSpec, name: str) -> bool:
    try:
        check_kept(spec, KV_TYPES[name])
    except ConfigError:
        return False
    return True


def made(spec: KVSpec, name: str, tabled: bool, aligned: bool, dtype: torch.dtype) -> PagedKV | TabledKV:
    rest = aligned, dtype, native.current()
    if tabled:
        return TabledKV(spec, plan_of(spec, packs=spec is not ALIKE), BLOCKS, BLOCK, KV_TYPES[name], *rest)
    return PagedKV(spec, make_pools(spec, BLOCKS, BLOCK, KV_TYPES[name]), BLOCK, *rest)


@pytest.mark.parametrize(
    ("shape", "tabled", "dtype"),
    [QUICK, *slow(*(case for case in CASES if case != QUICK))],
)
def test_no_step_copies_the_memory(shape: str, tabled: bool, dtype: str) -> None:
    """Of a model in `dtype`, in tables of windows or in one."""
    spec, random = SHAPES[shape], np.random.default_rng(5)
    numbers_of: torch.dtype = getattr(torch, dtype)

    def run(name: str) -> None:
        for aligned in (False, True):
            steps(name, aligned)

    def steps(name: str, aligned: bool) -> None:
        kv, at = made(spec, name, tabled, aligned, numbers_of), np.zeros(ROWS, np.int64)
        side = Side(kv, random.permutation(BLOCKS))
        for counts in map(np.array, STEPS):
            numbers = [torch.randn(int(counts.sum()), sum(widths_of(one))).to(numbers_of) for one in spec.layers]
            side.step(counts, at, numbers)
            at = at + counts

    for name in filter(lambda one: is_kept(spec, one), KV_TYPES):
        most = largest_allocation(lambda: run(name))  # noqa: B023
        assert most < LIMIT, f"{name}: {most:,} bytes at once"
