"""Rows that want their logits changed, and logprobs: the device makes of them what a CPU's runner makes.

Where there is no GPU, all of it runs in Triton's interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from .test_runner import ROWS, GpuDriver, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.protocol.request import Rendition, Sampling, ThinkBudget
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.gpu.processors import DeviceProcessors
from actorserve.actors.worker.logits.processors import LogitsProcessors
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import make_ref, slot_of

from ..driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
SAMPLINGS = [
    Sampling(0, temperature=0.0, repetition_penalty=1.7, logprobs=3),
    Sampling(21, frequency_penalty=1.5, presence_penalty=0.5, logit_bias=[(7, 4.0), (9, 3.5), (11, -100.0)]),
    Sampling(22, temperature=1.4, allowed_token_ids=[*range(20, 40)], min_tokens=3, suppress=[*range(20, 32)]),
    Sampling(23, top_p=0.8, min_tokens=4, suppress=[*range(5, 85)], logprobs=0, logprob_token_ids=[9, 4, 300]),
    Sampling(24, presence_penalty=1.0, logprobs=20),
    Sampling(25, temperature=0.8, logit_bias=[(8, 5.0)]),
]
RENDITIONS = {  # whose masks follow from the text so far
    4: Rendition(bad_words=[[word] for word in range(300)] + [[301, 302]]),
    5: Rendition(opened=True, budget=ThinkBudget(2, [1], [70, 71])),
}


def read_rendition(ref: int) -> Rendition:
    return RENDITIONS.get(slot_of(ref), Rendition())


def with_logprobs(runner: Any) -> Logprobs:
    area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
    getattr(runner, "sampler", runner).logprobs = LogprobsWriter(area, ROWS)  # a CPU's runner samples itself
    return area


def sequences(samplings: list[Sampling], wanted: int) -> list[Sequence]:
    return [Sequence(prompt(5 + 6 * n, n), wanted, sampling) for n, sampling in enumerate(samplings)]


def steps(runner: Any, of: list[Sequence], count: int) -> Iterator[Step]:
    """One of all prompts, the others of all rows."""
    rows = np.arange(len(of))
    new = []
    for row, sequence in enumerate(of):
        size = len(sequence.prompt)
        runner.log[row, :size] = sequence.prompt
        blocks = [3 * row, 3 * row + 1, 3 * row + 2]
        new.append(NewRow.make(row, make_ref(1, row), size, size, 0, blocks, sequence.sampling))
    yield Step.make(1, 1, new, rows, [len(sequence.prompt) for sequence in of], [])
    for number in range(1, count):
        yield Step.make(1, 1 + number, [], rows, [1] * len(of), [])


def told(area: Logprobs, samplings: list[Sampling], wanted: int) -> list[list[tuple[int, float]]]:
    """The records of all tokens whose logprobs are asked for."""
    found = []
    for slot, sampling in enumerate(samplings):
        for position in range(5 + 6 * slot, 5 + 6 * slot + wanted) if sampling.logprobs >= 0 else ():
            ids = sampling.logprob_token_ids
            listed = zip(ids, area.read_listed(slot, position, len(ids)), strict=True)
            found.append([*area.read(slot, position, sampling.logprobs), *listed])
    return found


def shares(area: Logprobs, samplings: list[Sampling], wanted: int) -> list[dict[tuple[int, int], float]]:
    """The same as probabilities, of the words that have one; a word may be told twice, as drawn and as likely."""
    return [
        {(place == 0, word): math.exp(logprob) for place, (word, logprob) in enumerate(one) if logprob > -20}
        for one in told(area, samplings, wanted)
    ]


def test_rows_that_ask_draw_what_the_cpu_draws(checkpoints: Folders) -> None:
    """All that a request may ask for in one batch, masks by the host, too; rows come back after a preemption."""
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
    assert all(not 5 <= word < 85 for word in wanted[3][:4]) and min(wanted[4]) >= 300
    assert wanted[5][2:4] == [70, 71]
    assert len(set(wanted[0])) == 6, "nothing is said twice"


def test_nobody_waits_for_rows_that_ask(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """All steps of some sequences are started before the tokens of the first are looked at."""
    samplings = [*SAMPLINGS[:4], GREEDY]
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    areas = with_logprobs(cpu), with_logprobs(gpu)
    wanted = Driver(cpu, seed=5).run(sequences(samplings, 5))
    monkeypatch.setattr(gpu.sampler, "_settle", lambda: pytest.fail("waited for the host"))
    with torch.inference_mode():
        pending = [gpu.launch(step) for step in steps(gpu, sequences(samplings, 5), 5)]
        drawn = np.stack([gpu.finish(one) for one in pending])
    assert drawn.T.tolist() == wanted
    ours, theirs = (told(area, samplings, 5) for area in reversed(areas))
    assert [[number for number, _ in one] for one in ours] == [[number for number, _ in one] for one in theirs]


def test_masks_are_made_while_the_device_computes(checkpoints: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for the tokens of the step before when the step is on its way, and not before."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    cpu.read_rendition = gpu.read_rendition = lambda ref: RENDITIONS[4 + slot_of(ref)]
    wanted = Driver(cpu, seed=5).run(sequences(SAMPLINGS[4:], 4))
    done: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append(name)
            return function(*given)

        return call

    monkeypatch.setattr(gpu.model, "forward", noted("forward", gpu.model.forward))
    monkeypatch.setattr(gpu.sampler, "_settle", noted("settle", gpu.sampler._settle))
    with torch.inference_mode():
        pending = [gpu.launch(step) for step in steps(gpu, sequences(SAMPLINGS[4:], 4), 4)]
        drawn = np.stack([gpu.finish(one) for one in pending])
    assert drawn.T.tolist() == wanted and done == ["forward", "settle"] * 4


DRAWN = [
    Sampling(31, temperature=1.4, top_k=12, repetition_penalty=1.6, presence_penalty=0.7, logprobs=20,
             post_sampling_probs=True, logit_bias=[(9, 3.5), (11, -100.0)], min_tokens=2, suppress=[9, 10]),
    Sampling(32, top_p=0.6, xtc_probability=0.5, xtc_threshold=0.05, logprobs=20, post_sampling_probs=True),
    Sampling(0, temperature=0.0, repetition_penalty=1.7, logprobs=3),
    Sampling(33, temperature=0.9, typical_p=0.7, top_k=40, dynatemp_range=0.5, frequency_penalty=2.0, repeat_last_n=3,
             logprobs=5, post_sampling_probs=True, logprob_token_ids=[9, 4, 300]),
    Sampling(34, logprobs=5, post_sampling_probs=True, min_p=0.2),
    GREEDY,
]  # fmt: skip


@pytest.mark.parametrize("asking", [True, False])
def test_rows_are_told_what_they_draw_from(checkpoints: Folders, asking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside others, behind what they ask for as it was when they drew: the drawn token counts from then on. Where none
    asks for changed logits, what rows asked for that were there before does nothing; nobody waits."""
    samplings = DRAWN if asking else [one for one in DRAWN if one.is_plain()]
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config, capture=True)
    GpuDriver(gpu, seed=6).run(sequences(DRAWN[::-1], 2))
    areas = with_logprobs(cpu), with_logprobs(gpu)
    wanted = Driver(cpu, seed=5).run(sequences(samplings, 5))
    if asking:
        assert GpuDriver(gpu, budget=48, preempt=0.05, seed=6).run(sequences(samplings, 5)) == wanted
    else:
        monkeypatch.setattr(gpu.sampler, "_settle", lambda: pytest.fail("waited for the host"))
        with torch.inference_mode():
            pending = [gpu.launch(step) for step in steps(gpu, sequences(samplings, 5), 5)]
            assert np.stack([gpu.finish(one) for one in pending]).T.tolist() == wanted
    ours, theirs = (shares(area, samplings, 5) for area in reversed(areas))
    assert len(ours) == 5 * sum(one.logprobs >= 0 for one in samplings)
    for own, their in zip(ours, theirs, strict=True):
        assert own == pytest.approx(their, abs=1e-4)
    for own in ours[:5] if asking else []:  # of the first row at most 12 words are left
        best = [share for (drawn, _), share in own.items() if not drawn]
        assert 1 <= len(best) <= 12 and sum(best) == pytest.approx(1, abs=1e-3)


# fmt: off
LOOKING_BACK = [
    Sampling(0, temperature=0.0, repetition_penalty=0.2, repeat_last_n=1),  # words of the window are likelier
    Sampling(2, temperature=0.0, presence_penalty=-2.0, repeat_last_n=(1 << 31) - 1, logit_bias=[(7, 4.0)]),
    Sampling(3, temperature=0.7, repetition_penalty=1.4, frequency_penalty=1.2, repeat_last_n=7, min_tokens=3,
             suppress=[*range(20, 32)]),
]
REPEATING = [
    Sampling(4, temperature=0.0, dry_multiplier=40.0, dry_allowed_length=1, presence_penalty=-20.0, repeat_last_n=6),
    Sampling(5, temperature=0.0, dry_multiplier=3.0, dry_allowed_length=1, logit_bias=[(7, 4.0)], repeat_last_n=3,
             frequency_penalty=0.5, allowed_token_ids=[*range(5, 40)]),
]
# fmt: on


def with_texts(runner: Any) -> LogitsProcessors:
    processors: LogitsProcessors = getattr(runner, "sampler", runner).logits_processors
    processors.token_bytes = lambda: lambda token: b"%d " % token
    return processors


def test_rows_that_look_back_draw_what_the_cpu_draws(checkpoints: Folders) -> None:
    """On so many last tokens, or on repetitions; beside a row that asks for nothing; rows come back, too."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config, capture=True)
    cpu_processors, gpu_processors = with_texts(cpu), with_texts(gpu)
    samplings = [*LOOKING_BACK, *REPEATING, GREEDY]
    wanted = Driver(cpu, seed=5).run(sequences(samplings, 8))
    found = GpuDriver(gpu, budget=48, preempt=0.05, seed=6).run(sequences(samplings, 8))
    assert found == wanted and cpu_processors is not gpu_processors
    plain = Driver(cpu, seed=5).run(sequences([GREEDY] * len(samplings), 8))
    assert sum(one != other for one, other in zip(wanted, plain, strict=True)) == len(samplings) - 1
    pairs = [*zip(wanted[3], wanted[3][1:], strict=False)]
    assert len(set(wanted[3])) < len(set(pairs)) == len(pairs), "words come again, and nothing that follows them"


@pytest.mark.parametrize(("last", "waits"), [(5, False), (3, True)])
def test_a_window_longer_than_what_is_in_flight_waits_for_nothing(
    checkpoints: Folders, monkeypatch: pytest.MonkeyPatch, last: int, waits: bool
) -> None:
    """Five steps are started before the tokens of the first are looked at, or as far as the window allows."""
    samplings = [GREEDY, Sampling(1, temperature=0.0, presence_penalty=2.0, repeat_last_n=last)]
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    wanted, settle, waited = Driver(cpu, seed=5).run(sequences(samplings, 5)), gpu.sampler._settle, list[int]()

    def noted() -> None:
        waited.append(len(gpu.pending))
        settle()

    monkeypatch.setattr(gpu.sampler, "_settle", noted)
    with torch.inference_mode():
        pending = [gpu.launch(step) for step in steps(gpu, sequences(samplings, 5), 5)]
        drawn = np.stack([gpu.finish(one) for one in pending])
    assert drawn.T.tolist() == wanted and waited == ([3] if waits else [])


@pytest.mark.slow
def test_a_row_forgets_what_was_asked_before(checkpoints: Folders) -> None:
    """Sequences follow each other in the same rows, asking for other things, and for nothing."""
    config = config_for(checkpoints("qwen3", num_hidden_layers=1), block_size=16)
    cpu, gpu = make_runner(config, rows=ROWS), make_gpu_runner(config)
    cpu.read_rendition = gpu.read_rendition = read_rendition
    drivers = Driver(cpu, seed=5), GpuDriver(gpu, budget=48, seed=6)
    with_texts(cpu), with_texts(gpu)
    asked = [*SAMPLINGS, *LOOKING_BACK, *REPEATING]
    for turn in range(6):
        turned = (asked[turn * 2 :] + asked[: turn * 2])[: len(SAMPLINGS)]
        wanted, found = (driver.run(sequences(turned, 2)) for driver in drivers)
        assert found == wanted


def test_what_penalties_know_of_a_row() -> None:
    """A bit for each word of the prompt, and how often words are in the answer; of the row's own sequence only."""
    words = 70
    device = DeviceProcessors(3, words, 100, torch.device("cpu"))
    asked = Sampling(0, frequency_penalty=1.0)
    device.place(1, asked, np.array([0, 33, 69, 33]), np.array([5, 68, 5]), host=False)
    device.upload()
    device.count(torch.tensor([1]), torch.tensor([68], dtype=torch.int32), torch.tensor([-1]))
    logits = torch.zeros(2, words)
    nobody = torch.full((2,), -1)
    device.apply(logits, torch.tensor([1, 0]), nobody)
    assert {word: -value for word, value in enumerate(logits[0].tolist()) if value} == {5: 2.0, 68: 2.0}
    assert not logits[1].any()
    device.place(1, Sampling(0, repetition_penalty=2.0), np.array([2, 64]), np.array([], np.int64), host=False)
    device.upload()
    logits = torch.ones(1, words)
    device.apply(logits, torch.tensor([1]), nobody[:1])
    assert [word for word, value in enumerate(logits[0].tolist()) if value == 0.5] == [2, 64]
    assert sorted(logits[0].unique().tolist()) == [0.5, 1.0]


def test_a_window_that_one_word_fills() -> None:
    """It is in there as long as it is: the 40,000 are counted, and leave one by one."""
    device = DeviceProcessors(1, 40, 40_100, torch.device("cpu"))
    asked = Sampling(0, frequency_penalty=1.0, repeat_last_n=40_000)
    device.place(0, asked, np.full(40_000, 7), np.array([], np.int64), host=False)
    device.upload()
    row = torch.tensor([0])
    for _ in range(2):
        device.count(row, torch.tensor([3], dtype=torch.int32), torch.tensor([7]))
    logits = torch.zeros(1, 40)
    device.apply(logits, row, torch.tensor([-1]))
    assert {word: -value for word, value in enumerate(logits[0].tolist()) if value} == {3: 2.0, 7: 39_998.0}
