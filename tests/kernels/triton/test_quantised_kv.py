"""KV of 8 bits: what is written, bit for bit, and how far attention over it is from attention over what was there."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

import triton
import triton.language as tl

from actorserve.kernels.pages import Pages, Scoring
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.quantised_kv import (
    E4M3,
    LARGEST,
    Scales,
    check_scales,
    encode,
    scale_code,
    scale_of,
    supported,
    widen,
)
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write
from tests.kernels.reference.attention import reference_attention
from tests.kernels.reference.quantised_kv import dequantise, quantise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def _convert(numbers: Any, codes: Any, back: Any, peaks: Any, scales: Any, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    code = encode(tl.load(numbers + at))
    tl.store(codes + at, code)
    tl.store(back + at, widen(code, tl.float32))
    scale = scale_code(tl.load(peaks + at))
    tl.store(scales + at, scale_of(scale))


convert_kernel = triton.jit(_convert)


def convert(numbers: torch.Tensor, peaks: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(bytes, the numbers of these, scales of peaks)."""
    size = triton.next_power_of_2(len(numbers))
    inputs = [torch.nn.functional.pad(part, (0, size - len(part))).to(DEVICE) for part in (numbers, peaks)]
    codes = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
    back, scales = torch.zeros(2, size, device=DEVICE)
    convert_kernel[(1,)](inputs[0], codes, back, inputs[1], scales, SIZE=size)
    return codes[: len(numbers)].cpu(), back[: len(numbers)].cpu(), scales[: len(peaks)].cpu()


def test_numbers_are_rounded_as_torch_rounds_them() -> None:
    """All numbers of the format, what is halfway between two of them, their neighbours, and random ones."""
    exact = torch.arange(0, 0x7F, dtype=torch.uint8).view(E4M3).float()
    halfway = (exact[1:] + exact[:-1]) / 2
    random = torch.randn(1500, generator=torch.Generator().manual_seed(0)) * torch.tensor([1e-3, 1.0, 100.0]).repeat(
        500
    )
    numbers = torch.cat([exact, halfway, *(halfway.nextafter(halfway + side) for side in (-1, 1)), random])
    numbers = torch.cat([numbers, -numbers]).clamp(-LARGEST, LARGEST)
    codes, back, _ = convert(numbers, numbers.abs())
    assert torch.equal(codes, numbers.to(E4M3).view(torch.uint8))
    assert torch.equal(back, numbers.to(E4M3).float())


def test_numbers_that_are_too_large_or_none() -> None:
    numbers = torch.tensor([449.0, -1e30, float("inf"), float("-inf"), float("nan"), 1e-30, -1e-45])
    codes, _, _ = convert(numbers, numbers)
    assert codes.tolist() == [0x7E, 0xFE, 0x7F, 0xFF, codes[4], 0, 0x80] and codes[4] & 0x7F == 0x7F


def test_a_scale_is_the_least_that_cuts_nothing_off() -> None:
    edges = LARGEST * 2.0 ** torch.arange(-100, 100)
    peaks = torch.cat([edges, edges.nextafter(edges * 2), edges.nextafter(edges / 2), torch.rand(300) * 1e4])
    _, _, scales = convert(peaks, peaks)
    assert (peaks <= LARGEST * scales).all() and (peaks > LARGEST * scales / 2).all()
    _, codes = quantise(peaks[:, None])
    assert torch.equal(dequantise(torch.ones(len(peaks), 1).to(E4M3), codes)[:, 0], scales)
    _, _, nothing = convert(torch.zeros(1), torch.zeros(1))
    assert nothing > 0 and quantise(torch.zeros(1, 4))[1] == 1, "0 divides no head of zeros"


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 3e4])
def test_the_error_of_a_number(size: float) -> None:
    """A sixteenth of itself, or half of 2^-9 with a scale of less than 1/224 of the largest of its head."""
    numbers = torch.randn(50, 64, generator=torch.Generator().manual_seed(1)) * size
    numbers[::2, 7] *= 300
    error = (dequantise(*quantise(numbers)) - numbers).abs()
    assert (error <= torch.maximum(numbers.abs() / 16, numbers.abs().amax(-1, keepdim=True) / 224 / 1024)).all()


def outliers(numbers: torch.Tensor, kind: str) -> torch.Tensor:
    """As models have them: a few dimensions of all tokens, or a token now and then, far above the others and 448."""
    if kind == "dimensions":
        numbers[..., [3, 17]] *= 400
    elif kind == "tokens":
        numbers[::13] *= 500
    return numbers


@pytest.mark.parametrize(
    ("kind", "dtype"), [("none", torch.bfloat16), ("dimensions", torch.float16), ("tokens", torch.bfloat16)], ids=str
)
def test_attention_over_what_was_written(kind: str, dtype: torch.dtype) -> None:
    """Written by one kernel and read by the others, against the exact numbers in float32: 1/16 a number at most, so
    around 1/30 of a result that is the mean of some values. Keys that are far off would give quite other weights."""
    torch.manual_seed(3)
    tokens, size, head_dim = 96, 32, 64
    q, k, v = torch.randn(tokens, 4, head_dim), torch.randn(tokens, 2, head_dim), torch.randn(tokens, 2, head_dim)
    q, k, v = (part.to(DEVICE, dtype) for part in (q, outliers(k, kind), outliers(v, kind)))
    keys, values = torch.zeros(2, 4, 2, size, head_dim, dtype=torch.uint8, device=DEVICE).view(E4M3)
    scales = Scales.make(keys)
    positions = torch.arange(tokens, device=DEVICE)
    turns = RotaryTables(
        torch.ones(tokens, head_dim // 2, device=DEVICE), torch.zeros(tokens, head_dim // 2, device=DEVICE)
    )
    rotate_and_write(q, k, v, positions, positions + size, turns, Pools(keys, values, scales))
    table = torch.tensor([[1, 2, 3]], dtype=torch.int32, device=DEVICE)
    pages = Pages(keys, values, table, torch.tensor([tokens], dtype=torch.int32, device=DEVICE), scales)
    before = [part.transpose(0, 1).unflatten(1, (3, size)).transpose(0, 1) for part in (k, v)]
    wide_k, wide_v = (torch.cat([part[:1], part]) for part in before)  # block 0 is of nobody
    exact = Pages(wide_k, wide_v, table, pages.lengths)
    scoring = Scoring(head_dim**-0.5 / (1 if kind == "none" else 400))
    wanted = reference_attention(q, [0, tokens], exact, scoring)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=DEVICE)
    found = paged_prefill(q, starts, pages, scoring).float()
    last = paged_decode(q[-1:].contiguous(), pages, scoring, Scratch.make(q[-1:], 1)).float()
    torch.testing.assert_close(last, found[-1:], rtol=1e-2, atol=1e-2)
    for head in range(4):
        error = (found - wanted)[:, head].square().mean().sqrt() / wanted[:, head].square().mean().sqrt()
        assert 0.001 < error < 0.045, (kind, head, error)


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e6])
@pytest.mark.parametrize("outlier", [1.0, 1e6])
def test_decoding_of_values_that_float16_does_not_hold(size: float, outlier: float) -> None:
    """Which it multiplies with; queries are as large, and a token in the middle is far off the others."""
    torch.manual_seed(4)
    rows, heads, head_dim, block = 2, 4, 64, 16
    keys, values = torch.randn(2, 16, 2, block, head_dim)
    values *= size
    values[3, :, 5] *= outlier
    (keys, key_scales), (values, value_scales) = quantise(keys / 1e5), quantise(values)
    scales = Scales(key_scales.to(DEVICE), value_scales.to(DEVICE))
    table = torch.arange(16, dtype=torch.int32, device=DEVICE).view(rows, 8)
    lengths = torch.tensor([128, 77], dtype=torch.int32, device=DEVICE)
    pages = Pages(keys.to(DEVICE), values.to(DEVICE), table, lengths, scales)
    q = (torch.randn(rows, heads, head_dim) * 1e5).to(DEVICE, torch.bfloat16)
    scoring = Scoring(head_dim**-0.5)
    wanted = reference_attention(q, [0, 1, 2], pages, scoring)
    for splits in (1, 3):
        found = paged_decode(q, pages, scoring, Scratch.make(q, splits)).float()
        error = (found - wanted).abs().amax(-1) / wanted.abs().amax(-1)
        assert error.max() < 2**-7, (error, "bfloat16, which the interpreter cuts off")


def test_misfits_are_refused() -> None:
    keys, values = torch.zeros(2, 3, 2, 16, 64, dtype=torch.uint8).view(E4M3)
    scales = Scales.make(keys)
    check_scales(keys, values, scales)
    wrong: list[tuple[str, tuple[Any, ...]]] = [
        ("missing", (keys, values, None)),
        ("there", (keys.float(), values.float(), scales)),
        ("values torch.float32", (keys, values.float(), scales)),
        ("of values .*float32", (keys, values, scales._replace(values=scales.values.float()))),
        ("of keys .*do not fit", (keys, values, scales._replace(keys=scales.keys[1:]))),
        ("strides", (keys, values, scales._replace(values=scales.values.mT.contiguous().mT))),
    ]
    for message, given in wrong:
        with pytest.raises(ValueError, match=message):
            check_scales(*given)
    assert supported(torch.device("cpu"))
