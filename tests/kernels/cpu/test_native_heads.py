"""Heads that are normed and turned in C, against torch."""

from __future__ import annotations

import pytest
import torch

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.heads import HeadNorm, HeadRules, TurnedHeads, Turning
from actorserve.kernels.cpu.native.variants import variants
from tests.support.compiler import need_compiler

HEADS, KV_HEADS, ROWS = 6, 2, 33


def turned(x: torch.Tensor, kind: Turning, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Heads [rows, heads, head_dim], of which the first numbers turn."""
    size = cosines.shape[1]
    own, rest = x[..., :size], x[..., size:]
    if kind is Turning.NONE:
        return x
    if kind is Turning.HALVES:
        other = torch.cat([-own[..., size // 2 :], own[..., : size // 2]], -1)
    else:
        other = torch.stack([-own[..., 1::2], own[..., ::2]], -1).flatten(-2)
        step = slice(0, None, 2) if kind is Turning.PAIRS else slice(0, size // 2)
        cosines, sines = (table[:, step].repeat_interleave(2, 1) for table in (cosines, sines))
    return torch.cat([own * cosines[:, None] + other * sines[:, None], rest], -1)


def normed(x: torch.Tensor, norm: HeadNorm) -> torch.Tensor:
    rows = x.flatten(1).unflatten(1, (-1, len(norm.gain)))
    return torch.nn.functional.rms_norm(rows, norm.gain.shape, norm.gain, norm.eps).view(x.shape)


@pytest.mark.parametrize("variant", [one.name for one in variants(cpu_flags())])
@pytest.mark.parametrize("kind", list(Turning))
def test_heads_are_normed_and_turned(variant: str, kind: Turning) -> None:
    need_compiler()
    library = native.load(cpu_flags(), variant)
    library.set_threads(2)
    generator = torch.Generator().manual_seed(int(kind))
    for head_dim, size, whole, last in ((16, 16, False, False), (24, 8, True, False), (10, 10, False, True)):
        tables = torch.randn(2, ROWS, size, generator=generator)
        qkv = torch.randn(ROWS, (HEADS + 2 * KV_HEADS) * head_dim, generator=generator)
        norms = [
            HeadNorm(torch.rand(head_dim * (count if whole else 1), generator=generator), 1e-5)
            for count in (HEADS, KV_HEADS)
        ]
        heads = qkv.unflatten(1, (-1, head_dim)).double()
        parts = list(heads.split([HEADS, KV_HEADS, KV_HEADS], 1))
        for number, norm in enumerate(norms):
            exact = HeadNorm(norm.gain.double(), norm.eps)
            part = parts[number] if last else normed(parts[number], exact)
            part = turned(part, kind, *tables.double())
            parts[number] = normed(part, exact) if last else part
        expected = torch.cat(parts, 1).flatten(1).float()
        own = TurnedHeads(library, HeadRules(HEADS, KV_HEADS, head_dim, kind, size, norms[0], norms[1], last))
        found = qkv.clone()
        own(found, *tables)
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
        for row in (0, 7, ROWS - 1):  # alone
            alone = qkv[row : row + 1].clone()
            own(alone, *tables[:, row : row + 1])
            assert torch.equal(alone[0], found[row])
    library.set_threads(1)
