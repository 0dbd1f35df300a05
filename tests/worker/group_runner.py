"""What a GPU's runners of a group draw together, in Triton's interpreter: a member's part, in a process of its own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.gpu.buffers import Sizes
from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner
from actorserve.actors.worker.gpu.executor import GpuModel
from actorserve.actors.worker.gpu.layers.varied_layers import make_model
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.actors.worker.models.weights import open_weights
from actorserve.actors.worker.tensor_parallel import TensorParallelGroup
from actorserve.actors.worker.torch_import import import_rest
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.logprobs import Logprobs

from .driver import GREEDY, LENGTH, Driver, Sequence, config_for

ROWS, BLOCKS, TOKENS, BLOCK_SIZE = 4, 16, 32, 16
WANTED = 5  # tokens of each sequence
DEVICE = torch.device("cpu")
TOLD = Sampling(0, temperature=0.0, logprobs=2)  # of all members but one nobody is told
ASKS = Sampling(0, temperature=0.0, logit_bias=[(3, 2.0)])
DRAWN = Sampling(5, temperature=0.7)


class GroupDriver(Driver):
    """A GpuRunner's pools have another shape."""

    def num_blocks(self, runner: object) -> int:
        return BLOCKS


def drawn(folder: Path, group: TensorParallelGroup, drafts: int, gather: bool) -> dict[str, Any]:
    """The tokens of greedy sequences, alone and beside others, and how often which graphs drew them.

    `gather`: no step counts as one of greedy rows alone.
    """
    runner = make_runner(folder, group, drafts)
    steps: Counter[str] = Counter()
    for name in ("greedy", "plain", "changing"):
        count_steps(getattr(runner.sampler, name), name, steps)
    if gather:
        runner.sampler._is_greedy = Never()  # type: ignore[assignment]
    found, each = [], []
    for samplings in ([GREEDY] * 2, [GREEDY, TOLD], [GREEDY, ASKS], [GREEDY, DRAWN]):
        steps.clear()
        sequences = [Sequence([7 + n, 9, 7 + n, 9], WANTED, one) for n, one in enumerate(samplings)]
        found.append(GroupDriver(runner, seed=3, drafts=drafts, steady=True).run(sequences))  # type: ignore[arg-type]
        each.append(dict(steps))
    return {"tokens": found, "steps": each}


def seen(folder: Path, family: str, group: TensorParallelGroup) -> dict[str, Any]:
    """The tokens of prompts with pictures and without, and those of transformers' whole model."""
    import_rest()
    from tests.support.models.vision.reference import Reference, Source

    from .gpu.pictures import seeing

    reference, source = Reference(family, folder), Source()
    prompts = seeing.prompts_of(reference, source)
    runner = seeing.make_runner(folder, source, model=load_model(folder, group), graphs=False)
    driver = seeing.Cutting(runner, budget=40, seed=1)
    found = driver.run(driver.asked(prompts, 2))
    return {"tokens": found, "transformers": [reference.generate(prompt, 2) for prompt in prompts]}


class Never:
    """In the place of what says which rows are greedy: none."""

    def __setitem__(self, row: int, value: object) -> None:
        """It stays so."""

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(rows.shape, bool)


def count_steps(graphs: Any, name: str, steps: Counter[str]) -> None:
    step = graphs.step

    def counted(size: Any) -> None:
        steps[name] += 1
        step(size)

    graphs.step = counted


def make_runner(folder: Path, group: TensorParallelGroup, drafts: int) -> GpuRunner:
    model = load_model(folder, group)
    log, sizes = np.zeros((ROWS, LENGTH), np.int32), Sizes(ROWS, TOKENS, LENGTH, BLOCK_SIZE, drafts)
    if drafts:
        lookup = Lookup(1, 2, drafts)
        runner: GpuRunner = DraftingRunner(model, log, sizes, [1, 2, 4], lookup=lookup, adaptive=False)
    else:
        runner = GpuRunner(model, log, sizes, [1, 2, 4])
    if group.rank == 0:  # and nobody else
        runner.sampler.logprobs = LogprobsWriter(Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH), ROWS)
    runner.block_size = BLOCK_SIZE  # type: ignore[attr-defined]
    runner.pools = make_pools(model.shape, BLOCKS, BLOCK_SIZE, torch.float32, DEVICE)
    return runner


def load_model(folder: Path, group: TensorParallelGroup) -> GpuModel:
    """This member's part."""
    config = config_for(folder, block_size=BLOCK_SIZE)
    shape = read_architecture(read_json(folder / "config.json"))
    own, get = open_weights(config, resolve_model(config), shape, group)
    return make_model(own, get, torch.float32, LENGTH, DEVICE, group)
