"""Which kernels Triton compiles, seen without a GPU: its own just-in-time compiler runs, over a driver that stands in
for a device and a compiler that makes nothing. So this counts what would be compiled, and computes nothing.

Another process does it, because this one may have set TRITON_INTERPRET, under which nothing is compiled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.telemetry.gauges import WorkerGauge
from actorserve.actors.worker import logprobs
from actorserve.shm.table.logprobs import Logprobs
from tests.support.gpu.no_device import EMPTY, Unwritten, compile_nothing
from tests.support.warm import run_module

from ...driver import GREEDY, Sequence

ROOT = Path(__file__).parents[4]
WINDOWS = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}
VARIED = {
    "architectures": ["Gemma3ForCausalLM"],
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"],
}
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
LATENTS = {
    "architectures": ["DeepseekV3ForCausalLM"],
    **{"q_lora_rank": 40, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20},
    **{"moe_intermediate_size": 48, "n_routed_experts": 12, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2},
    **{"n_shared_experts": 1, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
}
CHOSEN = LATENTS | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    **{"index_topk": 128, "index_n_heads": 4, "index_head_dim": 32, "indexer_types": ["full", "shared"]},
}
CHUNKS = {
    "architectures": ["Llama4ForCausalLM"],
    **{"num_local_experts": 5, "num_experts_per_tok": 1, "intermediate_size_mlp": 96, "interleave_moe_layer_step": 2},
    **{"attention_chunk_size": 64, "no_rope_layers": [1, 0]},
}
SETUPS: dict[str, dict[str, Any]] = {  # tables of a width that is no multiple of 4; layers of two kinds
    "plain": {"rows": 24, "length": 1100, "block_size": 32, "tokens": 128, "changes": {}, "graphs": True},
    "windows": {"rows": 7, "length": 1030, "block_size": 16, "tokens": 40, "changes": WINDOWS, "graphs": True},
    "eager": {"rows": 24, "length": 1100, "block_size": 16, "tokens": 128, "changes": {}, "graphs": False},
    "varied": {"rows": 3, "length": 1030, "block_size": 16, "tokens": 40, "changes": VARIED, "graphs": True},
    "latents": {"rows": 3, "length": 1030, "block_size": 16, "tokens": 40, "changes": LATENTS, "graphs": True},
    "chosen": {"rows": 3, "length": 1030, "block_size": 16, "tokens": 40, "changes": CHOSEN, "graphs": True},
    "chosen in parts": {"rows": 3, "length": 1030, "block_size": 16, "tokens": 40, "changes": CHOSEN, "graphs": True},
    "chunks": {"rows": 3, "length": 1030, "block_size": 16, "tokens": 40, "changes": CHUNKS, "graphs": True},
    "fused": {"rows": 12, "length": 1030, "block_size": 32, "tokens": 40, "changes": {}, "graphs": True},
    "experts": {"rows": 19, "length": 1030, "block_size": 16, "tokens": 300, "changes": EXPERTS, "graphs": False},
    "adapters": {"rows": 9, "length": 1100, "block_size": 16, "tokens": 300, "changes": {}, "graphs": True},
    "drafts": {"rows": 9, "length": 1100, "block_size": 16, "tokens": 128, "changes": {}, "graphs": True},
    "stored": {"rows": 19, "length": 1100, "block_size": 16, "tokens": 300, "changes": {}, "graphs": True},
    "group": {"rows": 9, "length": 1030, "block_size": 16, "tokens": 40, "changes": {}, "graphs": True},
    "float32 group": {"rows": 9, "length": 1030, "block_size": 16, "tokens": 40, "changes": {}, "graphs": True},
}
GROUPS = ("group", "float32 group")
LAUNCHES = {  # of a layer that decodes one row of a divided context; with adapters two more for each product
    **{"plain": 10, "fused": 7, "experts": 12},
    "adapters": 10 + 2 * 4,
    "stored": 10,
}
ADAPTERS = 2
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 90, "hidden_size": 32, "head_dim": 16,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 4096, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "dtype": "bfloat16", "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def counted() -> dict[str, dict[str, list[str]]]:
    """Of each setup the kernels that were compiled before it was ready, and those after."""
    done = run_module("tests.worker.gpu.start.test_compilations", wait_s=280, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, list[str]]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("setup", SETUPS)
def test_nothing_is_compiled_in_traffic(counted: dict[str, dict[str, list[str]]], setup: str) -> None:
    """Chunks and decoding mixed at random, rows that want penalties, biases, masks and logprobs among them."""
    before, after = counted[setup]["before"], counted[setup]["after"]
    attention = {"_decode", "_merge", "_prefill", "_merge_tokens"}
    if setup.startswith("chosen"):
        attention = {"_decode", "_merge", "score_kernel", "select_kernel"}
        assert ("digits_kernel" in before) == (setup == "chosen in parts")
    if setup == "stored":
        assert {"stored_linear_kernel", "decode_kernel"} <= set(before)
    assert ("key_kernel" in before) == (setup in GROUPS)
    if setup == "adapters":
        assert {"shrink_kernel", "expand_kernel"} <= set(before)
    kept = {"propose_kernel", "verify_kernel"} if setup == "drafts" else {"keep_kernel"}
    assert attention | kept | {"inputs_kernel", "sample_kernel", "adjust_kernel", "log_sums_kernel"} <= set(before)
    assert after == [], "compiled while requests run"


@pytest.mark.parametrize("setup", SETUPS)
def test_all_are_compiled_side_by_side(counted: dict[str, dict[str, list[str]]], setup: str) -> None:
    """Nothing is left to steps that run, of which one would wait for the other."""
    assert counted[setup]["beside"] == []


def test_few_kernels_are_compiled_at_the_start(counted: dict[str, dict[str, list[str]]]) -> None:
    """A fresh machine compiles all of them: none depends on how many rows or splits there are."""
    assert len(counted["plain"]["before"]) <= 25, counted["plain"]["before"]
    assert len(counted["windows"]["before"]) <= 25 + 6, "attention once for each kind of layer"


@pytest.mark.parametrize("setup", LAUNCHES)
def test_launches_of_a_layer(counted: dict[str, dict[str, list[str]]], setup: str) -> None:
    launched = counted[setup]["launched"]
    products = {"plain": 4, "experts": 3, "adapters": 4}.get(setup, 0)  # cuBLAS' are no kernels of ours
    assert len(launched) + products == LAUNCHES[setup], launched


def test_what_is_compiled_late_is_counted_and_named(counted: dict[str, dict[str, list[str]]]) -> None:
    """The same in a worker, whose log names the kernel and whose gauge counts it."""
    late = counted["late"]
    assert late["before"] == [], "nothing is said of what is compiled before"
    assert late["after"] == ["kernel silu_mul_kernel was compiled while requests ran: they stood still for it", "1"]


class OneMember:
    """A group that has no other members."""

    rank, size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    maximum = all_reduce

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Logits, with words behind them that are none, as the last of several members has them."""
        return torch.nn.functional.pad(x, (0, -x.shape[1] % 32))


def make_runner(setup: dict[str, Any], drafts: int) -> Any:
    from actorserve.actors.worker.gpu.buffers import Sizes
    from actorserve.actors.worker.gpu.drafts.speculation import DraftingRunner
    from actorserve.actors.worker.gpu.graphs import capture_sizes, mixed_sizes
    from actorserve.actors.worker.gpu.layers.varied_layers import make_model
    from actorserve.actors.worker.gpu.lora.sites import GpuLoraSites
    from actorserve.actors.worker.gpu.memory import make_pools
    from actorserve.actors.worker.gpu.runner import GpuRunner
    from actorserve.actors.worker.models.weights import random_tensors
    from actorserve.kernels.triton.drafts import Lookup

    shape = read_architecture(SHAPE | setup["changes"])
    device, rows = torch.device("cpu"), setup["rows"]
    read = random_tensors(shape, 0, device)
    lora = GpuLoraSites(ADAPTERS, 20, device) if setup is SETUPS["adapters"] else None
    get = lambda name: read(name, slice(None), None)  # noqa: E731
    stored = four_bits(shape) if setup is SETUPS["stored"] else None
    fused, group = setup is SETUPS["fused"], OneMember() if any(setup is SETUPS[name] for name in GROUPS) else None
    length: int = setup["length"]
    dtype = torch.float32 if setup is SETUPS["float32 group"] else torch.bfloat16
    model = make_model(shape, get, dtype, length, device, cast(Any, group), fused, lora=lora, stored=stored)
    log = np.zeros((rows, length), np.int32)
    told = Logprobs(Logprobs.create(rows, length), rows, length)
    sizes = Sizes(rows, setup["tokens"], setup["length"], setup["block_size"], drafts, ADAPTERS if lora else 0)
    mixed = mixed_sizes(rows, setup["tokens"], drafts > 0) if setup["graphs"] else []
    if drafts:
        runner: GpuRunner = DraftingRunner(
            model, log, sizes, capture_sizes([], rows), logprobs=told, mixed=mixed, lookup=Lookup(2, 4, drafts)
        )
    else:
        runner = GpuRunner(model, log, sizes, capture_sizes([], rows), logprobs=told, mixed=mixed)
    if runner.adapted is not None:
        for adapter in range(1, 1 + ADAPTERS):
            runner.adapted.slots.take(adapter)
    blocks = rows * -(-length // setup["block_size"])
    runner.pools = make_pools(shape, blocks, setup["block_size"], dtype, device)
    return runner


def four_bits(shape: Any) -> Any:
    """All weights of layers in groups of 16, with zero points."""
    from actorserve.actors.worker.gpu.layers.stored import StoredLinears
    from actorserve.kernels.triton.linear.stored_weights import stored_weight

    def of(linears: Any, weight: Any) -> Any:
        outputs = sum(shape.size(axis) for linear in linears for axis in linear.rows)
        numbers = torch.zeros(outputs, shape.size(linears[0].columns), dtype=torch.uint8)
        scales = torch.ones(outputs, numbers.shape[1] // 16, dtype=torch.float16)
        return [stored_weight("bits4", numbers, scales, 16, torch.zeros(scales.shape, dtype=torch.uint8))]

    bits: Any = SimpleNamespace(of=of)
    return StoredLinears(bits)


def prompts(rows: int, length: int, adapters: int) -> Iterator[Sequence]:
    """Sequences that go through all sizes of batches; some with one of so many adapters."""
    random = np.random.default_rng(rows)
    asked = [
        GREEDY,
        Sampling(3, top_p=0.9),
        Sampling(4, temperature=0.5, frequency_penalty=0.5),
        Sampling(5, top_k=4),
        Sampling(6, logit_bias=[(3, 1.0)]),
        Sampling(7, allowed_token_ids=[4, 5, 6], min_tokens=2, suppress=[5]),
        Sampling(8, logprobs=3, prompt_logprobs=2),
        Sampling(9, logprobs=3, post_sampling_probs=True, top_k=9, presence_penalty=0.5),
    ]
    for number in range(rows):
        size = int(random.integers(1, length // 4))
        ids, adapter = random.integers(0, 90, size).tolist(), number % (1 + adapters)
        yield Sequence(ids, 1 + number % 9, asked[number % len(asked)], adapter)


def traffic(names: list[str], setup: dict[str, Any], drafts: int) -> dict[str, list[str]]:
    from actorserve.kernels.triton.attention import indexer

    indexer.UNDIVIDED = 512 if setup is SETUPS["chosen in parts"] else 16384
    found, runner = counted_by(names, partial(make_runner, setup, drafts), setup, drafts)
    return found | {"launched": launched_by_a_layer(runner)}


def counted_by(
    names: list[str], make: Callable[[], Any], setup: dict[str, Any], drafts: int = 0
) -> tuple[dict[str, list[str]], Any]:
    """What is compiled before and after, and the runner that was made last."""
    from ..test_runner import GpuDriver

    for kernel in all_kernels():
        kernel.device_caches.clear()
    compile_first(names, make)
    before = names.copy()
    names.clear()
    runner = make()
    runner.profile_steps()
    if setup["graphs"]:
        for kind in runner._graphs().values():
            for size in kind.sizes:
                kind.step(size)  # as it is captured
    beside = names.copy()
    names.clear()
    for seed in range(2):
        driver = GpuDriver(runner, budget=setup["tokens"], preempt=0.05, seed=seed, drafts=drafts)
        driver.free = list(range(len(runner.pools[0].keys)))
        driver.run([*prompts(setup["rows"], setup["length"], runner.sizes.adapters)])
    return {"before": before, "beside": beside, "after": names.copy()}, runner


def compile_first(names: list[str], make: Callable[[], Any]) -> None:
    """As a worker does, whose memory nobody has written to by then."""
    from actorserve.actors.worker.gpu.compilations import compile_ahead

    names.clear()
    torch.empty = EMPTY
    with torch.inference_mode(), Unwritten():
        runner = make()
        count = compile_ahead(runner.device, runner.profile_steps, runner.try_graphs)
    torch.empty = torch.zeros  # type: ignore[assignment]
    assert count == len(names)


def launched_by_a_layer(runner: Any) -> list[str]:
    """Kernels of a step of one row that the second layer adds to those of the first alone."""
    from triton.runtime.jit import JITFunction

    names: list[str] = []
    run = JITFunction.run

    def count(self: Any, *arguments: Any, **options: Any) -> Any:
        names.append(self.fn.__name__)
        return run(self, *arguments, **options)

    JITFunction.run = count
    (runner.decoding if runner.adapted is None else runner.adapted.decoding).step(1)
    JITFunction.run = run
    layers = len(runner.model.layers)
    return [name for name in set(names) for _ in range(names.count(name) // layers)]


def all_kernels() -> Iterator[Any]:
    from triton.runtime.jit import JITFunction

    for name, module in list(sys.modules.items()):
        if name.startswith("actorserve.kernels.triton."):
            yield from (value for value in vars(module).values() if isinstance(value, JITFunction))


def late() -> dict[str, list[str]]:
    """What a worker says of a kernel that is compiled before, and of one after."""
    from actorserve.actors.worker.gpu.compilations import report_late_compilations
    from actorserve.kernels.triton.silu_mul import silu_mul

    said: list[str] = []
    gauges = dict.fromkeys(WorkerGauge, 0)
    log = SimpleNamespace(warning=lambda text, *a: said.append(text % a), debug=lambda *a: None)

    def add(gauge: WorkerGauge, number: int) -> None:
        gauges[gauge] += number

    context: Any = SimpleNamespace(status=SimpleNamespace(add=add), log=log)
    silu_mul(torch.zeros(2, 100))
    report_late_compilations(context)
    silu_mul(torch.zeros(4, 100))
    before = said.copy()
    silu_mul(torch.zeros(2, 100, dtype=torch.float16))
    return {"before": before, "after": [*said, str(gauges[WorkerGauge.LATE_COMPILATIONS])]}


def main() -> None:
    torch.set_num_threads(1)
    names = compile_nothing()
    logprobs.LOG_SUMS["cpu"] = logprobs.LOG_SUMS["cuda"]
    found: dict[str, Any] = {
        name: traffic(names, setup, 3 if name == "drafts" else 0) for name, setup in SETUPS.items()
    }
    print(json.dumps(found | {"late": late()}))


if __name__ == "__main__":
    main()
