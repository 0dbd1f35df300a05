"""Block tables of models by layers of transformers: those whose layers' heads differ, over one memory (attention, and
texts of Gemma 4 and MiMo-V2), and those that compute rows apart from one another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, LayerAttention
from actorserve.actors.model.memory.windows import WindowPlan, plan_windows
from actorserve.actors.options.config import make_config
from actorserve.actors.worker.adapter.model import Tier
from actorserve.actors.worker.cpu.batch import BatchInputs, prepare_inputs
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.cpu.memory.kv_memory import plan_memory
from actorserve.actors.worker.cpu.memory.row_blocks import RowBlocks
from actorserve.actors.worker.cpu.memory.window_tables import TabledKV
from actorserve.actors.worker.memory import make_pools
from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.paged_kv import PagedKV
from tests.scheduler import engine_model
from tests.scheduler.engine_model import MAX_TOKENS
from tests.support.models.census import write_tiny
from tests.support.models.checkpoints import VOCABULARY
from tests.support.models.greedy import greedy, reference
from tests.support.selection import slow

from ..adapter.test_twin import GEMMA4_26B, GEMMA4_E2B
from ..driver import sizes_of_passes
from .test_windows_and_states import TorchBench, load, run_crowd

pytestmark = pytest.mark.usefixtures("kernels")
BLOCK, LONGEST, ROWS, HEADS = 8, 128, 2, 4
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 4 26B-A4B": ("gemma4_text", GEMMA4_26B),
    "Gemma 4 E2B": ("gemma4_text", GEMMA4_E2B),
    "MiMo-V2": ("mimo_v2_flash", {}),
}
STATES: dict[str, dict[str, Any]] = {  # fields of their configs
    "recurrent_gemma": {"num_hidden_layers": 6},
    "lfm3": {},
    "minimax": {"sliding_window": 8},
}


def rule(kv_heads: int, key_dim: int, value_dim: int, window: int | None, source: int | None = None) -> LayerAttention:
    return LayerAttention(
        heads=HEADS,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        scale=0.3,
        window=window,
        source=source,
    )


def widths_of(layer: LayerAttention | None) -> list[int]:
    """Of a token's keys, values and queries."""
    assert layer is not None
    return [layer.kv_heads * layer.key_dim, layer.kv_heads * layer.value_dim, HEADS * layer.key_dim]


KINDS = {
    "heads of two widths": KVSpec(
        layers=(rule(2, 16, 16, 9), rule(1, 32, 32, None), *[rule(2, 16, 16, 9)] * 3, rule(2, 16, 16, 5, source=0))
    ),
    "values of another width": KVSpec(layers=(*[rule(2, 48, 32, 9)] * 3, *[rule(1, 48, 32, None)] * 2)),
}


def plan_of(spec: KVSpec, packs: bool = True) -> WindowPlan:
    config = make_config({"block_size": BLOCK, "max_num_batched_tokens": 16})
    plan = plan_windows(spec, config, LONGEST // BLOCK)
    assert plan is not None and (plan.packing is not None) == packs and len(plan.tables) > 1
    return plan


class Side:
    """Two rows of one memory, whose blocks lie in disorder."""

    def __init__(self, kv: PagedKV | TabledKV, blocks: np.ndarray) -> None:
        tables = len(kv.tables) if isinstance(kv, TabledKV) else 1
        self.kv, entries = kv, LONGEST // BLOCK
        self.rows = RowBlocks(ROWS, entries, kv.strides if isinstance(kv, TabledKV) else None)
        own = blocks[: ROWS * tables * entries].reshape(ROWS, tables, entries)
        for row in range(ROWS):
            self.rows.place(row, own[row, 0].astype(np.int32))
            places = [(row, *place) for place in enumerate(own[row].flatten())][entries:]
            self.rows.add(np.array(places, np.int32).reshape(-1, 3))

    def step(self, counts: np.ndarray, starts: np.ndarray, numbers: list[torch.Tensor]) -> list[torch.Tensor]:
        """What each layer makes of its tokens' keys, values and queries."""
        spec, total = self.kv.spec, int(counts.sum())
        made_by = AlignedAttention if self.kv.aligned else StepAttention
        attend = lambda kv, spans: made_by(kv, spans, spec.layers)  # noqa: E731
        ids = np.zeros(total, np.int64)
        made: BatchInputs = prepare_inputs(attend, self.kv, self.rows.tables, np.arange(ROWS), counts, starts, ids)
        slots, results = torch.from_numpy(made.slots), []
        attention: Any = made.attention
        for index, (layer, own) in enumerate(zip(spec.layers, numbers, strict=True)):
            assert layer is not None
            keys, values, queries = own.split(widths_of(layer), 1)
            if layer.source is None:
                self.kv.write(index, slots, *(part.unflatten(1, (layer.kv_heads, -1)) for part in (keys, values)))
            results.append(attention(index, queries.unflatten(1, (HEADS, -1)).contiguous()))
        return results


@pytest.mark.parametrize("kernels", ["native", "torch"], indirect=True)
@pytest.mark.parametrize("kept", ["float32", "bfloat16", "int8", *slow("float16", "fp8", "nvfp4", "turboquant_k8v4")])
@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_that_over_one_table(kind: str, kept: str) -> None:
    """Prompts in chunks, and rows that decode, across windows and blocks."""
    spec, random = KINDS[kind], np.random.default_rng(5)
    plan, generator = plan_of(spec), torch.Generator().manual_seed(3)
    size, kv_type = ROWS * LONGEST // BLOCK * len(plan.tables), KV_TYPES[kept]
    memory = size, BLOCK, kv_type
    rest = False, torch.float32, native.current()
    plain = PagedKV(spec, make_pools(spec, *memory), BLOCK, *rest)
    sides = [Side(kv, random.permutation(size)) for kv in (TabledKV(spec, plan, *memory, *rest), plain)]
    at = np.zeros(ROWS, np.int64)
    for counts in ([20, 1], [3, 29], *[[1, 1]] * 9, [40, 11], [1, 1]):
        own = np.array(counts)
        numbers = [torch.randn(int(own.sum()), sum(widths_of(layer)), generator=generator) for layer in spec.layers]
        ours, theirs = (side.step(own, at, numbers) for side in sides)
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=0, atol=1e-5)
        at = at + own


@pytest.mark.parametrize("kernels", ["native", *slow("torch")], indirect=True)
@pytest.mark.parametrize("name", ["lfm3", *slow("recurrent_gemma", "minimax")])
def test_text_of_rows_with_states_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Layers that see a window beside others that have states, a row at a time where prompts are computed."""
    write_tiny(name, tmp_path, **STATES[name])
    theirs = reference(tmp_path)
    model, config = load(tmp_path, model_impl="transformers", device="cpu")
    plan = plan_memory(config, model, MAX_TOKENS, 0)
    assert model.tier is Tier.ROWS and plan.windows is not None and plan.row_bytes
    bench = TorchBench(model, config, num_blocks=plan.sequence_blocks)
    run_crowd(bench, 3, lambda prompt, drawn: greedy(theirs, prompt, drawn))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0
    assert bench.scheduler.preemptions + bench.scheduler.planner.memory.preemptions > 0


@pytest.mark.parametrize("kernels", ["native"], indirect=True)
@pytest.mark.parametrize("name", ["mamba", *slow("jamba")])
def test_a_prompt_of_a_model_that_goes_on_by_token_is_one_pass(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which snapshots would cut, and each token behind the first cut is a pass."""
    write_tiny(name, tmp_path, max_position_embeddings=1024)
    monkeypatch.setattr(engine_model, "MAX_TOKENS", 1024)
    sizes = {"max_model_len": 1024, "max_num_batched_tokens": 640}
    model, config = load(tmp_path, model_impl="transformers", device="cpu", **sizes)
    assert model.tier is Tier.TOKENS
    bench = TorchBench(model, config, num_blocks=128)
    computed = sizes_of_passes(model.passes, monkeypatch)
    bench.submit(np.random.default_rng(1).integers(3, VOCABULARY, 600).tolist(), 3, ignore_eos=True)
    bench.run()
    assert computed == [600, 1, 1]


@pytest.mark.parametrize("kernels", ["native", *slow("torch")], indirect=True)
@pytest.mark.parametrize("name", ["Gemma 4 26B-A4B", *slow("Gemma 4 E2B", "MiMo-V2")])
def test_text_over_packed_blocks_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    """Beyond the window, in disorder, from one memory that is too small for all; workers and schedulers die."""
    kind, fields = MODELS[name]
    write_tiny(kind, tmp_path, fields)
    theirs = reference(tmp_path)
    model, config = load(tmp_path, model_impl="transformers", device="cpu")
    plan = plan_memory(config, model, MAX_TOKENS, 0)
    assert plan.windows is not None and plan.windows.packing is not None
    bench = TorchBench(model, config, num_blocks=plan.sequence_blocks)
    run_crowd(bench, 3, lambda prompt, drawn: greedy(theirs, prompt, drawn))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0
    assert bench.scheduler.preemptions + bench.scheduler.planner.memory.preemptions > 0
