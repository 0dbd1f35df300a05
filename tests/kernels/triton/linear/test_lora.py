"""What adapters add to products, against float64, in the interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.linear import lora  # noqa: E402
from actorserve.kernels.triton.linear.lora import GAINED, LoraLaunch, LoraSlots, TokenBlocks, most_blocks  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of numbers around 1
NAN = float("nan")
TINY = LoraLaunch(block=4, tile_k=16, tile_n=16)
RANKED = {0: (0, 0, 0), 1: (3, 0, 20), 2: (16, 5, 1), 3: (32, 32, 32)}  # of the parts, by slot


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def filled(sizes: tuple[int, ...], inputs: int, dtype: torch.dtype) -> LoraSlots:
    """Slots 1 and 3 have gains; what no adapter has is not a number."""
    slots = LoraSlots.make(sizes, inputs, len(RANKED), 32, dtype, DEVICE)
    for tensor in slots[:3]:
        tensor.fill_(NAN)
    for slot, ranks in RANKED.items():
        begin = 0
        for part, (size, rank) in enumerate(zip(sizes, ranks, strict=False)):
            room = lora.padded(rank)  # which holds zeros where there are no ranks
            slots.a[slot, part * 32 : part * 32 + room] = 0
            slots.b[slot, begin : begin + size, :room] = 0
            slots.a[slot, part * 32 : part * 32 + rank] = random(rank, inputs, seed=7 * slot + part) / inputs**0.5
            slots.b[slot, begin : begin + size, :rank] = random(size, rank, seed=9 * slot + part) / 3
            slots.about[slot, part] = rank
            begin += size
        if slot % 2:
            slots.gain[slot] = random(sum(sizes), seed=slot) / 2
            slots.about[slot, GAINED] = 1
    return slots


def blocks_of(slot_of: list[int], launch: LoraLaunch) -> TokenBlocks:
    """One behind the other, and some that are none."""
    blocks: list[list[int]] = []
    tokens: list[int] = []
    for slot in sorted({*slot_of} - {-1}):
        own = [token for token, one in enumerate(slot_of) if one == slot]
        for at in range(0, len(own), launch.block):
            blocks.append([slot, len(tokens), len(own[at : at + launch.block])])
            tokens += own[at : at + launch.block]
    assert len(blocks) <= most_blocks(len(slot_of), len(RANKED), launch.block)
    made = torch.tensor([*blocks, [-1, 0, 0], [-1, 9, 9]], dtype=torch.int32, device=DEVICE)
    return TokenBlocks(made, torch.tensor([*tokens, -1], dtype=torch.int32, device=DEVICE), launch)


def wanted(x: Tensor, y: Tensor, bias: Tensor | None, slots: LoraSlots, slot_of: list[int]) -> Tensor:
    """In float64, token by token."""
    made = y.double()
    for token, slot in enumerate(slot_of):
        begin = 0
        for part, (size, rank) in enumerate(zip(slots.sizes, RANKED[slot] if slot >= 0 else (), strict=False)):
            own = slice(begin, begin + size)
            begin += size
            if not rank:
                continue
            plain = made[token, own].clone()
            inner = slots.a[slot, part * 32 : part * 32 + rank].double() @ x[token].double()
            made[token, own] += slots.b[slot, own, :rank].double() @ inner
            if slot % 2:
                without = plain if bias is None else plain - bias[own].double()
                made[token, own] += slots.gain[slot, own].double() * without
    return made


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        (torch.float32, (32, 16, 18)),
        (torch.bfloat16, (24, 24)),
        *(
            pytest.param(dtype, sizes, marks=pytest.mark.slow)
            for dtype in TOLERANCE
            for sizes in ((40,), (24, 24), (5, 5, 5), (9, 33, 8))
        ),
    ],
)
def test_a_mix_of_adapters_and_none(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """Tokens of one adapter stand apart, and are more than a block; ranks differ by part; one has parts without any."""
    slot_of = [3, -1, 1, 3, 2, 3, 0, 3, 3]
    wide = random(len(slot_of), 90).to(dtype)
    wide[:, 70:] = NAN  # rows lie apart
    x, y, bias = wide[:, :70], random(len(slot_of), sum(sizes), seed=1).to(dtype), random(sum(sizes), seed=2).to(dtype)
    slots = filled(sizes, 70, dtype)
    for own in (bias, None):
        given, found = blocks_of(slot_of, TINY), y.clone()
        inner = lora.make_inner(len(x), slots, DEVICE).fill_(NAN)
        lora.shrink(x, slots, given, inner)
        lora.expand(inner, found, own, slots, given)
        exact = wanted(x, y, own, slots, slot_of)
        torch.testing.assert_close(found.double(), exact, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
        assert (exact - y.double()).abs().max() > 0.5, "they add something"
        for token, slot in enumerate(slot_of):
            assert slot > 0 or torch.equal(found[token], y[token]), "a token without one has the bits that it had"


def test_long_sums_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """By inputs alone, so that a token has the same bits alone and among others."""
    monkeypatch.setattr(lora, "LEAST", 32)
    slot_of = [3, 1, 3, 3]
    x, y, slots = random(4, 100), random(4, 40, seed=1), filled((40,), 100, torch.float32)

    def added(tokens: list[int]) -> Tensor:
        own, given = y[tokens].clone(), blocks_of([slot_of[token] for token in tokens], TINY)
        inner = lora.make_inner(len(tokens), slots, DEVICE)
        assert len(inner) == 3
        lora.shrink(x[tokens], slots, given, inner)
        lora.expand(inner, own, None, slots, given)
        return own

    together = added([0, 1, 2, 3])
    torch.testing.assert_close(together.double(), wanted(x, y, None, slots, slot_of), rtol=1e-5, atol=1e-5)
    for token in range(4):
        assert torch.equal(added([token])[0], together[token])


def test_what_does_not_fit() -> None:
    slots, given = filled((8,), 16, torch.float32), blocks_of([1], TINY)
    inner = lora.make_inner(1, slots, DEVICE)
    for x in (random(1, 17), random(1, 16).half(), random(2, 16)):
        with pytest.raises(ValueError, match=r"does not fit A|of another step"):
            lora.shrink(x, slots, given, inner)
    with pytest.raises(ValueError, match="does not fit B"):
        lora.expand(inner, random(1, 9), None, slots, given)
    with pytest.raises(ValueError, match="1 to 4 parts"):
        LoraSlots.make((), 16, 1, 8, torch.float32, DEVICE)
