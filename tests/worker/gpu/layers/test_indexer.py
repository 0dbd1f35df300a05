"""Queries that see some tokens alone (DeepSeek V3.2, GLM-5) on a GPU, beside what test_latent.py asks of all latents;
in the interpreter where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ..test_runner import DEVICE, ROWS, GpuDriver, load_model, make_gpu_runner, prompt  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.model.memory.kv_memory import plan_kv_memory
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.worker.gpu import executor
from actorserve.actors.worker.gpu import load as gpu_load
from actorserve.actors.worker.gpu.executor import GpuBatch, GpuBuilder
from actorserve.actors.worker.gpu.layers.indexer import GpuIndexer, room_for_chosen
from actorserve.actors.worker.gpu.layers.varied_layers import VariedModel
from actorserve.actors.worker.gpu.memory import make_pools, plan_memory, pool_bytes
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import open_checkpoint
from actorserve.kernels.triton.attention import indexer as kernels
from actorserve.kernels.triton.attention.tiles import are_latents
from actorserve.kernels.triton.step_inputs import StepInputs
from tests.support.models.gguf.sparse import convert

from ...cpu.test_latent import in_fp8
from ...driver import LENGTH, Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


def sequences() -> list[Sequence]:
    """Texts that begin where all is seen and go on behind it, longer ones, and one that is short."""
    return [Sequence(prompt(size, size), count) for size, count in ((22, 6), (70, 3), (3, 2))]


def drawn(runner: Any, **drive: Any) -> list[list[int]]:
    tokens: list[list[int]] = GpuDriver(runner, **drive).run(sequences())
    return tokens


def test_where_no_text_is_longer_than_what_is_seen_nothing_is_chosen(checkpoints: Folders) -> None:
    config = config_for(checkpoints("deepseek_v32", num_hidden_layers=2, index_topk=LENGTH), block_size=16)
    runner = make_gpu_runner(config)
    assert isinstance(runner.model, VariedModel) and runner.model.topk is None
    assert drawn(runner, seed=1) == Driver(make_runner(config, rows=ROWS), seed=2).run(sequences())
    assert all(own.index_keys is not None and not own.index_keys.any() for own in runner.pools)


def test_layers_that_do_not_choose_see_what_another_has_chosen(
    checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of many queries some are chosen for, and some attend, at a time."""
    monkeypatch.setattr(kernels, "SCORED", kernels.STEP * LENGTH)
    monkeypatch.setattr(executor, "MOST_ROWS", 7)
    config = config_for(checkpoints("glm_moe_dsa"), block_size=16)
    model = load_model(Path(config.model))
    assert isinstance(model, VariedModel) and model.topk == 24
    indexers = [layer.latent is not None and layer.latent.indexer is not None for layer in model.varied]
    assert indexers == [True, False, True]
    runner = make_gpu_runner(config, model=model)
    assert drawn(runner, seed=3) == Driver(make_runner(config, rows=ROWS), seed=4).run(sequences())
    kept = [own.index_keys is not None and bool(own.index_keys.any()) for own in runner.pools]
    assert kept == indexers


def test_as_it_is_published(checkpoints: Folders, tmp_path: Path) -> None:
    """Weights of 8 bits, of which those of the indexer become floats."""
    packed, plain = in_fp8(checkpoints("deepseek_v32"), tmp_path)
    config = config_for(packed, block_size=16)
    model = gpu_load.load_model(config, resolve_model(config), DEVICE)
    assert isinstance(model, VariedModel) and model.varied[1].latent is not None
    assert isinstance(own := model.varied[1].latent.indexer, GpuIndexer)
    assert own.queries.weight.dtype == own.weights.weight.dtype == torch.float32  # type: ignore[attr-defined]
    found = drawn(make_gpu_runner(config, model=model))
    assert found == Driver(make_runner(config_for(plain, block_size=16), rows=ROWS)).run(sequences())


def test_a_gguf_file(checkpoints: Folders, tmp_path: Path) -> None:
    source = checkpoints("glm_moe_dsa")
    convert(source, path := tmp_path / "model.gguf", lambda name: "F32")
    config = config_for(path, block_size=16)
    model = gpu_load.load_model(config, resolve_model(config), DEVICE)
    found = drawn(make_gpu_runner(config, model=model))
    assert found == Driver(make_runner(config_for(source, block_size=16), rows=ROWS)).run(sequences())


def test_whose_tokens_are() -> None:
    """Rows that decode are filled up, in which the first chunk's tokens begin; a chunk may be empty; tokens fill up."""
    inputs = StepInputs.make(5, 12, 4, DEVICE)
    inputs.fill()
    inputs.positions[:10] = torch.tensor([40, 7, 0, 1, 2, 3, 0, 90, 91, 92])
    inputs.slots[:10] = torch.arange(10)
    starts = torch.tensor([2, 6, 6, 10], dtype=torch.int32, device=DEVICE)
    batch = GpuBatch(inputs.part(7, 12), 4, starts, None)  # type: ignore[arg-type]
    batch = batch._replace(inputs=batch.inputs._replace(lengths=torch.zeros(7, dtype=torch.int32, device=DEVICE)))
    chosen = room_for_chosen(batch, 8)
    assert chosen.owners.tolist() == [0, 1, 4, 4, 4, 4, 6, 6, 6, 6, 6, 6]
    assert chosen.lengths.tolist() == [41, 8, 1, 2, 3, 4, 1, 91, 92, 93, 0, 0]
    assert chosen.counts.tolist() == [8, 8, 1, 2, 3, 4, 1, 8, 8, 8, 0, 0] and chosen.slots.shape == (12, 8)
    alone = room_for_chosen(batch._replace(inputs=inputs.part(5, 5), decoding=5, starts=None), 8)
    assert alone.owners.tolist() == [0, 1, 2, 3, 4]


def test_what_tokens_are_chosen_by_lies_behind_the_latents(checkpoints: Folders) -> None:
    """In memory that is planned as on a CPU, and taken as one piece of each layer."""
    shape = read_architecture(read_json(checkpoints("deepseek_v32") / "config.json"))
    config = make_config({"block_size": 16})
    plan, sizes = plan_memory(config, shape, 256, torch.bfloat16), pool_bytes(shape, 5, 16, torch.bfloat16)
    assert plan.block_bytes == plan_kv_memory(shape.kv, config, 256, 2).block_bytes == 3 * 16 * (48 + 20) * 2
    given: list[int] = []

    def take(size: int) -> torch.Tensor:
        given.append(size)
        return torch.zeros(size, dtype=torch.uint8, device=DEVICE)

    for kept in (None, take):
        for keys, values, scales, index in make_pools(shape, 5, 16, torch.bfloat16, DEVICE, take=kept):
            assert index is not None and scales is None and are_latents(keys, values)
            assert [part.shape[3] for part in (keys, values, index)] == [48, 32, 20]
            assert keys.untyped_storage().nbytes() == sizes[0] == 5 * plan.block_bytes // 3
            keys.fill_(1)
            assert not index.any() and keys.is_contiguous() and index.is_contiguous()
    assert given == sizes and len(sizes) == 3


def test_what_chooses_is_counted_as_floats(checkpoints: Folders) -> None:
    """In a checkpoint of 8 bits, whose other weights stay so; what weighs heads is float32."""
    form = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    values = read_json(checkpoints("deepseek_v32") / "config.json")
    shape = read_architecture(values | {"quantization_config": form})
    heads, dim, rank, hidden = (
        values[name] for name in ("index_n_heads", "index_head_dim", "q_lora_rank", "hidden_size")
    )
    numbers = {"wq_b": heads * dim * rank * 2, "wk": dim * hidden * 2, "weights_proj": heads * hidden * 4}
    for name, size in numbers.items():
        own = [f"model.layers.{layer}.self_attn.indexer.{name}" for layer in range(3)]
        for stays in (True, False):
            taken = weight_bytes(shape, torch.bfloat16, stays=stays)
            assert taken - weight_bytes(shape, torch.bfloat16, without=own, stays=stays) == 3 * size, name


def test_members_of_a_group_choose_alike(checkpoints: Folders) -> None:
    folder = checkpoints("deepseek_v32")
    shape = read_architecture(read_json(folder / "config.json"))
    read, random = open_checkpoint(folder, shape), torch.Generator().manual_seed(1)
    seen, latent = (torch.randn(40, width, generator=random).to(DEVICE) for width in (64, 40))
    turns = load_model(folder).turns
    inputs = StepInputs.make(1, 40, 3, DEVICE)
    inputs.positions[:], inputs.slots[:] = torch.arange(40), torch.arange(40)
    inputs.blocks[0], inputs.lengths[0] = torch.arange(3), 40
    found = []
    for rank, size in ((0, 1), (0, 2), (1, 2)):
        own, place = shard_shape(shape, size), SimpleNamespace(rank=rank, size=size)
        build = GpuBuilder(own, shard(read, shape, place), torch.float32, DEVICE, place)  # type: ignore[arg-type]
        spec, pools = build.layer(1).latent, make_pools(own, 3, 16, torch.float32, DEVICE)[0]
        assert spec is not None and spec.index is not None and own.latent is not None and own.latent.index is not None
        starts = torch.tensor([0, 40], dtype=torch.int32, device=DEVICE)
        batch = GpuBatch(inputs, 0, starts, None)  # type: ignore[arg-type]
        batch = batch._replace(chosen=room_for_chosen(batch, 24))
        GpuIndexer(build, spec.index, own.latent.index)(seen, latent, turns, pools, batch)
        assert batch.chosen is not None
        found.append(batch.chosen.slots[24:])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert len({tuple(slots) for slots in found[0].tolist()}) == 16, "each sees other tokens"


@pytest.mark.parametrize("exact", [True, False])
def test_what_heads_are_weighed_by(exact: bool, checkpoints: Folders) -> None:
    """Is multiplied as it is: where 16 bits hold it, what it is multiplied with need not be widened."""
    folder = checkpoints("deepseek_v32")
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    name = "model.layers.1.self_attn.indexer.weights_proj.weight"
    given = torch.randn(read(name, slice(None), None).shape)
    given = given.bfloat16().float() if exact else given

    def get(wanted: str) -> torch.Tensor:
        return given if wanted == name else read(wanted, slice(None), None)

    build = GpuBuilder(shape, get, torch.bfloat16, DEVICE)
    spec = build.layer(1).latent
    assert spec is not None and spec.index is not None and shape.latent is not None and shape.latent.index is not None
    weight = GpuIndexer(build, spec.index, shape.latent.index).weights.weight
    assert weight.dtype == (torch.bfloat16 if exact else torch.float32)
    assert torch.equal(weight.float(), given.to(DEVICE))


def test_sizes_that_kernels_can_choose_by(checkpoints: Folders) -> None:
    values = read_json(checkpoints("deepseek_v32") / "config.json")
    real = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64}
    gpu_load.check_shape(make_config({}), read_architecture(values | real | {"num_attention_heads": 128}))
    gpu_load.check_shape(make_config({}), read_architecture(values | real | {"index_n_heads": 32}))
    for wrong in ({"index_head_dim": 16}, {"index_head_dim": 258}, {"index_n_heads": 129}):
        with pytest.raises(ConfigError, match=r"index_n_heads = .* up to 128 heads, of more than 16 \(qk_rope"):
            gpu_load.check_shape(make_config({}), read_architecture(values | wrong))


@pytest.mark.parametrize(
    ("heads", "dim", "dtype", "taken"),  # bytes of shared memory, as the compiler tells them for sm_86
    [
        (128, 256, torch.float32, 147_588),
        (64, 256, torch.float32, 98_436),
        (128, 128, torch.float32, 73_860),
        (128, 256, torch.float16, 99_584),
    ],
)
def test_what_a_program_has_no_room_for_is_refused(
    heads: int, dim: int, dtype: torch.dtype, taken: int, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs of people at home, which have 99 KB; others have room for all."""
    values = read_json(checkpoints("deepseek_v32") / "config.json")
    shape = read_architecture(values | {"index_n_heads": heads, "index_head_dim": dim})
    gpu_load.check_index_room(shape, dtype, DEVICE)
    monkeypatch.setattr(kernels, "is_narrow", lambda device: True)
    if taken <= 99 << 10:
        gpu_load.check_index_room(shape, dtype, DEVICE)
        return
    with pytest.raises(ConfigError, match="index_n_heads = 128 and index_head_dim = 256 in float32 take more shared"):
        gpu_load.check_index_room(shape, dtype, DEVICE)
