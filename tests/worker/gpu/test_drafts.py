"""Drafts on a GPU: texts are those of a run without drafts, however steps are started ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .test_runner import DEVICE, ROWS, GpuDriver, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.gpu import load as gpu_load
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner
from actorserve.actors.worker.speculative.ngram import NgramProposer
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.table import make_ref
from tests.support.models.weight_formats import write

from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
DRAFTS = 3
LOOKUP = Lookup(1, 3, DRAFTS)
CIRCLE = [*[7, 8, 9, 10] * 4, 7, 8]
SAMPLINGS = [
    Sampling(0, temperature=0.0),
    Sampling(5, temperature=0.3, top_k=2),
    Sampling(0, temperature=0.0, repetition_penalty=1.4),
    Sampling(11, temperature=0.8),
]


def sequences(wanted: int = 12) -> list[Sequence]:
    prompts = [CIRCLE, [*CIRCLE, 5], CIRCLE, prompt(21, 3)]
    return [Sequence(tokens, wanted, sampling) for tokens, sampling in zip(prompts, SAMPLINGS, strict=True)]


@pytest.mark.parametrize("capture", [pytest.param(True, marks=pytest.mark.slow), False])
def test_drafts_change_no_text(checkpoints: Folders, capture: bool) -> None:
    """Rows with room for some and rows without, chunks beside them, by graphs and without."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences(10))
    runner = make_gpu_runner(config, capture=capture, graphs=capture, lookup=LOOKUP)
    driver = GpuDriver(runner, preempt=0.03, seed=6, drafts=DRAFTS)
    assert driver.run(sequences(10)) == wanted
    assert 0 < driver.accepted < driver.drafted


def test_a_model_makes_drafts(checkpoints: Folders) -> None:
    """The model itself has all right, once its keys and values are there."""
    folder = checkpoints("qwen3", num_hidden_layers=1)
    config = config_for(folder, block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS)).run([Sequence(prompt(7, 1), 6, SAMPLINGS[1])])
    driver = GpuDriver(make_gpu_runner(config, graphs=False, lookup=LOOKUP, draft=folder), drafts=DRAFTS, steady=True)
    assert driver.run([Sequence(prompt(7, 1), 6, SAMPLINGS[1])]) == wanted
    assert driver.accepted == driver.drafted == 3 and driver.steps == 3


def test_a_model_of_few_bits_makes_drafts(checkpoints: Folders, tmp_path: Path) -> None:
    """For another of the same, each with memory of its own for floats; with steps of more tokens than are multiplied as
    they are stored."""
    packed, _ = write(checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2), "awq", tmp_path)
    config = config_for(packed, block_size=16)
    exact = config_for(packed, block_size=16, quantization="none")
    wanted = Driver(make_runner(exact, rows=ROWS)).run([Sequence(prompt(70, 1), 6, SAMPLINGS[1])])
    model, draft = (gpu_load.load_model(config, resolve_model(config), DEVICE) for _ in range(2))
    runner = make_gpu_runner(config, graphs=False, lookup=LOOKUP, draft=draft, model=model)
    driver = GpuDriver(runner, drafts=DRAFTS, steady=True, budget=80)
    assert driver.run([Sequence(prompt(70, 1), 6, SAMPLINGS[1])]) == wanted
    assert driver.accepted == driver.drafted > 0


def test_a_step_of_few_rows_draws_for_none_of_the_others(checkpoints: Folders) -> None:
    """Where what is drawn has graphs of other sizes than decoding has: all rows have drafts, then three are left."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    runner = make_gpu_runner(config, lookup=LOOKUP)
    assert isinstance(runner, DraftingRunner) and runner.sampler.plain.sizes[:4] == [1, 2, 4, 8]
    runner.decoding.sizes = [1, 3]
    for row in range(4):
        tokens = [*CIRCLE[:8], 7 + row]
        runner.log[row, : len(tokens)] = tokens
        new = NewRow.make(row, make_ref(1, row), len(tokens), len(tokens), 0, [row], Sampling(row, temperature=0.7))
        run(runner, [new], [len(tokens)], [row])
    run(runner, [], [4] * 4, range(4))  # all rows have drafts
    before = runner.rows.state.drawn.clone(), runner.rows.state.last.clone()
    run(runner, [], [1] * 3, range(3))
    for was, state in zip(before, (runner.rows.state.drawn, runner.rows.state.last), strict=True):
        assert state[3] == was[3] and (state[:3] != was[:3]).any()
    assert runner.rows.state.drawn[:4].tolist() == [known - 1 for known in runner.known[:4]]


def run(runner: DraftingRunner, new: list[NewRow], counts: list[int], rows: Iterable[int]) -> None:
    with torch.inference_mode():
        runner.run(Step.make(1, 1, new, list(rows), counts))


@pytest.mark.slow
@pytest.mark.parametrize("capture", [True, False])
def test_a_models_drafts_change_no_text(checkpoints: Folders, capture: bool) -> None:
    """Of the model itself and of another one, rows that are taken again and rows that have none among them."""
    folder = checkpoints("qwen3", num_hidden_layers=1)
    config = config_for(folder, block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences(9))
    for draft in (folder, checkpoints("llama_tied")):
        runner = make_gpu_runner(config, capture, graphs=capture, lookup=LOOKUP, draft=draft)
        driver = GpuDriver(runner, preempt=0.03, seed=6, drafts=DRAFTS)
        assert driver.run(sequences(9)) == wanted and driver.drafted > 0
        assert driver.accepted < driver.drafted or draft == folder


def test_the_device_finds_what_the_cpu_finds(checkpoints: Folders) -> None:
    """Step by step the same drafts and as many right ones, also where rows give drafts up."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    runners: list[Any] = [
        make_runner(config, rows=ROWS, proposer=NgramProposer(1, 3)),
        make_gpu_runner(config, graphs=False, lookup=LOOKUP),
    ]
    counts = []
    for runner, kind in zip(runners, (Driver, GpuDriver), strict=True):
        driver: Driver = kind(runner, seed=3, drafts=DRAFTS, steady=True)
        texts = driver.run([sequences(10)[index] for index in (0, 1)])  # none asks for anything
        counts.append((texts, driver.steps, driver.drafted, driver.accepted))
    assert counts[0] == counts[1] and counts[0][3] > 0


@pytest.mark.parametrize("ahead", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_steps_are_started_before_it_is_known_what_counts(checkpoints: Folders, ahead: int) -> None:
    """As the scheduler plans them, by upper bounds. A row is taken by another sequence while steps are under way.

    What they are going to say is written into where drafts are looked for, a few words of it wrong.
    """
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences(24))
    runner = make_gpu_runner(config, graphs=ahead == 1, lookup=LOOKUP)
    assert isinstance(runner, DraftingRunner)
    own = sequences()
    started: deque[tuple[Any, list[int]]] = deque()
    texts: list[list[int]] = [[] for _ in own]
    random = np.random.default_rng(ahead)

    def new_row(row: int, slot: int) -> NewRow:
        tokens = own[slot].prompt
        runner.log[slot, : len(tokens)] = tokens
        blocks = [*range(4 * row, 4 * row + 4)]
        return NewRow.make(row, make_ref(1, slot), len(tokens), len(tokens), 0, blocks, own[slot].sampling)

    def start(new: list[NewRow], slots: list[int], counts: list[int]) -> None:
        step = Step.make(1, 1, new, [slot % 3 for slot in slots], counts)
        started.append((runner.launch(step), slots))

    def finish() -> None:
        pending, slots = started.popleft()
        tokens = runner.finish(pending).tolist()
        drawn = runner.outcome.drawn.tolist() if runner.outcome else [1] * len(slots)
        for slot, count in zip(slots, drawn, strict=True):
            texts[slot] += tokens[:count]
            del tokens[:count]
        assert not tokens

    with torch.inference_mode():
        start([new_row(slot, slot) for slot in range(3)], [0, 1, 2], [len(own[slot].prompt) for slot in range(3)])
        for slot in range(3):
            future = torch.tensor(wanted[slot][:17])
            future[[4, 10]] = 1
            runner.drafts.tokens[slot, :17] = future.to(runner.drafts.tokens)
        for turn in range(5):
            slots = [0, 1, 2]
            random.shuffle(slots)
            start([], slots, [1 + int(random.integers(0, 1 + DRAFTS)) if turn else 1 for _ in slots])
            while len(started) > ahead:
                finish()
        runner.drafts.tokens[0] = 1  # so that what is missing then is of who has lost the row, and changes nothing
        start([], [0, 1, 2], [1 + DRAFTS] * 3)
        start([new_row(0, 3)], [3, 1, 2], [len(own[3].prompt), 1 + DRAFTS, 1])  # slot 0 has lost its row
        for _ in range(3):
            start([], [3, 1, 2], [1 + DRAFTS] * 3)
        while started:
            finish()
    assert all(text == own[: len(text)] for text, own in zip(texts, wanted, strict=True))
    assert len(texts[1]) > 14 and len(texts[2]) == 11 and len(texts[3]) == 4, "drafts of who asks for nothing count"
    assert runner.known.tolist()[:3] == [len(own[slot].prompt) + len(texts[slot]) for slot in (3, 1, 2)]
