"""Blocks of drafts on a GPU: they say what the format says, wherever blocks of memory end, and texts stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .test_runner import DEVICE, ROWS, GpuDriver, load_model, prompt  # isort: skip  # before kernels are imported
from .test_runner import BLOCKS, TOKENS  # isort: skip

from actorserve.actors.model.checks.drafts import find_head
from actorserve.actors.model.heads.formats import BlockShape
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.drafts.blocks import BlockDrafter, BlockDraftingRunner
from actorserve.actors.worker.gpu.executor import GpuBatch
from actorserve.actors.worker.gpu.graphs import mixed_sizes
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.models.weights import open_head
from actorserve.kernels.triton.drafts import Lookup
from actorserve.kernels.triton.quantised_kv import E4M3
from tests.support.gpu.recorded_graphs import capture_steps

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner
from ..speculative.test_blocks import Case, case
from .test_drafts import SAMPLINGS

Folders = Callable[..., Path]


def make_blocks(config: Config, graphs: bool = False, kind: torch.dtype = torch.float32) -> BlockDraftingRunner:
    """With `graphs` all steps are recorded; the model's memory is float32, that of what drafts of this `kind`."""
    info = resolve_model(config)
    model = load_model(Path(info.folder))
    found = find_head(config, info, model.shape)
    assert found is not None and isinstance(found.shape, BlockShape)
    drafts = 3
    drafter = BlockDrafter(found.shape, open_head(found), model, LENGTH, drafts)
    sizes, lookup = Sizes(ROWS, TOKENS, LENGTH, config.block_size, drafts), Lookup(1, 1, drafts)
    given = model, np.zeros((ROWS, LENGTH), np.int32), sizes, [1, 2, 4]
    mixed = mixed_sizes(ROWS, TOKENS // 2, True) if graphs else []
    runner = BlockDraftingRunner(*given, mixed=mixed, lookup=lookup, adaptive=False, drafter=drafter)
    runner.pools = make_pools(model.shape, BLOCKS, config.block_size, torch.float32, DEVICE)
    blocks = BLOCKS + runner.draft_memory.spare
    runner.draft_pools = make_pools(drafter.shape, blocks, config.block_size, kind, DEVICE)
    if graphs:
        capture_steps(runner)
    return runner


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def made(checkpoints: Folders, tmp_path: Path) -> Case:
    return case(checkpoints, tmp_path / "head", 3)


@pytest.mark.parametrize("graphs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_blocks_say_what_their_format_says(made: Case, graphs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind prompts in pieces, rejected drafts, rows that want fewer, preemptions; over blocks in disorder, of which
    some end within a block of drafts."""
    runner = make_blocks(made.config, graphs)
    own = [Sequence(prompt(*which), 6, GREEDY) for which in ((13, 1), (29, 2))]
    step, seen, unsure = runner.drafting.step, list[int](), 0

    def checked(size: int) -> None:
        nonlocal unsure
        step(size)
        drafting = zip(runner._at.drafting[:size].tolist(), runner._at.wanted[:size].tolist(), strict=True)
        for row, count in ((row, count) for row, count in drafting if row >= 0):
            (sequence,) = [one for one in own if one.row == row]
            ids = [*sequence.prompt, *sequence.tokens]
            words, margin = made.reference.drafts(ids, count)
            unsure += margin < 1e-3
            assert margin < 1e-3 or runner._words[:count, row].tolist() == words, (row, ids)
            seen.append(len(ids) % 16)

    monkeypatch.setattr(runner.drafting, "step", checked)
    GpuDriver(runner, preempt=0.05, seed=7, drafts=3).run(own)
    assert len(seen) > 3 and unsure < len(seen) / 2
    assert max(seen) > 13 or 0 in seen, "a block of drafts goes over the end of one of memory"


@pytest.mark.parametrize("way", ["", *(pytest.param(way, marks=pytest.mark.slow) for way in ("graphs", "8 bits"))])
def test_they_change_no_text(made: Case, way: str) -> None:
    """Rows that ask and rows with room for some, chunks beside them, rows that are taken again."""
    plain = config_for(Path(made.config.model), block_size=16)

    def sequences() -> list[Sequence]:
        prompts = [prompt(5, 4), prompt(20, 2), prompt(9, 1)]
        return [Sequence(tokens, 6, sampling) for tokens, sampling in zip(prompts, SAMPLINGS, strict=False)]

    wanted = Driver(make_runner(plain, rows=ROWS), seed=5).run(sequences())
    runner = make_blocks(made.config, way == "graphs", E4M3 if way == "8 bits" else torch.float32)
    driver = GpuDriver(runner, preempt=0.03, seed=6, drafts=3)
    assert driver.run(sequences()) == wanted and driver.drafted > 0


def test_many_heads_share_one_of_keys(made: Case) -> None:
    """More than attention takes at once: positions of a block are divided, and say the same."""
    from actorserve.actors.worker.gpu.drafts import blocks

    runner: Any = make_blocks(made.config)
    layer = runner.drafter.layers[1]
    assert not layer.causal
    shape, tokens = layer.shape, 2 * layer.size
    pools = runner.draft_pools[1]
    pools.keys.normal_()
    pools.values.normal_()
    inputs = runner._block_inputs.part(2, tokens)
    inputs.lengths.copy_(torch.tensor([20, 7]))
    inputs.blocks[:, :2] = torch.tensor([[3, 9], [5, 1]])
    batch = GpuBatch(inputs, 0, runner._begins[:3], runner.scratch.of(1))
    queries = torch.randn(tokens, shape.heads, shape.head_dim, device=DEVICE)
    whole = layer._attend(queries, pools, batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "LARGEST_GROUP", shape.heads // shape.kv_heads * 2)
        torch.testing.assert_close(layer._attend(queries, pools, batch), whole)
