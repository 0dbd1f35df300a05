"""KV memory on a GPU of models whose layers' heads differ: as large as it is planned, shared by block tables without
one layer's tokens in the place of another's, and read as memory of each layer's own is."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.memory.kv import KVSpec, LayerAttention  # noqa: E402
from actorserve.actors.model.memory.kv_memory import plan_kv_memory  # noqa: E402
from actorserve.actors.model.memory.windows import WindowPlan, plan_windows  # noqa: E402
from actorserve.actors.options.config import make_config  # noqa: E402
from actorserve.actors.worker.gpu.adapted.shape import AdaptedShape, shape_of  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuBatch, attend  # noqa: E402
from actorserve.actors.worker.gpu.memory import kv_block_bytes, make_pools, plan_memory, pool_bytes  # noqa: E402
from actorserve.kernels.pages import ByHead, Scoring  # noqa: E402
from actorserve.kernels.triton.attention.tiles import Scratch  # noqa: E402
from actorserve.kernels.triton.quantised_kv import E4M3  # noqa: E402
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write  # noqa: E402
from actorserve.kernels.triton.step_inputs import StepInputs  # noqa: E402

from ....model.memory.test_windows import MODELS  # noqa: E402

BLOCK, LONGEST, ROWS, HEADS, WINDOW = 16, 160, 2, 4, 9


def rule(kv_heads: int, key_dim: int, value_dim: int, window: int | None = None) -> LayerAttention:
    return LayerAttention(
        heads=HEADS, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, scale=0.3, window=window
    )


KINDS = {
    "heads of two widths": (*[rule(2, 16, 16, WINDOW)] * 3, rule(1, 32, 32)),
    "values of another width": (rule(2, 48, 32, WINDOW), *[rule(1, 48, 32)] * 2, *[rule(2, 48, 32, WINDOW)] * 2),
}


def planned(layers: tuple[LayerAttention, ...]) -> tuple[AdaptedShape, WindowPlan]:
    shape = shape_of(KVSpec(layers=layers), 64, 99)
    config = make_config({"block_size": BLOCK, "max_num_batched_tokens": 16})
    plan = plan_windows(shape.kv, config, LONGEST // BLOCK)
    assert plan is not None and plan.packing is not None and len(plan.tables) > 1
    return shape, plan


# --- how much it is, and what lies where ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.bfloat16, E4M3])
@pytest.mark.parametrize("name", MODELS)
def test_memory_is_as_large_as_it_is_planned(name: str, kind: torch.dtype) -> None:
    """Of published models; in bfloat16 a sequence takes what it takes on a CPU."""
    kv, config = MODELS[name].kv(), make_config({})
    shape = shape_of(kv, 64, 99)
    plan = plan_memory(config, shape, 32_768, kind)
    assert plan.windows is not None and plan.windows.packing is not None
    if kind == torch.bfloat16:
        assert plan == plan_kv_memory(kv, config, 32_768, 2)
    given: list[int] = []

    def take(size: int) -> torch.Tensor:
        given.append(size)
        return torch.zeros(size, dtype=torch.uint8)

    pools = make_pools(shape, 3, config.block_size, kind, DEVICE, plan.windows, take)
    assert sum(given) == 3 * plan.block_bytes and len(pools) == len(kv.layers)
    for pool, layer in zip(pools, kv.layers, strict=True):
        assert layer is not None
        sizes = 3, layer.kv_heads, config.block_size
        assert pool.keys.shape == (*sizes, layer.key_dim) and pool.values.shape == (*sizes, layer.value_dim)
        assert layer.source is None or pool is pools[layer.source]
    given.clear()
    make_pools(shape, 3, config.block_size, kind, DEVICE, take=take)
    assert given == pool_bytes(shape, 3, config.block_size, kind)
    assert sum(given) == 3 * kv_block_bytes(shape, config.block_size, kind)


@pytest.mark.parametrize("kind", [torch.float32, E4M3])
@pytest.mark.parametrize("name", KINDS)
def test_no_block_of_a_table_has_two_layers_in_one_place(name: str, kind: torch.dtype) -> None:
    """Nor does what is written to one block reach another, whichever table it is in."""
    shape, plan = planned(KINDS[name])
    pools = make_pools(shape, len(plan.tables) + 1, BLOCK, kind, DEVICE, plan)
    parts = [
        (part, block, 1 + 2 * layer + number % 2)  # which 8 bits hold
        for block, table in enumerate(plan.tables)
        for layer in table
        for number, part in enumerate((*pools[layer][:2], *(pools[layer].scales or ())))
        if part is not None
    ]
    for part, block, value in parts:
        part[block] = value
    for part, block, value in parts:
        assert (part[block].float() == value).all() and not part[-1].float().any()
    assert len(parts) == len(pools) * (4 if kind == E4M3 else 2)


# --- attention over it ------------------------------------------------------------------------------------------------


class Side:
    """Two rows, whose blocks lie in disorder, in tables or in one for all."""

    def __init__(self, shape: AdaptedShape, plan: WindowPlan | None, kind: torch.dtype, seed: int) -> None:
        tables, width = 1 if plan is None else len(plan.tables), LONGEST // BLOCK
        count = ROWS * tables * width
        self.shape, self.tables, self.width = shape, tables, width
        self.table_of = [0] * len(shape.kv.layers) if plan is None else plan.table_of(shape.kv)
        self.pools = make_pools(shape, count, BLOCK, kind, DEVICE, plan)
        own = np.random.default_rng(seed).permutation(count).astype(np.int32)
        self.blocks = torch.from_numpy(own).view(ROWS, tables * width).to(DEVICE)

    def step(self, counts: list[int], done: list[int], numbers: list[torch.Tensor]) -> list[torch.Tensor]:
        """What each layer makes of its tokens' queries, keys and values; rows of one token come first."""
        ends = [at + count for at, count in zip(done, counts, strict=True)]
        owners = torch.tensor([row for row, count in enumerate(counts) for _ in range(count)], device=DEVICE)
        pairs = zip(done, ends, strict=True)
        positions = torch.cat([torch.arange(*pair) for pair in pairs]).to(DEVICE)
        seen = self.blocks.clone()
        for table, row in ((table, row) for table in range(1, self.tables) for row in range(ROWS)):
            behind = max(0, done[row] - WINDOW) // BLOCK  # what they have let go of, others have
            seen[row, table * self.width : table * self.width + behind] = 0
        at, slot = positions // BLOCK, positions % BLOCK
        slots = [self.blocks[owners, table * self.width + at] * BLOCK + slot for table in range(self.tables)]
        lengths = torch.tensor(ends, dtype=torch.int32, device=DEVICE)
        taken = torch.stack(slots).long() if self.tables > 1 else slots[0].long()
        inputs = StepInputs(positions, positions, taken, lengths, seen)
        decoding = counts.index(next((count for count in counts if count > 1), counts[0])) if max(counts) > 1 else ROWS
        starts = torch.tensor(np.cumsum([0, *counts])[decoding:], dtype=torch.int32, device=DEVICE)
        scratch = Scratch.of(ROWS, HEADS, 48, 2, DEVICE)
        batch = GpuBatch(inputs, decoding, starts if decoding < ROWS else None, scratch)
        found = zip(self.shape.kv.layers, batch.by_layer(self.table_of), self.pools, numbers, strict=True)
        return [self._layer(layer, own, pools, made) for layer, own, pools, made in found if layer is not None]

    def _layer(self, layer: LayerAttention, batch: GpuBatch, pools: Pools, numbers: torch.Tensor) -> torch.Tensor:
        queries, keys, values = numbers.split(widths_of(layer), 1)
        q, k, v = (
            part.unflatten(1, (heads, -1))
            for part, heads in ((queries.clone(), HEADS), (keys, layer.kv_heads), (values, layer.kv_heads))
        )
        still = RotaryTables(torch.ones(1, 1, device=DEVICE), torch.zeros(1, 1, device=DEVICE))
        rotate_and_write(q, k, v, torch.zeros_like(batch.inputs.positions), batch.inputs.slots, still, pools)
        batch = batch._replace(scratch=batch.scratch.of_heads(HEADS, layer.value_dim))
        return attend(q, pools, batch, Scoring(layer.scale, layer.window), ByHead())


def widths_of(layer: LayerAttention) -> list[int]:
    """Of a token's queries, keys and values."""
    return [HEADS * layer.key_dim, layer.kv_heads * layer.key_dim, layer.kv_heads * layer.value_dim]


@pytest.mark.parametrize("kind", [torch.float32, E4M3])
@pytest.mark.parametrize("name", KINDS)
def test_attention_is_that_over_memory_of_each_layers_own(name: str, kind: torch.dtype) -> None:
    """Prompts in chunks, and rows that decode, across windows and blocks that were let go."""
    shape, plan = planned(KINDS[name])
    sides = [Side(shape, plan, kind, seed=5), Side(shape, None, kind, seed=6)]
    layers = [layer for layer in shape.kv.layers if layer is not None]
    generator, done = torch.Generator().manual_seed(3), [0, 0]
    for counts in ([1, 20], [40, 33], [1, 1], [1, 30], [1, 1]):
        numbers = [torch.randn(sum(counts), sum(widths_of(layer)), generator=generator) for layer in layers]
        ours, theirs = (side.step(counts, done, [own.to(DEVICE) for own in numbers]) for side in sides)
        for one, other in zip(ours, theirs, strict=True):
            assert one.abs().max() > 0 and torch.allclose(one, other, rtol=0, atol=1e-5)
        done = [at + count for at, count in zip(done, counts, strict=True)]
