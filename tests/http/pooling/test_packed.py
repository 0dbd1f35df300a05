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


@pytest.mark.parametrize("kind", get_args(Type))
def test_numbers_are_rounded_to_the_nearest(kind: Type) -> None:
    floats = torch.tensor(NUMBERS, dtype=torch.float32)
    wanted = floats.to(TYPES[kind]).view(torch.uint8).numpy()
    given = floats.numpy().tobytes()
    assert Packed(kind).pack(given) == Packed(kind, "little").pack(given) == wanted.tobytes()
    size = TYPES[kind].itemsize
    assert Packed(kind, "big").pack(given) == wanted.reshape(-1, size)[:, ::-1].tobytes()


@pytest.mark.parametrize(("kind", "largest"), [("float16", 65504.0), ("fp8_e4m3", 448.0), ("fp8_e5m2", 57344.0)])
def test_what_there_is_no_room_for_is_the_largest(kind: Type, largest: float) -> None:
    made = Packed(kind).pack(array("f", [1e6, -1e6]).tobytes())
    found = torch.frombuffer(bytearray(made), dtype=TYPES[kind]).to(torch.float32)
    assert found.tolist() == [largest, -largest]
