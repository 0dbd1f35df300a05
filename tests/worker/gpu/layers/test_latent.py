"""Latent attention (DeepSeek) and attention in chunks (Llama 4) on a GPU, against a CPU and transformers; in the
interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ..test_runner import DEVICE, ROWS, GpuDriver, load_model, make_gpu_runner, prompt, steps_of  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json
from actorserve.actors.model.memory.dtypes import NUMBERS
from actorserve.actors.model.memory.kv_memory import plan_kv_memory
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.worker.gpu.executor import GpuBuilder
from actorserve.actors.worker.gpu.graphs import StepSize
from actorserve.actors.worker.gpu.layers.latent import LatentAttention
from actorserve.actors.worker.gpu.layers.varied_layers import VariedModel, is_plain
from actorserve.actors.worker.gpu.load import check_shape
from actorserve.actors.worker.gpu.memory import make_pools, plan_memory, pool_bytes
from actorserve.actors.worker.logprobs import LogprobsWriter
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import open_checkpoint
from actorserve.kernels.triton.attention.tiles import are_latents
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.logprobs import Logprobs
from tests.support.models.greedy import assert_greedy, behind, reference
from tests.support.selection import slow

from ...driver import GREEDY, LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
CHUNKS = {"num_hidden_layers": 2, "no_rope_layer_interval": 2}
FEW = {"num_hidden_layers": 2}
CHANGES: dict[str, dict[str, Any]] = {"deepseek_v3": FEW, "mistral4": FEW, "llama4": CHUNKS}


@pytest.mark.parametrize(
    "kind",
    [
        "deepseek_v3",
        "glm_moe_dsa",
        "llama4",
        *slow("deepseek_v32", "mistral4", "deepseek_v2", "deepseek_v2_groups", "llama4_plain", "glm4_moe"),
    ],
)
def test_it_draws_what_the_cpu_draws(kind: str, checkpoints: Folders) -> None:
    """Greedy and sampled rows, prompts in parts and decoding mixed at random, rows that come back after a preemption,
    and the borders of chunks: by graphs, in which nothing of the host runs."""
    config = config_for(checkpoints(kind, **CHANGES.get(kind, {})), block_size=16)
    samplings = [GREEDY, Sampling(11, temperature=0.8, top_k=20), Sampling(12, top_p=0.7)]

    def sequences() -> list[Sequence]:
        return [Sequence(prompt(50 - 19 * n, n), 3, sampling) for n, sampling in enumerate(samplings)]

    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences())
    runner = make_gpu_runner(config, capture=True)
    replayed = steps_of(runner)
    assert GpuDriver(runner, preempt=0.05, seed=6).run(sequences()) == wanted
    assert {type(size) for size in replayed} == {int, StepSize}, "steps of all kinds"


@pytest.mark.parametrize(
    "kind",
    ["deepseek_v3", "deepseek_v32", "mistral4", *slow("glm_moe_dsa", "deepseek_v2_groups", "llama4", "llama4_plain")],
)
def test_logits_are_those_of_transformers(kind: str, checkpoints: Folders) -> None:
    """A prompt in chunks of which some see keys of others, and tokens behind it."""
    folder = checkpoints(kind, **CHANGES.get(kind, {}))
    runner = make_gpu_runner(config_for(folder, block_size=16), graphs=False)
    area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
    runner.sampler.logprobs = LogprobsWriter(area, ROWS)
    text, model = prompt(45, 1), reference(folder)
    drawn = GpuDriver(runner, budget=20).run([Sequence(text, 4, Sampling(0, temperature=0.0, logprobs=2))])
    assert_greedy(model, [text], drawn, 4)
    exact = behind(model, text, drawn[0]).log_softmax(-1)
    found = [area.read(0, len(text) + number, 0)[0][1] for number in range(4)]
    np.testing.assert_allclose(
        found, [float(row[token]) for row, token in zip(exact, drawn[0], strict=True)], atol=2e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deepseek_v3", "glm_moe_dsa", "llama4"])
def test_drafts_change_no_text(kind: str, checkpoints: Folders) -> None:
    """What repeats itself, verified several tokens at a time; and drafts that the model itself makes."""
    folder = checkpoints(kind, **CHANGES.get(kind, {}))
    config, circle = config_for(folder, block_size=16), [*[7, 8, 9, 10] * 8, 7, 8]

    def sequences() -> list[Sequence]:
        return [Sequence(circle, 12), Sequence(prompt(21, 3), 12, Sampling(5, temperature=0.3, top_k=2))]

    wanted = Driver(make_runner(config, rows=ROWS), seed=5).run(sequences())
    for draft in (None, folder):
        runner = make_gpu_runner(config, capture=True, lookup=Lookup(1, 3, 3), draft=draft)
        driver = GpuDriver(runner, preempt=0.03, seed=6, drafts=3)
        assert driver.run(sequences()) == wanted and (driver.drafted > 0 or draft is None)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["deepseek_v3", "deepseek_v32", "llama4"])
def test_a_token_has_the_same_bits_in_every_batch(kind: str, checkpoints: Folders) -> None:
    config = config_for(checkpoints(kind, **CHANGES.get(kind, {})), block_size=16)

    def told(count: int, **drive: Any) -> list[Any]:
        area = Logprobs(Logprobs.create(ROWS, LENGTH), ROWS, LENGTH)
        runner = make_gpu_runner(config, deterministic=True)
        runner.sampler.logprobs = LogprobsWriter(area, ROWS)
        asked = Sampling(0, temperature=0.0, logprobs=3, prompt_logprobs=2)
        sequences = [Sequence(prompt(30 - 15 * n, n), 3, asked if not n else GREEDY) for n in range(count)]
        (tokens, *_) = GpuDriver(runner, **drive).run(sequences)
        return [tokens, *(area.read(0, position, 2 if position < 30 else 3) for position in range(1, 30 + 3))]

    assert told(2, budget=9, preempt=0.15, seed=3) == told(1, budget=1000)


def test_a_latent_is_kept_once(checkpoints: Folders) -> None:
    """32 numbers and 16 that turn of each token in each layer; that is what is planned with, as on a CPU."""
    shape = read_architecture(read_json(checkpoints("deepseek_v3") / "config.json"))
    pools = make_pools(shape, 5, 16, torch.bfloat16, DEVICE)
    assert all(are_latents(own.keys, own.values) for own in pools) and len(pools) == shape.layers == 3
    assert [part.shape for part in pools[0][:2]] == [(5, 1, 16, 48), (5, 1, 16, 32)]
    config = make_config({"block_size": 16})
    plan = plan_memory(config, shape, 256, torch.bfloat16)
    assert plan.block_bytes == plan_kv_memory(shape.kv, config, 256, 2).block_bytes == 3 * 16 * 48 * 2
    held = {own.keys.untyped_storage().data_ptr(): own.keys.untyped_storage().nbytes() for own in pools}
    sizes = pool_bytes(shape, 5, 16, torch.bfloat16)
    assert sum(held.values()) == 5 * plan.block_bytes == sum(sizes)
    given: list[int] = []

    def take(size: int) -> torch.Tensor:
        given.append(size)
        return torch.zeros(size, dtype=torch.uint8, device=DEVICE)

    kept = make_pools(shape, 5, 16, torch.bfloat16, DEVICE, take=take)
    assert given == sizes and len(sizes) == shape.layers and all(are_latents(own.keys, own.values) for own in kept)


def test_what_multiplies_queries_and_results_is_counted_as_floats(checkpoints: Folders) -> None:
    """In a checkpoint of 8 bits, whose other weights stay so."""
    form = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    values = read_json(checkpoints("deepseek_v3") / "config.json") | {"quantization_config": form}
    shape, kind = read_architecture(values), NUMBERS["bfloat16"]
    for name, numbers, size in (("kv_b_proj", 4 * (24 + 20) * 32, 2), ("q_b_proj", 4 * (24 + 16) * 40, 1)):
        own = [f"model.layers.{layer}.self_attn.{name}" for layer in range(3)]
        taken = weight_bytes(shape, kind, stays=True) - weight_bytes(shape, kind, without=own, stays=True)
        assert 3 * numbers * size <= taken < 3 * numbers * (size + 0.1)


@pytest.mark.parametrize("kind", ["deepseek_v3", *slow("deepseek_v2")])
def test_heads_are_divided(kind: str, checkpoints: Folders) -> None:
    """What the heads of two members make adds up; both keep the same latents."""
    folder = checkpoints(kind)
    shape = read_architecture(read_json(folder / "config.json"))
    read, x = open_checkpoint(folder, shape), torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    turns = load_model(folder).turns
    places = torch.tensor([5, 6, 7], device=DEVICE), torch.tensor([16, 3, -1], device=DEVICE)
    batch: Any = SimpleNamespace(inputs=SimpleNamespace(positions=places[0], slots=places[1]))
    made, kept = [], []
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        own, place = shard_shape(shape, size), SimpleNamespace(rank=rank, size=size)
        build = GpuBuilder(own, shard(read, shape, place), torch.float32, DEVICE, place)  # type: ignore[arg-type]
        spec, pools = build.layer(1), make_pools(own, 2, 16, torch.float32, DEVICE)[0]
        assert spec.latent is not None
        attention = LatentAttention(
            build, spec.latent, lambda q, pools, batch: q[..., :32] * q[..., 32:].sum(-1)[..., None]
        )
        made.append(build.linear(spec.out)(attention(x, turns, pools, batch)))
        kept.append(pools.keys)
    torch.testing.assert_close(made[1] + made[2], made[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(kept[1], kept[0]) and torch.equal(kept[2], kept[0])
    assert kept[0].count_nonzero() == 2 * 48, "a token without a slot keeps nothing"


def test_layers_of_llama_4(checkpoints: Folders) -> None:
    """Which ones turn, are normed, see chunks and grow."""
    model = load_model(checkpoints("llama4"))
    assert isinstance(model, VariedModel)
    assert [layer.scoring.chunk for layer in model.varied] == [24, 24, None, 24]
    assert [layer.unit_eps is not None for layer in model.varied] == [True, True, False, True]
    assert [layer.growth is not None for layer in model.varied] == [False, False, True, False]
    assert [layer.moe is not None and layer.moe.of_inputs for layer in model.varied] == [False, True, False, True]


def test_queries_grow_in_layers_that_turn(checkpoints: Folders) -> None:
    """Of texts that are never so long layers are plain ones."""
    folder = checkpoints("ministral3")
    model, shape = load_model(folder), read_architecture(read_json(folder / "config.json"))
    assert isinstance(model, VariedModel)
    assert all(layer.growth is not None and len(layer.growth.unique()) > 2 for layer in model.varied)
    assert (is_plain(shape, 16), is_plain(shape, 17)) == (True, False)


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ({"kv_cache_dtype": "fp8"}, {}, "--kv-cache-dtype fp8: the model keeps latents"),
        ({}, {"kv_lora_rank": 40}, r"heads of 56 numbers; .* \(--device cpu takes any\)"),
        ({}, {"kv_lora_rank": 576}, "heads of 592 numbers"),
        ({}, {"num_attention_heads": 136}, r"136 heads share one of keys; .* \(--device cpu takes any\)"),
    ],
)
def test_what_the_kernels_cannot_take(
    options: dict[str, Any], changes: dict[str, Any], words: str, checkpoints: Folders
) -> None:
    values = read_json(checkpoints("deepseek_v3") / "config.json")
    check_shape(make_config({"deterministic": True}), read_architecture(values))
    with pytest.raises(ConfigError, match=words):
        check_shape(make_config(options), read_architecture(values | changes))
