"""Routing and grouped products against a loop over tokens in float64, in the interpreter where there is no GPU."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

from tests.support.selection import pairwise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.moe.experts import SILU, ExpertsLaunch, Gate, add_up, launch_of, run_experts  # noqa: E402
from actorserve.kernels.triton.moe.routing import TOKENS, Routed, Routing, route  # noqa: E402
from actorserve.kernels.triton.moe.weights import (  # noqa: E402
    GROUP,
    HALF,
    ExpertWeights,
    as_mxfp4,
    int4_weights,
    int8_weights,
    mxfp4_weights,
    padded,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = ExpertsLaunch(16, 16, 32, 4, 2)
CLAMPED = Gate(alpha=1.702, limit=1.0, offset=1.0)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def chosen_by_torch(
    scores: torch.Tensor, routing: Routing, correction: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(experts, shares), by the formula."""
    exact = scores.double()
    made = exact.sigmoid() if routing.sigmoid else exact.softmax(-1)
    ranked = made if correction is None else made + correction.double()
    if routing.groups > 1:
        by_group = ranked.unflatten(1, (routing.groups, -1))
        best = by_group.topk(routing.best, -1).values.sum(-1).topk(routing.kept, -1).indices
        kept = torch.zeros_like(by_group[..., 0]).scatter_(1, best, 1.0) > 0
        ranked = torch.where(kept[..., None], by_group, -math.inf).flatten(1)
    which = ranked.topk(routing.choices, -1).indices
    shares = made.gather(1, which)
    if routing.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return which, shares * routing.factor


def check_blocks(routed: Routed, block: int) -> None:
    """Each pair that is here stands in one block of its expert, in the order of tokens; there are no others."""
    wanted: dict[int, list[int]] = {}
    for pair, expert in enumerate(routed.chosen.flatten().tolist()):
        if expert >= 0:
            wanted.setdefault(expert, []).append(pair)
    found: dict[int, list[int]] = {}
    for number, (expert, count) in enumerate(routed.blocks.tolist()):
        assert (expert >= 0) == (count > 0) and count <= block
        if expert >= 0:
            assert len(found.get(expert, [])) % block == 0, "only an expert's last block is not full"
            found.setdefault(expert, []).extend(routed.pairs[number * block :][:count].tolist())
    assert found == wanted


@pytest.mark.parametrize("tokens", [1, 5, TOKENS, TOKENS + 1, 150])
@pytest.mark.parametrize(
    "routing",
    [
        Routing(8, 2),
        Routing(5, 5, normalised=True, factor=2.5),
        Routing(60, 4, sigmoid=True, normalised=True),
        Routing(12, 3, first=4, here=4),
    ],
)
def test_who_goes_where(tokens: int, routing: Routing) -> None:
    block = 64 if tokens in (5, 150) and routing.experts < 10 else 16
    scores = random(tokens, routing.experts + 3)[:, : routing.experts]
    routed = route(scores, routing, block)
    which, shares = chosen_by_torch(scores, routing)
    own = which - routing.first
    own[(own < 0) | (own >= routing.own)] = -1
    assert torch.equal(routed.chosen.long(), own)
    torch.testing.assert_close(routed.shares.double(), shares, rtol=1e-5, atol=1e-7)
    check_blocks(routed, block)


@pytest.mark.parametrize("tokens", [7, 70])
def test_all_to_one_expert_and_tokens_of_nobody(tokens: int) -> None:
    """Its blocks are many; experts that nobody chose have none, nor have tokens without a slot."""
    scores = torch.full((tokens, 6), -3.0, device=DEVICE)
    scores[:, 4] = 5.0
    slots = torch.arange(tokens, device=DEVICE)
    slots[2::3] = -1
    routed = route(scores, Routing(6, 2), 16, slots)
    assert (routed.chosen[slots < 0] == -1).all()
    assert routed.chosen[slots >= 0].tolist() == [[4, 0]] * int((slots >= 0).sum()), "of equal ones the first"
    check_blocks(routed, 16)
    none = route(scores, Routing(6, 1, first=0, here=3), 16)
    assert (none.chosen == -1).all() and (none.blocks[:, 0] == -1).all()
    check_blocks(none, 16)


def test_a_correction_changes_who_is_chosen_and_no_share() -> None:
    scores, correction = random(30, 10), random(10, seed=1)
    routing = Routing(10, 3, sigmoid=True, normalised=True, factor=1.5)
    routed = route(scores, routing, 16, correction=correction)
    which, shares = chosen_by_torch(scores, routing, correction)
    assert torch.equal(routed.chosen.long(), which) and not torch.equal(which, chosen_by_torch(scores, routing)[0])
    torch.testing.assert_close(routed.shares.double(), shares, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tokens", [3, 40])
@pytest.mark.parametrize(
    ("routing", "corrected"),
    [
        (Routing(20, 3, groups=4, kept=2, factor=16.0), False),  # DeepSeek V2, whose groups are of 20
        (Routing(32, 8, sigmoid=True, normalised=True, factor=2.5, groups=8, kept=4, best=2), True),  # V3
        (Routing(12, 4, sigmoid=True, groups=3, kept=1, best=2, first=4, here=4), True),
        (Routing(12, 2, sigmoid=True, groups=6, kept=1), False),
    ],
)
def test_experts_in_groups(routing: Routing, corrected: bool, tokens: int) -> None:
    """Most tokens have others than without."""
    scores, correction = random(tokens, routing.experts), random(routing.experts, seed=1) if corrected else None
    routed = route(scores, routing, 16, correction=correction)
    which, shares = chosen_by_torch(scores, routing, correction)
    own = which - routing.first
    own[(own < 0) | (own >= routing.own)] = -1
    assert torch.equal(routed.chosen.long(), own)
    assert not torch.equal(which, chosen_by_torch(scores, routing._replace(groups=1), correction)[0])
    torch.testing.assert_close(routed.shares.double(), shares, rtol=1e-5, atol=1e-7)
    check_blocks(routed, 16)


def test_scores_of_16_bits() -> None:
    scores = random(20, 8, dtype=torch.bfloat16)
    routed = route(scores, Routing(8, 2), 16)
    torch.testing.assert_close(routed.shares.double(), chosen_by_torch(scores, Routing(8, 2))[1], rtol=1e-5, atol=0)


def floats_of(weights: ExpertWeights) -> torch.Tensor:
    """In float64, by the formats' own words."""
    if weights.scales is None:
        return weights.numbers.double()
    if weights.format == "int8":
        return weights.numbers.double() * weights.scales.double()[..., None]
    low, high = (part.unflatten(-1, (-1, HALF)) for part in (weights.numbers & 15, weights.numbers >> 4))
    numbers = torch.stack([low, high], -2).flatten(-3).unflatten(-1, (-1, GROUP))
    if weights.format == "mxfp4":
        made = E2M1.to(DEVICE)[numbers.long()] * torch.exp2(weights.scales.double() - 127)[..., None]
    else:
        assert weights.middles is not None
        made = (numbers.double() - 8) * weights.scales.double()[..., None] + weights.middles.double()[..., None]
    return made.flatten(-2)[..., : weights.inputs]


def by_loop(
    x: torch.Tensor,
    routed: Routed,
    up: ExpertWeights,
    down: ExpertWeights,
    gate: Gate,
    dtype: torch.dtype,
    of_inputs: bool = False,
) -> torch.Tensor:
    """Token by token and choice by choice."""
    first, second = floats_of(up), floats_of(down)
    total = torch.zeros(len(x), second.shape[1], dtype=torch.float64, device=DEVICE)
    for token, choices in enumerate(routed.chosen.tolist()):
        for choice, expert in enumerate(choices):
            if expert < 0:
                continue
            share = routed.shares[token, choice].double()
            both = first[expert] @ x[token].double() * (share if of_inputs else 1)
            if up.bias is not None:
                both = both + up.bias[expert].double()
            g, u = both.chunk(2)
            if gate.limit is not None:
                g, u = g.clamp(max=gate.limit), u.clamp(-gate.limit, gate.limit)
            if gate.gelu:
                g = torch.nn.functional.gelu(g, approximate="tanh")
            else:
                g = g * (gate.alpha * g).sigmoid()
            made = second[expert] @ (g * (u + gate.offset)).to(dtype).double()
            if down.bias is not None:
                made = made + down.bias[expert].double()
            total[token] += made if of_inputs else made * share
    return total


def weights_of(
    form: str, experts: int, outputs: int, inputs: int, dtype: torch.dtype, seed: int, biased: bool = False
) -> ExpertWeights:
    weight = random(experts, outputs, inputs, seed=seed) / math.sqrt(inputs)
    bias = random(experts, outputs, dtype=dtype, seed=seed + 1) if biased else None
    if form == "floats":
        return ExpertWeights(weight.to(dtype), inputs, bias=bias)
    if form == "int8":
        return int8_weights(weight, bias)
    if form == "int4":
        return int4_weights(weight, bias)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(118, 122, (experts, outputs, inputs // 32), dtype=torch.uint8, generator=generator)
    return mxfp4_weights(blocks.to(DEVICE), scales.to(DEVICE), bias)


def made_and_wanted(
    form: str, tokens: int, dtype: torch.dtype, routing: Routing, sizes: tuple[int, int], gate: Gate, **asked: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden, inner = sizes
    x = random(tokens, hidden + 8, dtype=dtype)[:, :hidden]
    biased = asked.get("biased", False)
    up = weights_of(form, routing.own, 2 * inner, hidden, dtype, 3, biased)
    down = weights_of(form, routing.own, hidden, inner, dtype, 5, biased)
    launch = asked.get("launch") or SMALL
    routed = route(random(tokens, routing.experts, seed=9), routing, launch.block, asked.get("slots"))
    of_inputs = asked.get("of_inputs", False)
    made = add_up(run_experts(x, routed, up, down, gate, launch, of_inputs), routed)
    return made, by_loop(x, routed, up, down, gate, dtype, of_inputs)


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gate", [SILU, Gate(gelu=True), CLAMPED], ids=["silu", "gelu", "clamped"])
@pytest.mark.parametrize(("tokens", "sizes"), [(1, (48, 20)), (9, (40, 33)), (21, (32, 16))])
def test_experts_of_floats(dtype: torch.dtype, gate: Gate, tokens: int, sizes: tuple[int, int]) -> None:
    biased = gate is CLAMPED
    close(*made_and_wanted("floats", tokens, dtype, Routing(6, 2), sizes, gate, biased=biased), dtype)


@pytest.mark.parametrize(("dtype", "form"), pairwise(DTYPES, ["int8", "int4", "mxfp4"]))
def test_experts_of_fewer_bits(dtype: torch.dtype, form: str) -> None:
    """A row of 4 bits is filled up, and is longer than one tile."""
    biased = dtype != torch.float16
    gate = CLAMPED if biased else SILU
    close(*made_and_wanted(form, 3, dtype, Routing(4, 2), (160, 32), gate, biased=biased), dtype)


@pytest.mark.parametrize(("dtype", "form"), [(torch.float32, "floats"), (torch.bfloat16, "int8")])
def test_experts_of_tokens_times_their_shares(dtype: torch.dtype, form: str) -> None:
    """As Llama 4's are; biases are added to what was made of these."""
    routing = Routing(5, 2, sigmoid=True)
    found, wanted = made_and_wanted(form, 9, dtype, routing, (40, 32), SILU, biased=True, of_inputs=True)
    close(found, wanted, dtype)


@pytest.mark.parametrize("block", [64, 128])
def test_larger_blocks(block: int) -> None:
    launch = ExpertsLaunch(block, 32, 32, 4, 2)
    found, wanted = made_and_wanted("floats", 90, torch.float32, Routing(3, 2), (32, 16), SILU, launch=launch)
    close(found, wanted, torch.float32)


@pytest.mark.parametrize("tokens", [6, 40])
def test_parts_of_the_experts_add_up_to_all(tokens: int) -> None:
    """As members of a group have them; who has none of a token's experts adds 0."""
    whole, wanted = made_and_wanted("floats", tokens, torch.float32, Routing(6, 2, normalised=True), (24, 16), SILU)
    close(whole, wanted, torch.float32)
    up, down = weights_of("floats", 6, 32, 24, torch.float32, 3), weights_of("floats", 6, 24, 16, torch.float32, 5)
    x, total = random(tokens, 32)[:, :24], torch.zeros_like(whole)
    for first in (0, 3):
        routed = route(random(tokens, 6, seed=9), Routing(6, 2, normalised=True, first=first, here=3), 16)
        own, other = (one._replace(numbers=one.numbers[first : first + 3].contiguous()) for one in (up, down))
        total += add_up(run_experts(x, routed, own, other, launch=SMALL), routed)
    torch.testing.assert_close(total, whole, rtol=1e-5, atol=1e-6)


def test_a_token_has_the_same_bits_beside_others_and_nobody_gets_nothing() -> None:
    """Also where another expert is hit by all of them."""
    up, down = weights_of("floats", 5, 32, 24, torch.float32, 3), weights_of("floats", 5, 24, 16, torch.float32, 5)
    x, scores = random(40, 24), random(40, 5, seed=9)
    slots = torch.zeros(40, dtype=torch.int64, device=DEVICE)
    slots[5] = -1

    def run(rows: slice) -> torch.Tensor:
        routed = route(scores[rows], Routing(5, 2), 16, slots[rows])
        made = run_experts(x[rows], routed, up, down, launch=SMALL)
        made[routed.chosen.flatten() < 0] = math.nan  # memory that nobody has written
        return add_up(made, routed)

    together = run(slice(None))
    assert torch.equal(together[5], torch.zeros(24, device=DEVICE))
    for row in (0, 7, 39):
        assert torch.equal(run(slice(row, row + 1))[0], together[row])
    assert torch.equal(run(slice(3, 12)), together[3:12])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_all_tokens_go_through_is_added(gated: bool, dtype: torch.dtype) -> None:
    routed = route(random(6, 4), Routing(4, 2, first=0, here=2), 16)
    made, beside = random(12, 30, dtype=dtype), random(6, 40, dtype=dtype, seed=1)[:, :30]
    gate = random(6, 1, dtype=dtype, seed=2) if gated else None
    own = made.view(6, 2, 30).double().masked_fill(routed.chosen[..., None] < 0, 0).sum(1)
    other = beside.double() * (gate.double().sigmoid() if gate is not None else 1)
    close(add_up(made, routed, beside, gate), own + other, dtype)


def test_sizes_follow_from_how_many_pairs_an_expert_has() -> None:
    blocks = [launch_of(torch.bfloat16, 8 * tokens, 128).block for tokens in (1, 256, 512, 2048, 4096)]
    assert blocks == [16, 16, 64, 64, 128]
    assert {launch_of(torch.bfloat16, pairs, 128, fixed=True) for pairs in (8, 1 << 16)} == {
        launch_of(torch.bfloat16, 8 * 512, 128)
    }
    assert all(launch_of(torch.bfloat16, pairs, 32, "mxfp4").tile_k == HALF for pairs in (4, 1000, 1 << 16))
    assert [launch_of(torch.bfloat16, pairs, 128, "int4").block for pairs in (8, 4096, 32768)] == [16, 32, 128]
    assert padded(2880) == 2944 and padded(128) == 128


def test_numbers_of_4_bits_are_made_again_as_they_were() -> None:
    """Whatever their scales were; of others each becomes the nearest."""
    source = weights_of("mxfp4", 3, 5, 96, torch.float32, 1)
    assert torch.equal(floats_of(as_mxfp4(floats_of(source).float())), floats_of(source))
    weight = random(2, 3, 70)
    made = floats_of(as_mxfp4(weight))
    assert ((made - weight.double()).abs() <= weight.double().abs().amax() / 6 + 1e-9).all()
    assert torch.equal(floats_of(as_mxfp4(torch.zeros(1, 2, 40))), torch.zeros(1, 2, 40, dtype=torch.float64))


def test_no_tokens() -> None:
    routed = route(random(0, 4), Routing(4, 2), 16)
    up, down = weights_of("floats", 4, 32, 24, torch.float32, 3), weights_of("floats", 4, 24, 16, torch.float32, 5)
    assert add_up(run_experts(random(0, 24), routed, up, down, launch=SMALL), routed).shape == (0, 24)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scores": random(3, 5)}, r"floats \[tokens, 4\]"),
        ({"routing": Routing(4, 5)}, "5 of 4 experts"),
        ({"routing": Routing(4, 2, first=3, here=2)}, "experts 3 to 5"),
        ({"block": 24}, "power of two"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, "slots"),
        ({"correction": random(3)}, "correction"),
        ({"routing": Routing(4, 2, groups=3)}, "3 groups of 4"),
        ({"routing": Routing(4, 2, groups=2, kept=3)}, "3 of 2 groups"),
        ({"routing": Routing(4, 2, groups=4, kept=1)}, "2 experts of 1 of 4"),
        ({"routing": Routing(4, 2, groups=2, best=2)}, "sigmoids"),
    ],
)
def test_what_routing_cannot_take(change: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"scores": random(3, 4), "routing": Routing(4, 2), "block": 16} | change
    with pytest.raises(ValueError, match=said):
        route(**call)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": random(3, 23)}, "do not fit"),
        ({"x": random(2, 24)}, "x .* must be"),
        ({"x": random(3, 24).half()}, "are no floats of 24"),
        ({"up": ExpertWeights(random(4, 30, 24), 24)}, "do not fit"),
        ({"up": ExpertWeights(random(4, 32, 24), 24, bias=random(4, 31))}, "bias"),
        ({"up": ExpertWeights(random(4, 32, 24).to(torch.int8), 24, random(4, 31))}, "scales"),
        ({"up": ExpertWeights(random(4, 32, 24).to(torch.uint8), 24, random(4, 32))}, "are no mxfp4"),
        ({"launch": ExpertsLaunch(64)}, "not of 64"),
    ],
)
def test_what_products_cannot_take(change: dict[str, Any], said: str) -> None:
    routed = route(random(3, 4), Routing(4, 2), 16)
    up, down = weights_of("floats", 4, 32, 24, torch.float32, 3), weights_of("floats", 4, 24, 16, torch.float32, 5)
    call: dict[str, Any] = {"x": random(3, 24), "routed": routed, "up": up, "down": down} | change
    with pytest.raises(ValueError, match=said):
        run_experts(**call)
    with pytest.raises(ValueError, match="beside"):
        add_up(random(6, 24), routed, random(3, 23))
