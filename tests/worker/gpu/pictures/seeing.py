"""Runners with a tower beside them, and what drives them over prompts with pictures, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..test_runner import GpuDriver, make_gpu_runner  # isort: skip  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.vision.adapted import ON_GPU
from actorserve.actors.protocol.step import Step
from actorserve.actors.worker.gpu.adapted.load import load_on_gpu
from actorserve.actors.worker.gpu.executor import Hidden
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.vision.start import load_vision
from tests.support.models.vision.reference import Prompt, Reference, Source, assert_same, picture

from ...driver import Sequence, config_for
from .. import test_runner

TEXT = [*range(3, 22)]
ANSWER = 3
Made = Callable[[str], tuple[Reference, Path]]


def make_runner(folder: Path, source: Source, **given: Any) -> GpuRunner:
    """As in test_runner, with a tower beside it."""
    device = test_runner.DEVICE
    config = config_for(folder, device="cpu", block_size=16)  # that of the tower is said below
    info = resolve_model(config)
    vision = load_vision(config, info, torch.float32, source, device)
    assert vision is not None
    if info.architecture in ON_GPU:  # by layers of transformers, which are in no graph
        given = {**given, "model": load_on_gpu(config, info, device), "graphs": False}
    return make_gpu_runner(config, vision=vision, **given)


class Cutting(GpuDriver):
    """Cuts no picture whose tokens see one another."""

    def __init__(self, runner: GpuRunner, **options: Any) -> None:
        super().__init__(runner, **options)
        self.spans: dict[int, list[tuple[int, int]]] = {}  # of pictures, by prompts
        self.cuts = self.preempted = 0  # pictures that are cut, rows that come back
        assert runner.pictures is not None
        self.vision = runner.pictures.vision

    def asked(self, prompts: list[Prompt], wanted: int) -> list[Sequence]:
        found = [Sequence(prompt.ids, wanted) for prompt in prompts]
        for sequence, prompt in zip(found, prompts, strict=True):
            self.spans[id(sequence.prompt)] = [(start, start + length) for _, start, length, _ in prompt.pictures]
        return found

    def _leave(self, sequence: Sequence) -> None:
        self.preempted += not sequence.done
        super()._leave(sequence)

    def cut(self, sequence: Sequence, count: int) -> int:
        end = sequence.computed + count
        inside = [span for span in self.spans.get(id(sequence.prompt), []) if span[0] < end < span[1]]
        if not inside:
            return count
        self.cuts += 1
        return count if not self.vision.spec.whole_pictures else inside[0][1] - sequence.computed


def record(
    runner: GpuRunner,
    logits: dict[int, dict[int, torch.Tensor]],
    besides: Callable[[GpuRunner, Any], None] = lambda runner, work: None,
) -> None:
    """Take down those of all positions, by slot; `besides` is told of each step."""
    forward, launch, model = runner._forward, runner.launch, runner.model
    made: list[torch.Tensor] = []

    def computed(batch: Any) -> Hidden:
        hidden = forward(batch)
        made.append(model.logits(model.norm(Hidden(*(part.clone() for part in hidden)))).cpu())
        return hidden

    def started(step: Step) -> Any:
        made.clear()
        pending = launch(step)
        work, token = pending.work, 0
        for row, count, first in zip(work.rows.tolist(), work.counts.tolist(), work.firsts.tolist(), strict=True):
            own = logits.setdefault(int(runner.slot[row]), {})
            own |= {first + at: made[0][token + at] for at in range(count)}
            token += count
        besides(runner, work)
        return pending

    runner._forward, runner.launch = computed, started  # type: ignore[method-assign]


class Seeing(Cutting):
    """Takes down logits of all positions, by slot."""

    def __init__(self, runner: GpuRunner, **options: Any) -> None:
        super().__init__(runner, **options)
        self.logits: dict[int, dict[int, torch.Tensor]] = {}
        self.mixed = 0  # steps of rows with pictures and others
        record(runner, self.logits, self._count)

    def _count(self, runner: GpuRunner, work: Any) -> None:
        sees = [bool(self.vision.encoder.source.items(int(runner.slot[row]), 1)) for row in work.rows.tolist()]
        self.mixed += any(sees) and not all(sees)


def prompts_of(reference: Reference, source: Source) -> list[Prompt]:
    """Two pictures, a text, one picture."""
    prompts = [
        reference.prompt(TEXT[:5], picture(0), TEXT[5:9], picture(1, 24, 32), TEXT[:7]),
        reference.prompt(TEXT[:15]),
        reference.prompt(picture(2, 24, 24), TEXT[:4]),
    ]
    source.add(0, prompts[0])
    source.add(2, prompts[2])
    return prompts


def run(made: Made, family: str, preempt: float = 0.0, alone: bool = False, **given: Any) -> Seeing:
    """Compared with transformers; `alone`: the first of the prompts, at once."""
    reference, folder = made(family)
    source = Source()
    prompts = prompts_of(reference, source)[: 1 if alone else None]
    budget = 1000 if alone else 20
    driver = Seeing(make_runner(folder, source, **given), budget=budget, preempt=preempt, seed=3)
    found = driver.run(driver.asked(prompts, ANSWER))
    for slot, (prompt, tokens) in enumerate(zip(prompts, found, strict=True)):
        assert_same(reference, prompt, tokens, driver.logits[slot])
    assert alone or driver.mixed
    return driver
