"""A layer's experts on a GPU against those on a CPU, whole and as members of a group have them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture  # noqa: E402
from actorserve.actors.model.info import read_json  # noqa: E402
from actorserve.actors.model.shapes import ClampedGate, Groups, MoeShape, Scoring  # noqa: E402
from actorserve.actors.model.sharding import shard_shape  # noqa: E402
from actorserve.actors.options.config import ConfigError  # noqa: E402
from actorserve.actors.worker.cpu.executor import CpuModel  # noqa: E402
from actorserve.actors.worker.formats.as_stored import CheckpointBits  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuBuilder  # noqa: E402
from actorserve.actors.worker.gpu.layers import moe  # noqa: E402
from actorserve.actors.worker.gpu.layers.moe import GpuMoe, check_experts  # noqa: E402
from actorserve.actors.worker.gpu.layers.stored import StoredLinears  # noqa: E402
from actorserve.actors.worker.models.sharding import Alone, Get, shard  # noqa: E402
from actorserve.actors.worker.models.weights import open_checkpoint, read_parts  # noqa: E402
from actorserve.kernels.triton.moe.routing import Routed, route  # noqa: E402
from actorserve.kernels.triton.moe.weights import ExpertWeights, int4_weights, int8_weights  # noqa: E402
from tests.support.models.greedy import reference  # noqa: E402

from ...test_stacked_experts import in_mxfp4  # noqa: E402

Folders = Callable[..., Path]
PROJECTIONS = {"gate_proj", "up_proj", "down_proj"}
SHARED = ("qwen2_moe", "deepseek_v3", "llama4")  # whose first layer has no experts


@pytest.mark.parametrize("make", [int8_weights, int4_weights])
def test_rounded_experts_are_not_there_twice(make: Callable[[torch.Tensor], ExpertWeights]) -> None:
    """But for two, while all go to their places."""
    weights, left = torch.randn(6, 8, 64, device=DEVICE), list[weakref.ref[torch.Tensor]]()

    def counted(weight: torch.Tensor) -> ExpertWeights:
        assert sum(one() is not None for one in left) <= 2
        left.append(weakref.ref((made := make(weight)).numbers))
        return made

    def read(linears: Any, kind: str) -> torch.Tensor:
        return weights[linears[0].number]

    experts: Any = [[SimpleNamespace(bias=False, number=number)] for number in range(len(weights))]
    joined = moe.join_rounded(experts, read, counted)
    whole = make(weights)
    assert torch.equal(joined.numbers, whole.numbers) and joined.inputs == whole.inputs and len(left) == 6
    for own, other in ((joined.scales, whole.scales), (joined.middles, whole.middles)):
        assert (own is None and other is None) or (own is not None and other is not None and torch.equal(own, other))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("qwen3_moe", {}),
        ("qwen2_moe", {}),
        ("mixtral", {"num_local_experts": 8}),
        ("gpt_oss", {}),
        ("deepseek_v3", {"num_hidden_layers": 2}),
        ("llama4", {"num_hidden_layers": 2, "num_local_experts": 4}),
    ],
)
def test_members_of_a_group_add_up_to_what_a_cpu_makes(
    kind: str, changes: dict[str, int], checkpoints: Folders
) -> None:
    """Each with a part of every expert, or with some experts as wholes; biased routers, groups, and shared MLPs among
    them."""
    folder = checkpoints(kind, **changes)
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    index = 1 if kind in SHARED else 0
    x = torch.randn(5, shape.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted = CpuModel(shape, lambda name: read(name, slice(None), None), torch.float32, 32).layers[index].moe
    assert wanted is not None
    slots, live = torch.tensor([0, 1, -1, 2, 3], device=DEVICE), [0, 1, 3, 4]
    whole = wanted(x)
    if kind not in SHARED:  # through whose shared MLP all go
        whole[2], live = 0, [0, 1, 2, 3, 4]
    for size, divided in ((1, False), (2, False), (2, True)):
        total = torch.zeros_like(whole)
        for rank in range(size):
            place: Any = SimpleNamespace(rank=rank, size=size)
            own = shard_shape(shape, size, divided)
            build = GpuBuilder(own, shard(read, shape, place, divided), torch.float32, DEVICE, place)
            spec = build.layer(index).moe
            assert spec is not None and own.moe is not None and spec.experts == own.moe.experts
            total += GpuMoe(build, spec)(x.to(DEVICE), slots).cpu()
        torch.testing.assert_close(total[live], whole[live], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("as_stored", [False, True])
def test_experts_in_mxfp4_stay_so(as_stored: bool, checkpoints: Folders, tmp_path: Path) -> None:
    """gpt-oss' own format: nothing is rounded, whole or in parts of 32 numbers; parts of others become floats. No
    floats are made where the checkpoint's bytes can be had."""
    folder = in_mxfp4(checkpoints("gpt_oss"), tmp_path / "packed")
    shape = read_architecture(read_json(folder / "config.json"), quantization="none")
    read = open_checkpoint(folder, shape)
    x = torch.randn(4, shape.hidden_size, generator=torch.Generator().manual_seed(1))
    wanted = CpuModel(shape, lambda name: read(name, slice(None), None), torch.float32, 32).layers[0].moe
    assert wanted is not None
    for size, divided, form in ((1, False, "mxfp4"), (2, True, "mxfp4"), (2, False, "floats")):
        total = torch.zeros_like(x)
        for rank in range(size):
            place: Any = SimpleNamespace(rank=rank, size=size)
            own = shard_shape(shape, size, divided)
            get, asked = noted(shard(read, shape, place, divided))
            bits = CheckpointBits(folder, shape, place, divided, read_parts, DEVICE)
            stored = StoredLinears(bits) if as_stored else None
            build = GpuBuilder(own, get, torch.float32, DEVICE, place, stored=stored)
            spec = build.layer(0).moe
            assert spec is not None
            made = GpuMoe(build, spec)
            floats = {name.split(".")[-2] for name in asked if ".experts." in name and name.endswith(".weight")}
            assert floats == (({"down_proj"} if form == "floats" else set()) if as_stored else PROJECTIONS)
            assert (made.up.format, made.down.format) == ("mxfp4", form)
            total += made(x.to(DEVICE), torch.zeros(4, dtype=torch.int64, device=DEVICE)).cpu()
        torch.testing.assert_close(total, wanted(x), rtol=1e-4, atol=1e-5)


def noted(get: Get) -> tuple[Get, list[str]]:
    """With the names that were asked for."""
    asked: list[str] = []

    def ask(name: str) -> torch.Tensor:
        asked.append(name)
        return get(name)

    return ask, asked


def test_a_scale_that_is_no_number_is_named(checkpoints: Folders, tmp_path: Path) -> None:
    folder = in_mxfp4(checkpoints("gpt_oss"), tmp_path / "packed")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.experts.gate_up_proj_scales"][2, 5, 1] = 255
    save_file(tensors, folder / "model.safetensors")
    shape = read_architecture(read_json(folder / "config.json"), quantization="none")
    bits = CheckpointBits(folder, shape, Alone(), False, read_parts)
    moe = shape.layer_at(0).moe
    assert moe is not None and bits.groups(moe.expert(1)[0]) is not None
    with pytest.raises(ConfigError, match=r"experts.2.up_proj.scales has bytes of 255"):
        bits.groups(moe.expert(2)[0])


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_router_of_float32_chooses_as_transformers_does(
    deterministic: bool, checkpoints: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 scores would be rounded, and often alike: others would be chosen."""
    folder = checkpoints("deepseek_v2_groups")
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    seen: list[torch.Tensor] = []

    def noting(scores: torch.Tensor, *rest: Any) -> Routed:
        made = route(scores, *rest)
        seen.append(made.chosen)
        return made

    monkeypatch.setattr(moe, "route", noting)
    build = GpuBuilder(shape, shard(read, shape, Alone(), False), torch.bfloat16, DEVICE, batch_invariant=deterministic)
    spec = build.layer(1).moe
    assert spec is not None
    x = torch.randn(400, shape.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        gate = (
            reference(folder, dtype=torch.bfloat16).bfloat16().model.layers[1].mlp.gate
        )  # some keep it as it is stored
        GpuMoe(build, spec)(x.to(DEVICE), torch.zeros(len(x), dtype=torch.int64, device=DEVICE))
        wanted = gate(x)[2]
    assert torch.equal(seen[0].cpu().sort(1).values, wanted.int().sort(1).values)


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": Groups(count=2, kept=1, best=2)},
        {"groups": Groups(count=2, kept=1, best=3), "scoring": Scoring.SIGMOID},
        {"clamped": ClampedGate(1.7, 7.0), "shared_intermediate_size": 8},
    ],
)
def test_what_experts_cannot_be(changes: dict[str, Any]) -> None:
    moe = MoeShape(experts=8, per_token=2, intermediate_size=64, layers=(True,), routed=8)
    for fine in (None, Groups(count=2, kept=1, best=1), Groups(count=1, kept=1, best=3)):
        check_experts(msgspec.structs.replace(moe, groups=fine))
    with pytest.raises(ConfigError, match="on a CPU only"):
        check_experts(msgspec.structs.replace(moe, **changes))
