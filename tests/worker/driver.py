"""A stand-in for the scheduler: it makes plans for a CpuRunner out of sequences, and nothing else.

Blocks are handed out in random order, so that sequences lie in several runs; chunks are random, so that prompts and
decoding mix; now and then a sequence is thrown out and comes back, its blocks and KV forgotten, as after a preemption.
With `drafts` a row that decodes has room for some, a random number of them. A `steady` one keeps the order of its
sequences, computes what it can of each, and gives every second one blocks that follow one another while it can.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config, make_config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.memory.kv_memory import kv_type
from actorserve.actors.worker.cpu.memory.states import RowStates
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_decoder
from actorserve.actors.worker.speculative.verifier import DraftVerifier, Proposer
from actorserve.kernels.cpu.native.linear import NativeLinear, Weights
from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.pool_memory import PoolMemory
from actorserve.shm.table.table import make_ref

if TYPE_CHECKING:
    from actorserve.actors.worker.adapter.passes import Passes
    from actorserve.actors.worker.vision.encoder import MediaSource

GREEDY = Sampling(0, temperature=0.0)
LENGTH = 512  # tokens of a slot of the log


def config_for(folder: Path, **options: object) -> Config:
    """The options for a checkpoint; float32, since comparisons are exact only there."""
    return make_config({"model": str(folder), "max_model_len": LENGTH, "dtype": "float32", **options})


def sizes_of_passes(passes: Passes, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass of a decoder of transformers from now on."""
    sizes: list[int] = []
    hidden = passes.hidden

    def counted(ids: torch.Tensor, *given: Any) -> torch.Tensor:
        sizes.append(ids.numel())
        return hidden(ids, *given)

    monkeypatch.setattr(passes, "hidden", counted)
    return sizes


def make_runner(
    config: Config,
    rows: int = 8,
    blocks: int = 128,
    log: np.ndarray | None = None,
    proposer: Proposer | None = None,
    source: MediaSource | None = None,
) -> CpuRunner:
    """A runner; without a log of others', with one slot for each row. `source` has the slots' pictures."""
    info = resolve_model(config)
    model = load_decoder(config, info)
    vision = None
    if source is not None:
        from actorserve.actors.worker.vision.start import make_vision

        vision = make_vision(config, info, model, source)
    pools = make_pools(model.kv, blocks, config.block_size, kv_type(config, model))
    own = np.zeros((rows, LENGTH), np.int32) if log is None else log
    verifier = DraftVerifier(proposer, rows, own.shape[1]) if proposer else None
    kept = RowStates(model.kv.states, rows, 0, model.dtype) if model.kv.states else None
    return CpuRunner(model, pools, own, config.block_size, rows, verifier=verifier, states=kept, vision=vision)


def plain_memory(runner: CpuRunner) -> list[PoolMemory]:
    """The pools of a runner that has one block table."""
    assert isinstance(runner.kv, PagedKV)
    return runner.kv.pools


@dataclass
class Sequence:
    """What a scheduler knows of one sequence."""

    prompt: list[int]
    wanted: int
    sampling: Sampling = GREEDY
    adapter: int = 0  # the id of its adapter
    tokens: list[int] = field(default_factory=list)
    row: int = -1  # not in the batch
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def done(self) -> bool:
        return len(self.tokens) >= self.wanted


class Driver:
    """Runs sequences to their ends; the slot of a sequence is its number."""

    def __init__(
        self,
        runner: CpuRunner,
        budget: int = 32,
        preempt: float = 0.0,
        seed: int = 0,
        drafts: int = 0,
        steady: bool = False,
    ) -> None:
        self.runner = runner
        self.steady = steady
        self.budget = budget
        self.preempt = preempt
        self.drafts = drafts
        self.drafted = self.accepted = self.steps = 0
        self.random = np.random.default_rng(seed)
        self.free = self.random.permutation(self.num_blocks(runner)).tolist()
        self.rows = list(range(len(runner.computed)))
        self.step = 0
        self.grown: list[tuple[int, int, int]] = []

    def num_blocks(self, runner: CpuRunner) -> int:
        """Of its KV memory."""
        return plain_memory(runner)[0].slots // runner.block_size

    def run(self, sequences: list[Sequence]) -> list[list[int]]:
        """The tokens of each sequence."""
        assert len(sequences) <= len(self.runner.log)
        with torch.inference_mode():
            while any(not sequence.done for sequence in sequences):
                self._step(sequences)
        return [sequence.tokens for sequence in sequences]

    def cut(self, sequence: Sequence, count: int) -> int:
        """How much of that may be computed at once."""
        return count

    def _step(self, sequences: list[Sequence]) -> None:
        left = self.budget
        new: list[NewRow] = []
        self.grown = []
        planned: list[tuple[Sequence, int]] = []
        waiting = [sequence for sequence in sequences if not sequence.done]
        if not self.steady:
            self.random.shuffle(waiting)
        for sequence in waiting:
            if sequence.row >= 0 and self.random.random() < self.preempt:
                self._leave(sequence)
                continue
            if sequence.row < 0 and not (left and self.rows):
                continue
            most = self.budget if self.steady else int(self.random.integers(1, self.budget + 1))
            count = min(left, sequence.known - sequence.computed, most)
            if count == sequence.known - sequence.computed == 1 and self.drafts:
                most = min(self.drafts, sequence.wanted - len(sequence.tokens) - 1)
                count += most if self.steady else int(self.random.integers(0, most + 1))
            count = self.cut(sequence, count)
            if count:
                self._place(sequence, sequences.index(sequence), count, new)
                planned.append((sequence, count))
                left -= min(count, left)
        if not planned:  # all were thrown out: a scheduler makes no empty plans
            return
        rows, counts = [sequence.row for sequence, _ in planned], [count for _, count in planned]
        self.step += 1
        tokens = self.runner.run(Step.make(1, self.step, new, rows, counts, self.grown))
        self._account(planned, tokens.tolist())

    def _place(self, sequence: Sequence, slot: int, count: int, new: list[NewRow]) -> None:
        """Blocks for the next `count` tokens, and a row if it has none."""
        needed = -(-(sequence.computed + count) // self.runner.block_size) - len(sequence.blocks)
        first = len(sequence.blocks)
        for _ in range(needed):
            following = sequence.blocks[-1] + 1 if sequence.blocks and self.steady and slot % 2 else -1
            sequence.blocks.append(self.free.pop(self.free.index(following) if following in self.free else -1))
        added = sequence.blocks[first:]
        if sequence.row >= 0:
            self.grown += [(sequence.row, first + index, block) for index, block in enumerate(added)]
            return
        sequence.row = self.rows.pop()
        log = sequence.prompt + sequence.tokens
        self.runner.log[slot, : len(log)] = log
        place = sequence.row, make_ref(1, slot), len(sequence.prompt), len(log), 0
        new.append(NewRow.make(*place, sequence.blocks, sequence.sampling, adapter=sequence.adapter))

    def _account(self, planned: list[tuple[Sequence, int]], tokens: list[int]) -> None:
        outcome = self.runner.outcome
        drawn = outcome.drawn.tolist() if outcome else [1] * len(tokens)
        self.steps += 1
        if outcome:
            self.drafted += int(outcome.drafted.sum())
            self.accepted += sum(drawn) - len(drawn)
        for sequence, count in planned:
            if sequence.computed + count >= sequence.known:
                number = drawn.pop(0)
                sequence.computed = sequence.known + number - 1
                sequence.tokens += tokens[:number]
                del tokens[:number]
            else:
                sequence.computed += count
            if sequence.done:
                self._leave(sequence)
        assert not tokens and not drawn

    def _leave(self, sequence: Sequence) -> None:
        self.rows.append(sequence.row)
        self.free += sequence.blocks
        sequence.row, sequence.computed, sequence.blocks = -1, 0, []


def prompt_logits(runner: CpuRunner, prompt: list[int], budget: int = 200) -> torch.Tensor:
    """Those behind each token of a prompt, of which a step has up to `budget`."""
    seen: list[torch.Tensor] = []
    inner = runner.model.forward
    runner.model.forward = lambda *args: seen.append(inner(*args)) or seen[-1]  # type: ignore[method-assign, func-returns-value]
    Driver(runner, budget=budget).run([Sequence(prompt, 1)])
    with torch.inference_mode():
        return runner.model.logits(torch.cat(seen))


def rounded_by_groups(x: torch.Tensor) -> torch.Tensor:
    """What products with weights in groups leave of x: 8 bits, with a step for each 32 numbers of a row; in float64."""
    groups = torch.nn.functional.pad(x, (0, -x.shape[1] % 32)).unflatten(1, (-1, 32))
    step = groups.abs().amax(2, keepdim=True).clamp(min=1e-30) / 127
    found: torch.Tensor = ((groups / step).round().double() * step).flatten(1)[:, : x.shape[1]]
    return found


def check_grouped(model: CpuModel, floats: CpuModel, kinds: set[Weights]) -> None:
    """Products of a model of these kinds are those of the same weights as floats, with what is left of x."""
    found: set[Weights] = set()
    for own, exact in zip(model.layers, floats.layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            linear = getattr(own, name)
            assert isinstance(linear, NativeLinear)
            found.add(Weights(linear.data.kind))
            if linear.data.kind != Weights.GROUPED:
                continue
            x = torch.randn(5, linear.inputs, generator=torch.Generator().manual_seed(1))
            wanted = getattr(exact, name)(rounded_by_groups(x).float())
            torch.testing.assert_close(linear(x), wanted, rtol=1e-4, atol=1e-4)
    assert found == kinds, found
