"""Block tables of windows, and states with their snapshots, by a real scheduler and a real runner: chunked prompts,
prefixes that are found again, preemption, a new worker and a new scheduler, all at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.kv import StateSpec
from actorserve.actors.model.memory.windows import MARGIN
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.step import Step, StepDone
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.memory.kv_memory import WorkerMemory, make_memory, plan_memory
from actorserve.actors.worker.cpu.memory.states import RowStates, StepStates
from actorserve.actors.worker.cpu.memory.window_tables import TabledKV
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.models.weights import load_decoder
from tests.scheduler.engine_model import BLOCK, MAX_TOKENS, Bench
from tests.support.models.checkpoints import VOCABULARY
from tests.support.models.greedy import greedy, reference
from tests.support.selection import slow

from ..driver import config_for

Folders = Callable[..., Path]
ROWS, BUDGET = 5, 24
GEMMA3: dict[str, Any] = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 3}
WINDOWED: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 12, "max_window_layers": 1}


class TorchWorker:
    """A runner in place of the model of a worker."""

    def __init__(self, bench: TorchBench) -> None:
        self.memory = bench.make_memory()
        log = bench.table.as_numpy().tokens
        self.runner = CpuRunner(bench.model, self.memory.blocks, log, BLOCK, ROWS, states=self.memory.states)
        self.restored = self.saved = 0

    def run(self, step: Step, alive: set[int]) -> StepDone:
        self.restored += sum(new.snapshot >= 0 for new in step.new_rows)
        self.saved += len(step.saves)
        with torch.inference_mode():
            return StepDone.make(step, self.runner.run(step), 0.001)


class TorchBench(Bench):
    """The bench of the scheduler's own tests, whose worker computes."""

    def __init__(self, model: Any, config: Config, num_blocks: int, snapshots: int = 6) -> None:
        self.model, self.config, self._snapshots = model, config, snapshots
        self.plan_of_memory = plan_memory(config, model, config.max_model_len or 0, 0)
        self.blocks_made = num_blocks
        layout, budget = self.make_memory().layout, config.max_num_batched_tokens
        super().__init__(num_blocks=num_blocks, layout=layout, max_num_seqs=ROWS, max_num_batched_tokens=budget)
        self.sampling = Sampling(seed=1, temperature=0.0)

    def make_memory(self) -> WorkerMemory:
        """With room for as many snapshots as the test wants."""
        room = self.plan_of_memory.row_bytes * (ROWS + 4 * self._snapshots)
        return make_memory(self.config, self.model, self.plan_of_memory, self.blocks_made, room)

    def lose_worker(self) -> None:
        self.planned.clear()
        self.worker = TorchWorker(self)  # type: ignore[assignment]
        self.workers += 1


def options(folder: Path, **changes: object) -> Config:
    sizes = {"max_model_len": MAX_TOKENS, "max_num_seqs": ROWS, "max_num_batched_tokens": BUDGET, "block_size": BLOCK}
    return config_for(folder, **(sizes | changes))


def load(folder: Path, **changes: object) -> tuple[Any, Config]:
    config = options(folder, **changes)
    return load_decoder(config, resolve_model(config)), config


def run_crowd(
    bench: TorchBench, seed: int, answer: Callable[[list[int], list[int]], list[int]], deaths: bool = True
) -> None:
    """Prompts that begin alike come while others run; the worker and the scheduler die now and then.

    `answer` says what is drawn behind a prompt and behind each token but the last of what was drawn.
    """
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(110)]
    asked: dict[int, tuple[list[int], int]] = {}
    for turn in range(60):
        if turn % 3 == 0:
            prompt = shared[: rng.randrange(20, 110)] + [
                rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 9))
            ]
            count = rng.randrange(2, 30)
            asked[bench.submit(prompt, count, ignore_eos=True)] = prompt, count
        if deaths and rng.random() < 0.06:
            bench.kv.prove()
            rng.choice([bench.new_scheduler, bench.new_worker])()
        for _ in range(rng.randrange(3)):
            bench.plan()
        for _ in range(rng.randrange(3)):
            bench.work()
    bench.run()
    for ref, (prompt, count) in asked.items():
        drawn = bench.answer(ref)
        assert len(drawn) == count and drawn == answer(prompt, drawn)
    assert bench.scheduler.pool.free == bench.num_blocks


# --- windows ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shape", "changes"),
    [
        *slow(("qwen2_windows", WINDOWED, {})),
        ("qwen2_windows", {**WINDOWED, "num_hidden_layers": 4, "max_window_layers": 2}, {"deterministic": True}),
        *slow(("qwen2_windows", {**WINDOWED, "num_hidden_layers": 4, "max_window_layers": 0}, {})),  # no layer sees all
        ("qwen2_windows", WINDOWED, {"model_impl": "transformers", "device": "cpu"}),
        pytest.param("gemma3", GEMMA3, {}, marks=pytest.mark.slow),
        pytest.param("gemma3", GEMMA3, {"model_impl": "transformers", "device": "cpu"}, marks=pytest.mark.slow),
    ],
)
def test_text_over_window_tables_is_that_of_transformers(
    kind: str, shape: dict[str, Any], changes: dict[str, object], checkpoints: Folders
) -> None:
    """Each table's blocks in disorder, from one memory that is too small for all."""
    folder = checkpoints(kind, **shape)
    theirs = reference(folder)
    model, config = load(folder, **changes)
    bench = TorchBench(model, config, num_blocks=plan_memory(config, model, MAX_TOKENS, 0).sequence_blocks)
    assert isinstance(bench.worker.runner.kv, TabledKV)  # type: ignore[attr-defined]
    run_crowd(bench, 3, lambda prompt, drawn: greedy(theirs, prompt, drawn))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0
    assert bench.scheduler.preemptions + bench.scheduler.planner.memory.preemptions > 0


def test_a_sequence_holds_no_more_than_its_windows(checkpoints: Folders) -> None:
    model, config = load(checkpoints("qwen2_windows", **WINDOWED))
    bench = TorchBench(model, config, num_blocks=96)
    bench.submit([5] * 200, 40, ignore_eos=True)
    most = 0
    while bench.plan() or bench.work():
        for sequence in bench.scheduler.batch.running():
            if bench.scheduler.batch.num_confirmed_tokens[sequence.row] > 200:
                most = max(most, len(sequence.window_blocks))
    assert 0 < most <= -(-(12 + MARGIN) // BLOCK) + 2


# --- states ----------------------------------------------------------------------------------------------------------


class Echo:
    """A model that remembers: what it hears of each token dies away, and is added to the last layer's output.

    As slow and plain as it can be: one token after another, row by row.
    """

    def __init__(self, inner: CpuModel) -> None:
        self._inner = inner
        width = inner.shape.hidden_size
        self.kv = msgspec.structs.replace(inner.kv, states=(StateSpec(layer=0, name="echo", shape=(width,)),))
        self.shape, self.dtype, self.batch_invariant = inner.shape, inner.dtype, inner.batch_invariant
        self.quantised, self.precision = inner.quantised, inner.precision
        self.logits, self.attention, self.vocab_size = inner.logits, inner.attention, inner.vocab_size

    def forward(
        self, ids: Tensor, positions: Tensor, slots: Tensor, kv: Any, attention: Any, states: StepStates
    ) -> Tensor:
        x = self._inner.forward(ids, positions, slots, kv, attention)
        heard = self._inner.embeddings[ids]
        firsts = [span.first for span in attention.spans]
        echo = states.states.get(0, "echo", states.rows)
        echo[torch.from_numpy(states.fresh)] = 0
        for row, first in enumerate(firsts):
            end = firsts[row + 1] if row + 1 < len(firsts) else len(ids)
            for token in range(first, end):
                echo[row] = 0.9 * echo[row] + heard[token]
                x[token] += echo[row]
        states.states.put(0, "echo", states.rows, echo)
        return x


def alone(model: Any, config: Config) -> Callable[[list[int], list[int]], list[int]]:
    """What it answers, as many tokens, when nothing else runs, in one chunk, and nothing is found again."""

    def answer(prompt: list[int], drawn: list[int]) -> list[int]:
        bench = TorchBench(model, msgspec.structs.replace(config, enable_prefix_caching=False), 2 * MAX_TOKENS // BLOCK)
        bench.scheduler.planner.budget = MAX_TOKENS
        ref = bench.submit(prompt, len(drawn), ignore_eos=True)
        bench.run()
        return bench.answer(ref)

    return answer


def test_states_go_on_wherever_their_rows_do(checkpoints: Folders) -> None:
    inner, config = load(checkpoints("qwen3"))
    model = Echo(inner)
    bench = TorchBench(model, config, num_blocks=MAX_TOKENS // BLOCK)
    run_crowd(bench, 5, alone(model, config))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0
    assert bench.scheduler.preemptions + bench.scheduler.planner.memory.preemptions > 0


def test_a_prompt_is_found_again_with_its_states(checkpoints: Folders) -> None:
    """Up to its last whole block, at which a step ended; by a scheduler's successor as well."""
    inner, config = load(checkpoints("qwen3"))
    model = Echo(inner)
    bench = TorchBench(model, config, num_blocks=96)
    prompt = [7 + number % 90 for number in range(61)]
    expected = alone(model, config)(prompt, [0] * 4)
    for _ in range(2):
        ref = bench.submit(prompt, 4, ignore_eos=True)
        bench.run()
        assert bench.answer(ref) == expected
    assert bench.table.cached(ref) == 56 and bench.worker.restored == 1
    assert bench.new_scheduler()
    again = bench.submit(prompt, 4, ignore_eos=True)
    bench.run()
    assert bench.answer(again) == expected and bench.table.cached(again) == 56 and bench.worker.restored == 2


def test_a_fresh_row_has_no_states_and_one_elsewhere_is_refused() -> None:
    states = RowStates([StateSpec(layer=1, name="s", shape=(2, 3), dtype="float32")], 2, 1, torch.float16)
    rows = np.array([0, 1])
    states.put(1, "s", rows, torch.ones(2, 2, 3))
    assert StepStates.of(states, rows, [0, 0]).fresh.tolist() == [True, True]
    states.length[rows] = 8, 5
    states.save(0, 0)
    states.begin(1, 8, 0)
    assert StepStates.of(states, rows, [8, 8]).fresh.tolist() == [False, False]
    states.begin(0, 0, -1)
    assert states.length.tolist() == [0, 8, 8]
    with pytest.raises(ValueError, match="go on at token 9, and its states stand at 8"):
        states.begin(1, 9, 0)
    with pytest.raises(ValueError, match=r"stand at tokens \[0, 8\]"):
        StepStates.of(states, rows, [0, 7])


# --- plans of memory -------------------------------------------------------------------------------------------------


def test_states_that_leave_no_room_and_drafts_are_named(checkpoints: Folders) -> None:
    inner, config = load(checkpoints("qwen3"))
    model = Echo(inner)
    plan = plan_memory(config, model, MAX_TOKENS, 0)
    with pytest.raises(ConfigError, match="--max-num-seqs: the states of 5 sequences"):
        plan.snapshots(config, plan.row_bytes * 5)
    drafting = msgspec.structs.replace(config, speculative_config='{"method": "ngram"}')
    with pytest.raises(ConfigError, match="--speculative-config: the model keeps states"):
        plan_memory(drafting, model, MAX_TOKENS, 0)
