"""Rows that want their logits changed, and logprobs: the device makes of them what a CPU's runner makes.

Where there is no GPU, all of it runs in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .test_runner import ROWS, GpuDriver, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.protocol.request import Rendition, Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.gpu.processors import DeviceProcessors
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.kernels.triton.logits import MOST_BIASES
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import make_ref, slot_of

from ..driver import LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
SAMPLINGS = [
    Sampling(0, temperature=0.0, repetition_penalty=1.7, logprobs=3),
    Sampling(21, frequency_penalty=1.5, presence_penalty=0.5, logit_bias=[(7, 4.0), (9, 3.5), (11, -100.0)]),
    Sampling(22, temperature=1.4, allowed_token_ids=[*range(20, 40)], min_tokens=3, suppress=[*range(20, 32)]),
    Sampling(23, top_p=0.8, min_tokens=4, suppress=[*range(5, 85)], logprobs=0),
    Sampling(24, presence_penalty=1.0, logprobs=20),  # with words that it must not say, for which the host is needed
    Sampling(25, temperature=0.8),
]
WORDS = Rendition(bad_words=[[word] for word in range(3, 60)] + [[61, 62]])


def read_rendition(ref: int) -> Rendition:
    return WORDS if slot_of(ref) == 4 else Rendition()


def with_logprobs(runner: Any) -> Logprobs:
    area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
    runner.logprobs = LogprobsWriter(area, ROWS)
    return area


def sequences(samplings: list[Sampling], wanted: int) -> list[Sequence]:
    return [Sequence(prompt(5 + 6 * n, n), wanted, sampling) for n, sampling in enumerate(samplings)]


def told(area: Logprobs, samplings: list[Sampling], wanted: int) -> list[list[tuple[int, float]]]:
    """The records of all tokens whose logprobs are asked for."""
    found = []
    for slot, sampling in enumerate(samplings):
        for position in range(5 + 6 * slot, 5 + 6 * slot + wanted) if sampling.logprobs >= 0 else ():
            found.append(area.read(slot, position, sampling.logprobs))
    return found


def test_rows_that_ask_draw_what_the_cpu_draws(checkpoints: Folders) -> None:
    """All that a request may ask for in one batch, one row of it by the host; rows come back after a preemption."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu = make_runner(config, rows=ROWS)
    gpu = make_gpu_runner(config, capture=True)
    cpu.read_rendition = gpu.read_rendition = read_rendition
    areas = with_logprobs(cpu), with_logprobs(gpu)
    wanted = Driver(cpu, seed=5).run(sequences(SAMPLINGS, 6))
    assert GpuDriver(gpu, budget=48, preempt=0.05, seed=6).run(sequences(SAMPLINGS, 6)) == wanted
    ours, theirs = (told(area, SAMPLINGS, 6) for area in reversed(areas))
    assert len(ours) == 3 * 6
    for own, their in zip(ours, theirs, strict=True):
        assert [number for number, _ in own] == [number for number, _ in their]
        assert [logprob for _, logprob in own] == pytest.approx([logprob for _, logprob in their], abs=1e-4)
    assert set(wanted[2]) <= set(range(20, 40)) and min(wanted[2][:3]) >= 32
    assert all(not 5 <= word < 85 for word in wanted[3][:4]) and min(wanted[4]) >= 60
    assert len(set(wanted[0])) == 6, "nothing is said twice"


def test_nobody_waits_for_rows_that_ask(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of some sequences are started before the tokens of the first are looked at."""
    samplings = [*SAMPLINGS[:4], SAMPLINGS[5]]
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    areas = with_logprobs(cpu), with_logprobs(gpu)
    wanted = Driver(cpu, seed=5).run(sequences(samplings, 5))
    monkeypatch.setattr(gpu, "_settle", lambda: pytest.fail("waited for the host"))
    rows = np.arange(len(samplings))
    new = []
    for row, sequence in enumerate(sequences(samplings, 5)):
        size = len(sequence.prompt)
        gpu.log[row, :size] = sequence.prompt
        blocks = [3 * row, 3 * row + 1, 3 * row + 2]
        new.append(NewRow.make(row, make_ref(1, row), size, size, 0, blocks, sequence.sampling))
    with torch.inference_mode():
        pending = [gpu.launch(Step.make(1, 1, new, rows, [len(one.prompt) for one in sequences(samplings, 5)], []))]
        pending += [gpu.launch(Step.make(1, 2 + step, [], rows, [1] * len(rows), [])) for step in range(4)]
        drawn = np.stack([gpu.finish(one) for one in pending])
    assert drawn.T.tolist() == wanted
    ours, theirs = (told(area, samplings, 5) for area in reversed(areas))
    assert [[number for number, _ in one] for one in ours] == [[number for number, _ in one] for one in theirs]


@pytest.mark.slow
def test_a_row_forgets_what_was_asked_before(checkpoints: Folders) -> None:
    """Sequences follow each other in the same rows, asking for other things, and for nothing."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    cpu.read_rendition = gpu.read_rendition = read_rendition
    drivers = Driver(cpu, seed=5), GpuDriver(gpu, budget=48, seed=6)
    for turn in range(3):
        turned = SAMPLINGS[turn * 2 :] + SAMPLINGS[: turn * 2]
        wanted, found = (driver.run(sequences(turned, 2)) for driver in drivers)
        assert found == wanted


def test_what_the_device_has_no_room_for_goes_by_the_host() -> None:
    bias = [(word, 0.001) for word in range(MOST_BIASES + 1)]
    assert DeviceProcessors.can(Sampling(1, logit_bias=bias[1:]), Rendition())
    assert not DeviceProcessors.can(Sampling(1, logit_bias=bias), Rendition())
    assert not DeviceProcessors.can(Sampling(1), WORDS)
