"""Block tables of windows on a GPU, by a real scheduler and a real runner: chunks, prefixes that are found again,
preemptions, a new scheduler and a new worker."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.info import resolve_model  # noqa: E402
from actorserve.actors.options.config import Config  # noqa: E402
from actorserve.actors.protocol.request import Sampling  # noqa: E402
from actorserve.actors.protocol.step import KVLayout, Step, StepDone  # noqa: E402
from actorserve.actors.worker.gpu.buffers import Sizes  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuModel  # noqa: E402
from actorserve.actors.worker.gpu.memory import make_pools, plan_memory  # noqa: E402
from actorserve.actors.worker.gpu.runner import GpuRunner  # noqa: E402
from tests.scheduler import engine_model  # noqa: E402
from tests.scheduler.engine_model import MAX_TOKENS, Bench  # noqa: E402
from tests.support.models.census import write_tiny  # noqa: E402
from tests.support.selection import slow  # noqa: E402

from ..adapter.test_twin import GEMMA4_26B, GEMMA4_E2B  # noqa: E402
from ..driver import Driver, Sequence, config_for, make_runner  # noqa: E402
from .test_runner import load_model, prompt  # noqa: E402

Folders = Callable[..., Path]
BLOCK, ROWS, BUDGET = 16, 4, 40
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain layers": (
        "qwen2_windows",
        {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "chunks": ("llama4", {"num_hidden_layers": 2, "no_rope_layer_interval": 2, "attention_chunk_size": 20}),
    "others": (
        "gemma3",
        {
            "num_hidden_layers": 3,
            "sliding_window": 20,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}


KINDS["by transformers"] = KINDS["others"]
DIFFERING: dict[str, tuple[str, dict[str, Any]]] = {  # by transformers, too; as published, which are made small
    "Gemma 4 26B-A4B": ("gemma4_text", GEMMA4_26B),
    "Gemma 4 E2B": ("gemma4_text", GEMMA4_E2B),
    "MiMo-V2": ("mimo_v2_flash", {}),
}


class GpuWorker:
    """A runner in place of the model of a worker."""

    def __init__(self, bench: GpuBench) -> None:
        plan, model = bench.memory, bench.model
        assert plan.windows is not None
        sizes = Sizes(ROWS, BUDGET, MAX_TOKENS, BLOCK, tables=len(plan.windows.tables), window=plan.windows.window)
        self.runner = GpuRunner(model, bench.table.as_numpy().tokens, sizes, [1, 2, 4])
        kind = model.dtype
        self.runner.pools = make_pools(model.shape, bench.blocks_made, BLOCK, kind, DEVICE, plan.windows)

    def run(self, step: Step, alive: set[int]) -> StepDone:
        with torch.inference_mode():
            return StepDone.make(step, self.runner.run(step), 0.001)


class GpuBench(Bench):
    """The bench of the scheduler's own tests, whose worker computes."""

    def __init__(self, model: GpuModel, config: Config) -> None:
        self.model = model
        self.memory = plan = plan_memory(config, model.shape, MAX_TOKENS, model.dtype)
        assert plan.windows is not None
        self.blocks_made = plan.sequence_blocks
        model.table_of = plan.windows.table_of(model.shape.kv)
        layout = KVLayout(window=plan.windows.window, window_tables=len(plan.windows.tables) - 1)
        limits = {"max_num_seqs": ROWS, "max_num_batched_tokens": BUDGET}
        super().__init__(num_blocks=self.blocks_made, layout=layout, **limits)
        self.sampling = Sampling(seed=1, temperature=0.0)

    def lose_worker(self) -> None:
        self.planned.clear()
        self.worker = GpuWorker(self)  # type: ignore[assignment]
        self.workers += 1


def load(kind: str, folder: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> GpuModel:
    if kind != "by transformers" and kind not in DIFFERING:
        return load_model(folder)
    from actorserve.actors.worker.gpu.adapted.load import load_on_gpu

    if DEVICE.type == "cpu":
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (1 << 30, 1 << 30))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))
    return load_on_gpu(config, resolve_model(config), DEVICE)


@pytest.mark.parametrize("kind", ["plain layers", *slow("others", "chunks", "by transformers", *DIFFERING)])
def test_text_over_window_tables_is_that_of_a_cpu(
    kind: str, checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One memory that is too small for all, of which tables let go and which others are given at once."""
    monkeypatch.setattr(engine_model, "BLOCK", BLOCK)
    if kind in DIFFERING:
        write_tiny(DIFFERING[kind][0], folder := tmp_path, DIFFERING[kind][1])
    else:
        folder = checkpoints(KINDS[kind][0], **KINDS[kind][1])
    sizes: dict[str, Any] = {"max_model_len": MAX_TOKENS, "max_num_seqs": ROWS, "max_num_batched_tokens": BUDGET}
    if kind in DIFFERING:
        sizes["model_impl"] = "transformers"
    config = config_for(folder, block_size=BLOCK, **sizes)
    prompts = [prompt(50, 1) + prompt(5 + 4 * n, n) for n in range(3)]
    wanted = Driver(make_runner(config, rows=ROWS)).run([Sequence(own, 3) for own in prompts])
    bench = GpuBench(load(kind, folder, config, monkeypatch), config)
    assert bench.memory.windows is not None and (bench.memory.windows.packing is not None) == (kind in DIFFERING)
    refs = [bench.submit(own, 3, ignore_eos=True) for own in prompts[:2]]
    held: list[int] = []
    for turn in range(400):
        if turn == 12:
            refs.append(bench.submit(prompts[2], 3, ignore_eos=True))
        if turn == 5:
            bench.new_scheduler()
        if not bench.plan() and not bench.work() and turn > 12:
            break
        if turn % 2:
            bench.work()
        held += [len(sequence.window_blocks) for sequence in bench.scheduler.batch.running()]
    assert [bench.answer(ref) for ref in refs] == wanted
    assert bench.scheduler.pool.free == bench.num_blocks
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0
    assert 0 < max(held) < -(-len(prompts[0]) // BLOCK) + 1, "they have let go of some"
