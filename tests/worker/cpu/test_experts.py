"""Experts against plain formulas and against transformers' own, whole and divided over a group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json
from actorserve.actors.model.sharding import shard_shape
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.builder import CpuBuilder
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers.expert_balance import find_swaps, spread
from actorserve.actors.worker.cpu.layers.experts import Expert, Experts, take_experts
from actorserve.actors.worker.cpu.layers.linear import PackedLinear, PlainLinear
from actorserve.actors.worker.models.sharding import shard
from actorserve.actors.worker.models.weights import open_checkpoint
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.actors.worker.start.expert_balance import attach
from tests.support.models.greedy import reference

Folders = Callable[..., Path]
HIDDEN, INNER, EXPERTS, CHOICES = 24, 16, 7, 3


def inputs(tokens: int, seed: int = 0, experts: int = EXPERTS) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, and for each some experts, no two alike, with their shares."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    chosen = torch.stack([torch.randperm(experts, generator=generator)[:CHOICES] for _ in range(tokens)])
    return x, chosen, torch.rand(tokens, CHOICES, generator=generator)


def weights(seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(EXPERTS, INNER, HIDDEN, generator=generator),
        torch.randn(EXPERTS, HIDDEN, INNER, generator=generator),
    )


def plain(x: Tensor, chosen: Tensor, shares: Tensor, experts: range = range(EXPERTS)) -> Tensor:
    """One token after another, one choice after another."""
    ups, downs = weights()
    out = torch.zeros_like(x)
    for token in range(len(x)):
        for expert, share in zip(chosen[token].tolist(), shares[token].tolist(), strict=True):
            if expert in experts:
                out[token] += share * (downs[expert] @ F.silu(ups[expert] @ x[token]))
    return out


def made(first: int = 0, end: int = EXPERTS) -> Experts:
    ups, downs = weights()
    pairs = [Expert(PlainLinear(ups[e], None), PlainLinear(downs[e], None)) for e in range(first, end)]
    return Experts(pairs, F.silu, first)


@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
def test_each_token_goes_through_those_that_were_chosen(tokens: int) -> None:
    given = inputs(tokens)
    torch.testing.assert_close(made()(*given), plain(*given), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("first", "end"), [(0, 3), (3, 7), (6, 7), (2, 2)])
def test_what_another_process_has_counts_as_nothing(first: int, end: int) -> None:
    """Some tokens have none of their experts here."""
    given = inputs(20)
    torch.testing.assert_close(made(first, end)(*given), plain(*given, range(first, end)), rtol=1e-4, atol=1e-4)


def test_a_token_has_the_same_bits_beside_others() -> None:
    """Where products have them; one row at a time they do."""

    class Rows(PlainLinear):
        def __call__(self, x: Tensor) -> Tensor:
            return torch.cat([super(Rows, self).__call__(row[None]) for row in x]) if len(x) else x.new_empty(0, 1)

    ups, downs = weights()
    experts = Experts([Expert(Rows(ups[e], None), Rows(downs[e], None)) for e in range(EXPERTS)], torch.relu)
    x, chosen, shares = inputs(33)
    together = experts(x, chosen, shares)
    for token in range(33):
        alone = experts(x[token, None], chosen[token, None], shares[token, None])
        assert torch.equal(alone[0], together[token])


SIZES = {"hidden_size": HIDDEN, "num_local_experts": EXPERTS, "num_experts_per_tok": CHOICES, "num_hidden_layers": 2}
MODULES: dict[str, tuple[str, str, dict[str, Any]]] = {  # each of another kind of class
    "gated": ("qwen3_moe", "Qwen3MoeExperts", {"moe_intermediate_size": INNER, "num_experts": EXPERTS}),
    "transposed, biased, with a gate of its own": ("gpt_oss", "GptOssExperts", {"intermediate_size": INNER}),
}


def module_of(kind: str) -> Any:
    """Random experts as transformers has them."""
    import importlib

    from transformers import AutoConfig

    model_type, name, options = MODULES[kind]
    config = AutoConfig.for_model(model_type, **{**SIZES, **options})
    config._experts_implementation = "eager"
    classes = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    module = getattr(classes, name)(config)
    torch.manual_seed(3)
    for parameter in module.parameters():
        parameter.data.normal_(0, 0.5)
    return module


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("linear", [PlainLinear, PackedLinear])
def test_experts_of_transformers(kind: str, linear: Callable[[Tensor, Tensor | None], Any]) -> None:
    """The same numbers, and their weights are there once."""
    module, given = module_of(kind), inputs(12)
    with torch.inference_mode():
        expected = module(*given)
        taken = take_experts(module, lambda weight, bias: linear(weight.contiguous(), bias))
        torch.testing.assert_close(taken(*given), expected, rtol=1e-4, atol=1e-4)
    assert not any(name.endswith("_proj") for name, _ in module.named_parameters())


def test_experts_of_transformers_in_8_bits() -> None:
    module, given = module_of("gated"), inputs(12)
    with torch.inference_mode():
        expected = module(*given)
        error = take_experts(module, Int8Linear)(*given) - expected
    assert 0 < error.square().mean() < (0.03 * expected).square().mean()


# --- the native family -----------------------------------------------------------------------------------------------


class Member:
    """One of a group of two whose sums are made by the test."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize("kind", ["qwen3_moe", "qwen2_moe", "mixtral"])
@pytest.mark.parametrize("expert_parallel", [False, True])
def test_the_parts_of_a_group_add_up(checkpoints: Folders, kind: str, expert_parallel: bool) -> None:
    """What all tokens go through, too."""
    folder = checkpoints(kind, num_local_experts=8) if kind != "qwen2_moe" else checkpoints(kind, num_experts=8)
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)

    def layer(part: Any, own: Any) -> Any:
        group = None if own is None else Member(own)
        get = (
            shard(read, shape, group or Member(0), expert_parallel)
            if group
            else lambda name: read(name, slice(None), None)
        )
        layers = CpuModel(part, get, torch.float32, 64, group).layers  # type: ignore[arg-type]
        return layers[1 if kind == "qwen2_moe" else 0].moe

    x = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        whole = layer(shape, None)(x)
        part = shard_shape(shape, 2, expert_parallel)
        parts = [layer(part, rank) for rank in range(2)]
        torch.testing.assert_close(sum(moe(x) for moe in parts), whole, rtol=1e-4, atol=1e-4)
    assert shape.moe is not None and part.moe is not None
    assert part.moe.shared_intermediate_size * 2 == shape.moe.shared_intermediate_size
    counts = [len(moe.experts.experts) for moe in parts]
    assert counts == ([4, 4] if expert_parallel else [8, 8])
    assert parts[1].experts.first == (4 if expert_parallel else 0)


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
def test_experts_change_their_members_by_what_is_chosen(checkpoints: Folders, kind: str) -> None:
    """Sums stay those of the whole; of loads that were all one member's each has about a half."""
    shape = read_architecture(read_json(checkpoints(kind, num_local_experts=8) / "config.json"))
    read, part = open_checkpoint(checkpoints(kind, num_local_experts=8), shape), shard_shape(shape, 2, True)
    moes: list[Any] = []
    for rank in range(2):
        member: Any = Member(rank)
        get = shard(read, shape, member, True)
        model = CpuModel(part, get, torch.float32, 64, member)
        attach(CpuBuilder(part, get, torch.float32, member, False), model, member, interval=6, window=4)
        moes.append(model.layers[0].moe)
    assert shape.moe is not None
    skewed = torch.tensor([[0, 1], [0, 2], [1, 3], [0, 3], [2, 1]]).repeat(4, 1)  # all of the first member's
    x, shares = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), torch.full((20, 2), 0.5)
    expected = sum(moe.experts(x, skewed, shares) for moe in moes)
    for _ in range(11):
        with torch.inference_mode():
            torch.testing.assert_close(sum(moe.experts(x, skewed, shares) for moe in moes), expected)
    owners = [moe.experts.balance.owners for moe in moes]
    assert (owners[0] == owners[1]).all() and sorted(owners[0]) == [0] * 4 + [1] * 4
    held = [np.flatnonzero(moe.experts.places >= 0) for moe in moes]
    assert sorted(np.concatenate(held)) == list(range(8))
    loads = np.bincount(skewed.flatten(), minlength=8).astype(np.float64)
    assert spread(loads, np.repeat([0, 1], 4)) == 2.0 and spread(loads, owners[0]) <= 1.1


def test_loads_that_are_near_together_stay() -> None:
    even = np.array([5.0, 5, 5, 5, 5, 5, 5, 5.2])
    assert find_swaps(even, np.repeat([0, 1], 4)) == []
    assert find_swaps(np.zeros(8), np.repeat([0, 1], 4)) == []
    assert find_swaps(np.array([9.0, 0, 0, 0]), np.repeat([0, 1], 2)) == [], "one alone cannot be divided"
    assert find_swaps(np.array([9.0, 8, 1, 0]), np.repeat([0, 1], 2)) == [(0, 2)]


def test_what_cannot_be_divided_is_named(checkpoints: Folders) -> None:
    moe = read_architecture(read_json(checkpoints("qwen3_moe", num_experts=6) / "config.json"))
    dense = read_architecture(read_json(checkpoints("qwen3") / "config.json"))
    with pytest.raises(ConfigError, match="6 experts, which 4 does not divide"):
        shard_shape(msgspec.structs.replace(moe, heads=4, kv_heads=4), 4, expert_parallel=True)
    with pytest.raises(ConfigError, match="enable-expert-parallel: the model has no experts"):
        shard_shape(dense, 2, expert_parallel=True)
    with pytest.raises(
        ConfigError, match=r"enable-expert-parallel: .* over the workers of --tensor-parallel-size, and"
    ):
        shard_shape(moe, 1, expert_parallel=True)


@pytest.mark.parametrize(
    ("field", "value"), [("mlp_only_layers", [True]), ("num_experts_per_tok", 9), ("num_experts", 0)]
)
def test_values_that_cannot_be_are_named(checkpoints: Folders, field: str, value: object) -> None:
    values = read_json(checkpoints("qwen3_moe") / "config.json") | {field: value}
    values.pop("num_local_experts", None)
    values.setdefault("num_experts", 8)
    with pytest.raises(ConfigError, match=field):
        read_architecture(values)


def test_a_router_of_float32_chooses_as_transformers_does(checkpoints: Folders) -> None:
    """In bfloat16 scores would be rounded, and often alike: others would be chosen."""

    def as_stored(tensor: Tensor) -> Tensor:
        return tensor.bfloat16() if tensor.dim() == 2 else tensor  # a correction stays float32

    folder = checkpoints("deepseek_v2_groups")
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    moe = CpuModel(shape, lambda name: as_stored(read(name, slice(None), None)), torch.bfloat16, 32).layers[1].moe
    assert moe is not None
    seen: list[Tensor] = []
    inner = moe.experts
    moe.experts = lambda x, chosen, shares: seen.append(chosen) or inner(x, chosen, shares)  # type: ignore[assignment, func-returns-value]
    x = torch.randn(400, shape.hidden_size, generator=torch.Generator().manual_seed(1)).bfloat16()
    with torch.inference_mode():
        moe(x)
        wanted = reference(folder, dtype=torch.bfloat16).model.layers[1].mlp.gate(x)[2]
    assert torch.equal(seen[0].sort(1).values, wanted.sort(1).values)
