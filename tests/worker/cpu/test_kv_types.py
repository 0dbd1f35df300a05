"""KV memory of every type under a worker: what it answers is the same alone, in a crowd, and after deaths."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.kv import KV_TYPES
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.cpu.memory.kv_memory import kv_type, plan_memory
from actorserve.actors.worker.cpu.memory.window_tables import TabledKV
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.models.weights import load_decoder
from actorserve.actors.worker.speculative.ngram import NgramProposer
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.kernels.cpu.pool_memory import PoolMemory, QuantisedPool
from tests.support.models.checkpoints import VOCABULARY
from tests.worker.cpu.test_windows_and_states import WINDOWED, Echo, TorchBench, alone, load, run_crowd
from tests.worker.driver import Driver, Sequence, config_for, make_runner, plain_memory

MAX_TOKENS = 256
Folders = Callable[..., Path]


pytestmark = pytest.mark.usefixtures("kernels")
QUICK = [
    *(("native", kept, 0) for kept in ("float32", "int8", "fp8", "nvfp4", "turboquant_3bit_nc")),
    *(("native", "turboquant_k3v4_nc", 4), ("torch", "turboquant_3bit_nc", 4)),
]
ALL = [
    pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow)
    for case in product(("native", "torch"), KV_TYPES, (0, 4))
]
NATIVE = pytest.mark.parametrize("kernels", ["native", pytest.param("torch", marks=pytest.mark.slow)], indirect=True)


@pytest.mark.parametrize(("kernels", "kept", "drafts"), ALL, indirect=["kernels"])
def test_tokens_are_the_same_alone_and_in_a_crowd(kept: str, drafts: int, checkpoints: Folders) -> None:
    """Prompts in random chunks, over scattered blocks, rows thrown out and computed again, with and without drafts."""
    config = config_for(checkpoints("qwen3"), deterministic=True, kv_cache_dtype=kept)
    random = np.random.default_rng(3)
    prompts = [random.integers(3, VOCABULARY, size).tolist() * 2 for size in (3, 40, 70, 9)]
    expected = [
        Driver(make_runner(config), budget=200, seed=number).run([Sequence(prompt, 16)])[0]
        for number, prompt in enumerate(prompts)
    ]
    proposer = NgramProposer(1, 4) if drafts else None
    driver = Driver(make_runner(config, proposer=proposer), preempt=0.05, seed=1, drafts=drafts)
    assert kind_of(plain_memory(driver.runner)[0]) == kept
    assert driver.run([Sequence(prompt, 16) for prompt in prompts]) == expected
    assert not drafts or driver.accepted > 0


@pytest.mark.parametrize("kept", KV_TYPES)
def test_logits_are_near_those_of_float32(kept: str, checkpoints: Folders) -> None:
    """Of two chunks of a prompt, and of what is computed token by token behind them."""
    config = config_for(checkpoints("qwen3"))
    model = load_decoder(config, resolve_model(config))
    text = torch.randint(3, VOCABULARY, (90,), generator=torch.Generator().manual_seed(5))
    found = []
    for kind in (KV_TYPES["float32"], KV_TYPES[kept]):
        pools = make_pools(model.kv, 3, 32, kind)
        kv = PagedKV(model.kv, pools, 32, model.batch_invariant, model.dtype, native.current())
        table, made = np.array([2, 0, 1]), []
        for begin, end in ((0, 50), (50, 80), *((at, at + 1) for at in range(80, 90))):
            positions = torch.arange(begin, end)
            slots = torch.from_numpy(table)[positions // 32] * 32 + positions % 32
            attention = model.attention(kv, [Span(0, end - begin, begin, table, False)])
            made.append(model.logits(model.forward(text[begin:end], positions, slots, kv, attention)))
        found.append(torch.cat(made).double())
    error = float(((found[1] - found[0]) / found[0].std(-1, keepdim=True)).square().mean().sqrt())
    bound = {"float16": 1e-3, "bfloat16": 1e-2, "int8": 0.03, "fp8": 0.1}.get(kept, 0.6)
    assert error == 0 if kept == "float32" else bound / 100 < error < bound


def kind_of(memory: PoolMemory) -> str:
    """The name of what it keeps."""
    return memory.pool.kind.name if isinstance(memory.pool, QuantisedPool) else str(memory.dtype)[len("torch.") :]


@NATIVE
@pytest.mark.parametrize(
    "kept",
    [*(pytest.param(name, marks=pytest.mark.slow) for name in ("float16", "nvfp4", "turboquant_k3v4_nc")), "int8"],
)
def test_windows_tables_of_other_types(kept: str, checkpoints: Folders) -> None:
    model, config = load(checkpoints("qwen2_windows", **WINDOWED), deterministic=True, kv_cache_dtype=kept)
    bench = TorchBench(model, config, num_blocks=plan_memory(config, model, MAX_TOKENS, 0).sequence_blocks)
    kv: Any = bench.worker.runner.kv  # type: ignore[attr-defined]
    assert isinstance(kv, TabledKV) and kind_of(kv.tables[0].pools[0]) == kept
    run_crowd(bench, 3, alone(model, config))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0


@NATIVE
def test_states_beside_kv_memory_of_another_type(checkpoints: Folders) -> None:
    inner, config = load(checkpoints("qwen3"), deterministic=True, kv_cache_dtype="int8")
    model = Echo(inner)
    bench = TorchBench(model, config, num_blocks=MAX_TOKENS // 8)
    run_crowd(bench, 5, alone(model, config))
    assert bench.scheduler.prefix.hits + bench.scheduler.hits > 0


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, "float32"),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"dtype": "float16"}, "float16"),
        ({"quantization": "int8"}, "float16"),
        ({"quantization": "int8", "kv_cache_dtype": "float32"}, "float32"),
        ({"dtype": "bfloat16", "kv_cache_dtype": "int8"}, "int8"),
    ],
)
def test_auto_is_what_is_computed_in_and_less_where_weights_are(
    options: dict[str, Any], kept: str, checkpoints: Folders
) -> None:
    base = {"dtype": "auto"} if "quantization" in options else {}
    config = config_for(checkpoints("llama"), **{**base, **options})
    model = load_decoder(config, resolve_model(config))
    assert kv_type(config, model).name == kept
    per_token = plan_memory(config, model, 256, 0).block_bytes / config.block_size
    layer = model.kv.layers[0]
    assert layer is not None
    heads, own = 2 * len(model.kv.layers) * layer.kv_heads, KV_TYPES[kept].keys
    assert per_token == heads * (own.bytes_of(layer.key_dim) + own.scale_bytes)
