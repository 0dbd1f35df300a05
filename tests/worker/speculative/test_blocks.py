"""Blocks of drafts: their logits are those of the published formula, whatever the memory is, and attention's too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.model.memory import kv_memory
from actorserve.actors.model.memory.kv import uniform
from actorserve.actors.model.memory.kv_memory import plan_kv_memory
from actorserve.actors.model.memory.machine import blocks_in, cpu_flags
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.speculative.blocks import BlockAttention, BlockProposer
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.shm.table.table import make_ref
from tests.support.compiler import need_compiler
from tests.support.models import heads
from tests.support.models.trained_blocks import train
from tests.support.models.trained_heads import PROMPTS

from ..driver import GREEDY, Driver, Sequence, config_for
from .block_format import BlockReference
from .test_heads import DRAFTS, prompt, recorded, steps_without_room, unpaused, with_head

Folders = Callable[..., Path]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


class Case(NamedTuple):
    """A checkpoint, and what it has to say."""

    config: Config
    reference: BlockReference


def case(checkpoints: Folders, folder: Path, size: int, **options: Any) -> Case:
    """Blocks of `size` drafts, by a layer with a window and one without."""
    target = checkpoints("llama")
    tensors = heads.dflash(target)
    kinds = ["sliding_attention", "full_attention"]
    heads.write_dflash(folder, target, tensors, layer_types=kinds, sliding_window=9, block_size=16)
    drafts = json.dumps({"method": "dflash", "model": str(folder), "num_speculative_tokens": size})
    config = config_for(target, speculative_config=drafts, max_num_seqs=8, block_size=16, **options)
    return Case(config, BlockReference(tensors, target, size, (9, None)))


def in_chunks(runner: CpuRunner, lines: list[list[int]], chunks: list[int]) -> None:
    """Rows 0 and on compute these prompts, each in so many parts, beside each other, over blocks in disorder."""
    for row, ids in enumerate(lines):
        runner.log[row, : len(ids)] = ids
    held = np.random.default_rng(3).permutation(100)[: 8 * len(lines)].reshape(len(lines), -1).tolist()
    done, new = 0, True
    for number, chunk in enumerate(chunks):
        counts = [min(chunk, len(ids) - done) for ids in lines]
        rows = [row for row, count in enumerate(counts) if count > 0]
        starts = [
            NewRow.make(row, make_ref(1, row), len(lines[row]), len(lines[row]), 0, held[row], GREEDY) for row in rows
        ]
        runner.run(Step.make(1, 1 + number, starts if new else [], rows, [counts[row] for row in rows], []))
        done, new = done + chunk, False


def logits_of_drafts(runner: CpuRunner) -> list[Tensor]:
    """Those that are made from now on."""
    assert runner.verifier is not None and isinstance(runner.verifier.proposer, BlockProposer)
    words, found = runner.verifier.proposer.drafter.words, list[Tensor]()
    logits = words.logits

    def record(normed: Tensor) -> Tensor:
        found.append(logits(normed))
        return found[-1]

    words.logits = record  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("size", [1, 4, 15])
@pytest.mark.parametrize(("kernels", "dtype"), [("torch", "auto"), ("native", "auto"), ("native", "int8")])
def test_logits_are_those_of_the_formula(
    size: int, kernels: str, dtype: str, checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of contexts of several chunks, which end within a block of memory, at its end, and at its start."""
    if kernels == "native":
        need_compiler()
        monkeypatch.setattr(native_choice(), "library", native.load(cpu_flags()))
    config, reference = case(checkpoints, tmp_path / "head", size, kv_cache_dtype=dtype)
    runner = with_head(config)
    lines = [prompt(40, 1), prompt(63, 2), prompt(64, 3)]
    in_chunks(runner, lines, [23, 9, 32])
    found = logits_of_drafts(runner)
    runner.run(Step.make(1, 9, [], [0, 1, 2], [1 + size] * 3, []))
    (logits,) = found
    known = [runner.log[row, : len(ids)].tolist() for row, ids in enumerate(lines)]
    assert runner.verifier is not None and logits.shape[0] == 3 * size
    for row, (ids, own) in enumerate(zip(known, logits.split(size), strict=True)):
        told = int(runner.verifier.tokens[row, len(ids)])
        wanted = reference.logits([*ids, told])
        near = 0.2 if dtype == "int8" else 1e-4
        torch.testing.assert_close(own, wanted, rtol=near, atol=near * float(wanted.abs().max()))


def native_choice() -> Any:
    """Where a process has its kernels."""
    from actorserve.actors.worker.cpu.layers.native import _Chosen

    return _Chosen


def test_what_drafts_are_made_in_is_taken_of_the_memory(checkpoints: Folders, tmp_path: Path) -> None:
    config, _ = case(checkpoints, tmp_path / "head", DRAFTS)
    plan = plan_kv_memory(uniform([None], 4, 2, 32, 1.0), config, 64, 4, beside=1000)
    assert plan.spare_bytes == 8 * 2 * 1000, "of eight rows, each two blocks, since drafts may begin at a block's end"
    room = 20 * plan.block_bytes
    assert blocks_in(config, plan, 64, "--x", room + plan.spare_bytes) == 20
    assert blocks_in(config, plan, 64, "--x", room) < 20


def test_more_rows_than_draft_at_once(checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_memory, "MOST_DRAFTING", 2)
    config, reference = case(checkpoints, tmp_path / "head", DRAFTS)
    runner = with_head(config)
    assert runner.verifier is not None
    unpaused(runner.verifier)
    found = recorded(runner.verifier)
    lines = [prompt(20 + 3 * n, n) for n in range(5)]
    in_chunks(runner, lines, [33])
    runner.run(Step.make(1, 9, [], [0, 1, 2, 3, 4], [1 + DRAFTS] * 5, []))
    assert len(found) == 5
    for known, drafts in found:
        expected, margin = reference.drafts(known, DRAFTS)
        assert drafts == expected or margin < 1e-3


def test_nothing_is_computed_where_drafts_are_off(checkpoints: Folders, tmp_path: Path) -> None:
    """What was put off is made up for in one pass, and the row drafts as if it had seen all."""
    config, reference = case(checkpoints, tmp_path / "head", DRAFTS)
    runner = with_head(config)
    assert runner.verifier is not None and isinstance(runner.verifier.proposer, BlockProposer)
    drafter, passes = runner.verifier.proposer.drafter, list[int]()
    read = drafter.read

    def count(states: Tensor, positions: Tensor, slots: Tensor, kv: PagedKV) -> None:
        passes.append(len(states))
        read(states, positions, slots, kv)

    drafter.read = count  # type: ignore[method-assign]
    found = recorded(runner.verifier)
    step = steps_without_room(runner, prompt(20), 30)
    assert passes == [20], "the prompt is read, since others may find it as their prefix"
    runner.run(Step.make(1, step, [], [0], [1 + DRAFTS], []))
    ((known, drafts),) = found
    assert passes[1] == 30 and len(known) == 51 and drafts == reference.drafts(known, DRAFTS)[0]


@pytest.mark.parametrize("size", [5, 33])
@pytest.mark.parametrize(("kernels", "dtype"), [("torch", "float32"), ("torch", "bfloat16"), ("native", "float32")])
def test_attention_of_blocks(size: int, kernels: str, dtype: str) -> None:
    """Of few heads and of more than the kernels take at once; each row sees its own context."""
    if kernels == "native":
        need_compiler()
    library = native.load(cpu_flags()) if kernels == "native" else None
    number, heads_, kv_heads, dim, block = getattr(torch, dtype), 8, 2, 32, 16
    torch.manual_seed(1)
    pool = torch.randn(2, 2, kv_heads, 12 * block, dim).to(number)
    kv = PagedKV(uniform([None, 20], heads_, kv_heads, dim, dim**-0.5), [pool], block, library=library)
    tables, starts = np.array([[3, 1, 7, 4, 9], [2, 8, 0, 5, 11]]), [17, 40]
    spans = [Span(n * size, size, start, tables[n], False) for n, start in enumerate(starts)]
    attention = BlockAttention(kv, spans, size, (False, True))
    queries = torch.randn(2 * size, heads_, dim).to(number)
    for layer, window in enumerate((None, 20)):
        found = attention(layer, queries).float().split(size)
        for own, start, table, rows in zip(found, starts, tables, queries.float().split(size), strict=True):
            slots = torch.cat([torch.arange(block) + int(one) * block for one in table])[: start + size]
            keys, values = pool[layer, :, :, slots].float().repeat_interleave(heads_ // kv_heads, 1)
            back = start + torch.arange(size)[:, None] - torch.arange(start + size)
            sees = torch.ones_like(back, dtype=torch.bool) if window is None else (back >= 0) & (back < window)
            scores = (rows.transpose(0, 1) @ keys.transpose(1, 2) * dim**-0.5).masked_fill(~sees, float("-inf"))
            wanted = (scores.softmax(-1) @ values).transpose(0, 1)
            near = 2e-2 if dtype == "bfloat16" else 1e-5
            torch.testing.assert_close(own, wanted, rtol=near, atol=near)


@pytest.mark.slow
def test_drafts_of_a_trained_one_are_often_right(tmp_path: Path) -> None:
    """A third of them in the model's stories, where one of 2,048 words is right by chance."""
    with torch.inference_mode(False):
        folder = train(DEMO_FOLDER, tmp_path / "head")
    drafts = json.dumps({"method": "dflash", "model": str(folder), "num_speculative_tokens": 3})
    runner = with_head(config_for(DEMO_FOLDER, speculative_config=drafts, max_num_seqs=8))
    assert runner.verifier is not None
    unpaused(runner.verifier)
    words, driver = Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json")), Driver(runner, drafts=3, steady=True)
    driver.run([Sequence(words.encode(text).ids, 80) for text in PROMPTS])
    assert driver.drafted > 200 and driver.accepted / driver.drafted > 0.2
