"""Medusa's heads on a GPU: what they say is what the format says, whatever was accepted, and texts stay."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from .test_runner import DEVICE, ROWS, GpuDriver, load_model, prompt  # isort: skip  # before kernels are imported
from .test_runner import BLOCKS, TOKENS  # isort: skip

from actorserve.actors.model.checks.drafts import find_head
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.drafts.medusa import MedusaDraftingRunner, load_heads
from actorserve.actors.worker.gpu.graphs import mixed_sizes
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.models.weights import open_head
from actorserve.kernels.triton.drafts import Lookup
from tests.support.gpu.recorded_graphs import capture_steps
from tests.support.models import heads

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner
from ..speculative.head_formats import MedusaReference
from .test_drafts import SAMPLINGS

Folders = Callable[..., Path]
DRAFTS = 3


class Case(NamedTuple):
    """A checkpoint with heads, and what they have to say."""

    folder: Path
    config: Config
    reference: MedusaReference


def config_with(folder: Path, own: Path, **options: Any) -> Config:
    drafts = {"method": "medusa", "model": str(own), "num_speculative_tokens": DRAFTS}
    return config_for(folder, block_size=16, speculative_config=json.dumps(drafts), **options)


@pytest.fixture(scope="module")
def case(checkpoints: Folders, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """Two heads say the token before again, as this small model does itself behind some prompts; the last anything."""
    folder, own = checkpoints("qwen3", num_hidden_layers=1), tmp_path_factory.mktemp("medusa") / "heads"
    tensors = heads.medusa(folder, heads=DRAFTS)
    reference = MedusaReference(tensors, folder)
    for head in (0, 1):
        tensors[f"{head}.0.linear.weight"].zero_()
        tensors[f"{head}.0.linear.bias"].zero_()
        tensors[f"{head}.1.weight"] = reference.model.lm_head.weight.detach().clone()
    heads.write_medusa(own, tensors)
    return Case(folder, config_with(folder, own), reference)


def make_medusa(case: Case, graphs: bool) -> MedusaDraftingRunner:
    """With `graphs` all steps are recorded."""
    model, info = load_model(case.folder), resolve_model(case.config)
    head = find_head(case.config, info, model.shape)
    assert head is not None
    own = load_heads(head.shape, open_head(head), model, DRAFTS)  # type: ignore[arg-type]
    sizes = Sizes(ROWS, TOKENS, LENGTH, case.config.block_size, DRAFTS)
    mixed = mixed_sizes(ROWS, TOKENS // 2, True) if graphs else []
    log, lookup = np.zeros((ROWS, LENGTH), np.int32), Lookup(1, 1, DRAFTS)
    runner = MedusaDraftingRunner(model, log, sizes, [1, 2, 4], mixed=mixed, lookup=lookup, heads=own)
    runner.pools = make_pools(model.shape, BLOCKS, case.config.block_size, torch.float32, DEVICE)
    if graphs:
        capture_steps(runner)
    return runner


def sequences(wanted: int = 8) -> list[Sequence]:
    prompts = [prompt(5, 4), prompt(20, 2), prompt(9, 1), prompt(21, 3)]
    return [Sequence(tokens, wanted, sampling) for tokens, sampling in zip(prompts, SAMPLINGS, strict=True)]


@pytest.mark.parametrize("graphs", [pytest.param(True, marks=pytest.mark.slow), False])
def test_heads_change_no_text(case: Case, graphs: bool) -> None:
    """Rows with room for some and rows without, chunks beside them, rows that are taken again."""
    plain = config_for(case.folder, block_size=16)
    wanted = Driver(make_runner(plain, rows=ROWS), seed=5).run(sequences())
    driver = GpuDriver(make_medusa(case, graphs), preempt=0.03, seed=6, drafts=DRAFTS)
    assert driver.run(sequences()) == wanted
    assert 0 < driver.accepted < driver.drafted


def test_heads_say_what_their_format_says(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last token that counts, be it drawn, an accepted draft or the one behind it."""
    runner = make_medusa(case, graphs=False)
    own = [Sequence(prompt(*which), 12, GREEDY) for which in ((5, 4), (9, 6))]
    draft, seen = runner._draft, list[int]()

    def checked(size: int) -> None:
        draft(size)
        for row in runner._at.drafting[:size].tolist():
            (sequence,) = [one for one in own if one.row == row]
            ids = [*sequence.prompt, *sequence.tokens]
            words, margin = case.reference.drafts(ids, DRAFTS)
            assert margin < 1e-4 or runner._words[:, row].tolist() == words, (row, ids)
            seen.append(len(ids))

    monkeypatch.setattr(runner.drafting, "_run", checked)
    driver = GpuDriver(runner, drafts=DRAFTS, steady=True)
    driver.run(own)
    assert driver.accepted > 2 and len(seen) > 5
