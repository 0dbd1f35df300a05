"""What keys and values of 8 bits and fewer become, against the same in float64 (reference/kv_formats.py)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import KV_TYPES
from actorserve.kernels.cpu.kv_formats import CODECS, LLOYD_3, LLOYD_4, quantise, restore, turned, turned_back
from tests.kernels.reference.kv_formats import decode, levels, lloyd, rotation

WIDTHS = {"int8": (24, 128), "fp8": (24, 128), "nvfp4": (48, 128), "turbo4": (48, 80, 128), "turbo3": (48, 80, 128)}
CASES = [(kept, width) for kept, widths in WIDTHS.items() for width in widths]


def heads(width: int) -> torch.Tensor:
    """Of all sizes, some with outliers."""
    generator = torch.Generator().manual_seed(width)
    made = torch.randn(40, 3, width, generator=generator)
    made[:, 1, 5] *= 30
    return made * torch.logspace(-4, 4, 40)[:, None, None]


def read(kept: str, values: torch.Tensor) -> torch.Tensor:
    out = torch.empty(values.shape)
    restore(kept, *quantise(values, kept), out)
    return out


def test_every_type_is_made_of_these() -> None:
    names = {part.name for kind in KV_TYPES.values() for part in (kind.keys, kind.values) if part.scale_bytes}
    assert names == set(CODECS) == set(WIDTHS)


@pytest.mark.parametrize(("kept", "width"), CASES)
def test_what_is_read_is_what_the_codes_stand_for(kept: str, width: int) -> None:
    codes, scales = quantise(heads(width), kept)
    size = next(part for kind in KV_TYPES.values() for part in (kind.keys, kind.values) if part.name == kept)
    assert codes.shape == (40, 3, size.bytes_of(width))
    wanted = decode(kept, codes.numpy(), scales.numpy())
    found = read(kept, heads(width)).double().numpy()
    most = np.abs(wanted).max(-1, keepdims=True)
    assert (np.abs(found - wanted) <= 1e-6 * most).all()


@pytest.mark.parametrize(("kept", "width"), CASES)
def test_no_other_code_is_nearer(kept: str, width: int) -> None:
    """Of each number by itself, in the units in which it is coded."""
    values = heads(width)
    codes, scales = quantise(values, kept)
    exact = values.double().numpy()
    if kept == "nvfp4":
        groups = codes.numpy().reshape(40, 3, -1, 9)
        steps = decode("fp8", groups[..., 8], scales.numpy())
        ideal = np.abs(exact).reshape(40, 3, -1, 16).max(-1) / 6
        assert (np.abs(steps - ideal) <= ideal / 16 + 1e-12).all(), "e4m3 has three bits behind the first"
        own = exact.reshape(40, 3, -1, 16) / steps[..., None]
        kinds = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        table = np.concatenate([-kinds, kinds])
        found = decode("nvfp4", codes.numpy(), scales.numpy()).reshape(own.shape) / steps[..., None]
    elif kept.startswith("turbo"):
        norms = np.linalg.norm(exact, axis=-1, keepdims=True)
        own, table = exact @ rotation(width).T / norms * math.sqrt(width), levels(kept)
        found = decode(kept, codes.numpy(), scales.numpy())
        assert np.allclose(np.linalg.norm(found, axis=-1, keepdims=True), norms, rtol=1e-6), "as long as the head"
        found = found @ rotation(width).T / scales.double().numpy()[..., None]
    else:
        own, table = exact / scales.double().numpy()[..., None], levels(kept)
        found = decode(kept, codes.numpy(), scales.numpy()) / scales.double().numpy()[..., None]
    nearest = np.abs(own[..., None] - table).min(-1)
    assert (np.abs(own - found) <= nearest + 1e-5 * np.maximum(1, np.abs(own))).all()


def test_a_scale_of_fp8_is_the_least_power_of_two() -> None:
    values = heads(24)
    values[0, 0, 0], values[1, 0, 0] = 448.0, 448.1
    values[0, 0, 1:], values[1, 0, 1:] = 1, 1
    scales = quantise(values, "fp8")[1].double()
    most = values.abs().amax(-1).double()
    assert torch.equal(scales.log2(), scales.log2().round())
    assert (most / scales <= 448).all() and (most / scales * 2 > 448).all()
    assert [float(scales[0, 0]), float(scales[1, 0])] == [1, 2]


def test_numbers_of_lloyd_are_means_of_what_is_nearest() -> None:
    assert lloyd(16)[8:] == pytest.approx(LLOYD_4, rel=1e-7) and lloyd(8)[4:] == pytest.approx(LLOYD_3, rel=1e-7)


@pytest.mark.parametrize("width", [16, 48, 64, 80, 112, 256])
def test_heads_are_turned_by_a_rotation(width: int) -> None:
    matrix = rotation(width)
    assert np.allclose(matrix @ matrix.T, np.eye(width), atol=1e-12)
    values = torch.randn(7, width)
    torch.testing.assert_close(turned(values).double(), values.double() @ torch.from_numpy(matrix).T, rtol=0, atol=2e-6)
    torch.testing.assert_close(turned_back(turned(values)), values, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kept", CODECS)
def test_errors_are_those_of_the_format(kept: str) -> None:
    """The mean of squares beside that of normal numbers, and of numbers with an outlier in each head."""
    plain, spiky = torch.randn(500, 128), torch.randn(500, 128)
    spiky[:, 7] = 40
    most = {"int8": (8e-5, 1e-3), "fp8": (1e-3, 1e-3), "nvfp4": (0.011, 0.011), "turbo4": (0.011, 0.011)}
    for values, bound in zip((plain, spiky), most.get(kept, (0.04, 0.04)), strict=True):
        error = float((read(kept, values) - values).square().mean() / values.square().mean())
        assert bound / 20 < error < bound


@pytest.mark.parametrize("kept", CODECS)
def test_odd_heads(kept: str) -> None:
    values = torch.randn(5, 48)
    values[0], values[1, 3], values[2, 4], values[3] = 0, torch.nan, -torch.inf, values[3] * 1e-30
    before = read(kept, values[4:])
    found = read(kept, values)
    assert not found[0].any() and found[1].isnan().all() and found[2].isnan().all()
    assert found[3].isfinite().all() and found[3].abs().max() < 1e-29
    assert torch.equal(found[4:], before), "one head does not change another's bits"
