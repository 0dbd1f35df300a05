"""Vectors as bytes are those that torch makes of them."""

from __future__ import annotations

from array import array
from typing import get_args

import numpy as np
import pytest
import torch

from actorserve.http.pooling.packed import Packed, Type

TYPES = {
    **{"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16},
    **{"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2},
}
NUMBERS = [*np.random.default_rng(1).normal(0, 0.5, 3000), 0.0, -0.0, 1.0, 448.0, -1.0625, 1.1875, 2.0**-9, 1e-8, 3e-6]


NANS, INFINITIES = [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], [0x7F800000, 0xFF800000]


async def packed(packing: Packed, given: bytes) -> bytes:
    (made,) = await packing.pack([given])
    return made


def numbers(made: bytes, kind: Type) -> torch.Tensor:
    return torch.frombuffer(bytearray(made), dtype=TYPES[kind]).to(torch.float32)


@pytest.mark.parametrize("kind", get_args(Type))
async def test_numbers_are_rounded_to_the_nearest(kind: Type) -> None:
    floats = torch.tensor(NUMBERS, dtype=torch.float32)
    wanted = floats.to(TYPES[kind]).view(torch.uint8).numpy()
    given = floats.numpy().tobytes()
    assert await packed(Packed(kind), given) == await packed(Packed(kind, "little"), given) == wanted.tobytes()
    size = TYPES[kind].itemsize
    assert await packed(Packed(kind, "big"), given) == wanted.reshape(-1, size)[:, ::-1].tobytes()


@pytest.mark.parametrize("kind", ["bfloat16", "fp8_e4m3", "fp8_e5m2"])
async def test_bits_that_are_cut_off_count(kind: Type) -> None:
    """Numbers at the middle of two others, and those next to them on both sides."""
    highs = np.arange(0x3800, 0x43E0, dtype=np.uint32)[:, None] << 16
    words = (highs | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).reshape(-1)
    wanted = torch.from_numpy(words.view(np.float32)).to(TYPES[kind]).view(torch.uint8).numpy().tobytes()
    assert await packed(Packed(kind), words.tobytes()) == wanted


@pytest.mark.parametrize(
    ("kind", "largest"),
    [("float16", 65504.0), ("bfloat16", 3.3895313892515355e38), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)],
)
async def test_what_there_is_no_room_for_is_the_largest(kind: Type, largest: float) -> None:
    most = float(np.finfo(np.float32).max)
    made = await packed(Packed(kind), array("f", [most, -most, 1.0]).tobytes())
    assert numbers(made, kind).tolist() == [largest, -largest, 1.0]


@pytest.mark.parametrize("kind", get_args(Type))
async def test_what_is_no_number_stays_so(kind: Type) -> None:
    found = numbers(await packed(Packed(kind), array("I", [*NANS, *INFINITIES, 0x3F800000]).tobytes()), kind)
    assert found[:4].isnan().all() and found[6] == 1
    most = 448.0 if kind == "fp8_e4m3" else float("inf")  # the one type without infinity
    assert found[4:6].tolist() == [most, -most]
