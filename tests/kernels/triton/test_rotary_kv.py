"""Rotation and KV write against the formula, and against what the model does on a CPU."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.rope import Rope  # noqa: E402
from actorserve.actors.worker.cpu.layers.elementwise import rotate  # noqa: E402
from actorserve.actors.worker.cpu.layers.norm import RMSNorm  # noqa: E402
from actorserve.actors.worker.cpu.layers.rotation import rotation_table  # noqa: E402
from actorserve.kernels.triton.quantised_kv import E4M3, Scales  # noqa: E402
from actorserve.kernels.triton.rotary_kv import KeyNorm, Norms, Pools, RotaryTables, rotate_and_write  # noqa: E402
from tests.kernels.reference.quantised_kv import dequantise, quantise  # noqa: E402
from tests.kernels.reference.rotary import reference_norm, reference_rotate  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # numbers are up to 4: one step of these
POSITIONS = 500
NO_RESERVE = 0x4000  # of Linux' mmap; Python names it from 3.13 on
EPS = 1e-5


@dataclass(frozen=True)
class Case:
    tokens: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary: int | None = None  # all of the head
    block_size: int = 16
    dtype: torch.dtype = torch.float32
    norm: bool = False
    interleaved: bool = False
    in_place: bool = True
    scaled: bool = False  # pools of 8 bits
    unit: bool = False
    grows: bool = False


class Data:
    """Random inputs of a case; q, k and v are parts of one matrix, pools hold NaN."""

    def __init__(self, case: Case) -> None:
        self.case = case
        random = torch.Generator().manual_seed(case.head_dim)
        total = case.heads + 2 * case.kv_heads
        self.merged = torch.randn(case.tokens, total, case.head_dim, generator=random).to(DEVICE, case.dtype)
        self.q = self.merged[:, : case.heads]
        self.k = self.merged[:, case.heads : case.heads + case.kv_heads]
        self.v = self.merged[:, case.heads + case.kv_heads :]
        self.positions = torch.randint(0, POSITIONS, (case.tokens,), generator=random).to(DEVICE)
        angles = torch.rand(POSITIONS, (case.rotary or case.head_dim) // 2, generator=random) * 6
        self.turns = RotaryTables(angles.cos().to(DEVICE), angles.sin().to(DEVICE))
        shape = (5, case.kv_heads, case.block_size, case.head_dim)
        if case.scaled:
            keys, values = torch.full((2, *shape), 0x7F, dtype=torch.uint8, device=DEVICE).view(E4M3)
            self.pools = Pools(keys, values, Scales.make(keys))
        else:
            keys, values = torch.full((2, *shape), float("nan"), dtype=case.dtype, device=DEVICE)
            self.pools = Pools(keys, values)
        self.slots = torch.randperm(5 * case.block_size, generator=random)[: case.tokens].to(DEVICE)
        gains = torch.randn(2, case.head_dim, generator=random).to(DEVICE, case.dtype)
        self.norms = Norms(gains[0], gains[1], EPS) if case.norm else None
        self.growth = (torch.rand(POSITIONS, generator=random) + 0.5).to(DEVICE) if case.grows else None

    def wanted(self, heads: torch.Tensor, which: int) -> torch.Tensor:
        """float32."""
        if self.norms is not None:
            heads = reference_norm(heads, self.norms[which], EPS)  # type: ignore[arg-type]
        cos, sin = (table[self.positions] for table in self.turns)
        turned = reference_rotate(heads, cos, sin, self.case.interleaved)
        if self.case.unit:
            turned = reference_norm(turned, torch.ones(self.case.head_dim, device=DEVICE), 4 * EPS)
        return turned if self.growth is None or which else turned * self.growth[self.positions][:, None, None]

    def rotate(self, out: torch.Tensor | None = None) -> torch.Tensor:
        inputs = self.q, self.k, self.v, self.positions, self.slots, self.turns, self.pools
        given: dict[str, Any] = {"unit_eps": 4 * EPS if self.case.unit else None, "growth": self.growth}
        return rotate_and_write(*inputs, norms=self.norms, out=out, interleaved=self.case.interleaved, **given)


def written(pool: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """[tokens, kv_heads, head_dim]."""
    size = pool.shape[2]
    return pool[slots // size, :, slots % size]


def check(case: Case) -> None:
    data = Data(case)
    q, k, v = data.wanted(data.q, 0), data.wanted(data.k, 1), data.v.clone()
    before = data.merged.clone()
    out = None if case.in_place else torch.empty_like(data.q)
    found = data.rotate(out)
    tolerance: Any = {"rtol": TOLERANCE[case.dtype] / 2, "atol": TOLERANCE[case.dtype]}
    torch.testing.assert_close(found.float(), q, **tolerance)
    if case.scaled:
        check_scaled(data, k, v)
    else:
        torch.testing.assert_close(written(data.pools.keys, data.slots).float(), k, **tolerance)
        assert torch.equal(written(data.pools.values, data.slots), v)
    untouched = data.merged[:, case.heads :] if case.in_place else data.merged
    assert torch.equal(untouched, before[:, case.heads :] if case.in_place else before)
    assert (found.data_ptr() == data.q.data_ptr()) == case.in_place
    for pool in data.pools[:2]:
        assert (~pool.isnan()).sum() == case.tokens * case.kv_heads * case.head_dim, "a number beside the slots is set"


def check_scaled(data: Data, k: torch.Tensor, v: torch.Tensor) -> None:
    """Values are just what the reference makes of them; keys, whose last bits may differ, at most half a step off."""
    scales = data.pools.scales
    assert scales is not None
    keys, values = (pool.view(torch.uint8) for pool in data.pools[:2])
    codes, scale = quantise(v)
    assert torch.equal(written(values, data.slots), codes.view(torch.uint8))
    assert torch.equal(written(scales.values[..., None], data.slots)[..., 0], scale)
    own = written(scales.keys[..., None], data.slots)[..., 0]
    size = 2.0 ** (own.float() - 127)[..., None]
    error = (dequantise(written(keys, data.slots).view(E4M3), own) - k).abs()
    assert (error <= 1.0001 * torch.maximum(k.abs() / 16, size / 1024)).all()
    assert (k.abs().amax(-1) <= 448.001 * size[..., 0]).all() and (k.abs().amax(-1) > 223.999 * size[..., 0]).all()
    for part in scales:
        assert (part > 0).sum() == data.case.tokens * data.case.kv_heads, "a scale beside the slots is set"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("norm", "rotary", "interleaved"), [(True, None, False), (False, 32, False), (True, 48, True)])
def test_pools_of_8_bits(dtype: torch.dtype, norm: bool, rotary: int | None, interleaved: bool) -> None:
    head_dim = 80 if rotary == 48 else 64
    check(Case(5, 4, 3, head_dim, rotary, dtype=dtype, norm=norm, interleaved=interleaved, scaled=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_types(dtype: torch.dtype, norm: bool, interleaved: bool) -> None:
    check(Case(dtype=dtype, norm=norm, interleaved=interleaved, in_place=not interleaved))


@pytest.mark.parametrize("head_dim", [2, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("norm", [False, True])
def test_head_sizes(head_dim: int, norm: bool) -> None:
    check(Case(tokens=2, head_dim=head_dim, norm=norm))


@pytest.mark.parametrize("rotary", [2, 32, 48, 78])
@pytest.mark.parametrize("interleaved", [False, True])
def test_a_part_of_the_head_is_rotated(rotary: int, interleaved: bool) -> None:
    for norm in (False, True):
        check(Case(head_dim=80, rotary=rotary, norm=norm, interleaved=interleaved, in_place=norm))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rotary", "unit", "grows"), [(None, True, False), (2, False, True), (32, True, True)])
def test_unit_norms_and_growth(dtype: torch.dtype, rotary: int | None, unit: bool, grows: bool) -> None:
    """As Llama 4 has them: behind the rotation, of queries and keys; and of queries alone."""
    check(Case(head_dim=48, rotary=rotary, dtype=dtype, interleaved=True, unit=unit, grows=grows))
    check(Case(tokens=2, rotary=rotary, dtype=dtype, norm=True, unit=unit, grows=grows, scaled=True))


def test_a_latent_and_what_turns_beside_it() -> None:
    """One memory for both: keys of 80 numbers, the first 64 of which are not turned; queries are 40 heads elsewhere."""
    random = torch.Generator().manual_seed(1)
    entry, queries = (
        torch.randn(3, 80, generator=random).to(DEVICE),
        torch.randn(3, 40, 96, generator=random).to(DEVICE),
    )
    data = Data(Case(head_dim=16, interleaved=True))
    data.q, data.k, data.v = queries[..., 80:], entry[:, None, 64:], entry[:, None, :64]
    memory, before, out = (
        torch.zeros(5, 1, 16, 80, device=DEVICE),
        queries.clone(),
        torch.zeros(3, 40, 80, device=DEVICE),
    )
    data.pools = Pools(memory[..., 64:], memory[..., :64])
    q, k = data.wanted(data.q, 0), data.wanted(data.k, 1)
    torch.testing.assert_close(data.rotate(out[..., 64:]), q)
    kept = written(memory, data.slots)
    torch.testing.assert_close(kept[..., 64:], k)
    assert torch.equal(kept[:, 0, :64], entry[:, :64]) and torch.equal(queries, before) and not out[..., :64].any()


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 1), (14, 2), (9, 9), (17, 3)])
def test_numbers_of_heads(heads: int, kv_heads: int) -> None:
    check(Case(tokens=2, heads=heads, kv_heads=kv_heads, norm=True))


@pytest.mark.parametrize("block_size", [1, 16, 24, 128])
def test_block_sizes(block_size: int) -> None:
    check(Case(tokens=4, block_size=block_size))


def test_tokens_without_a_slot() -> None:
    data = Data(Case(tokens=4, norm=True))
    q, k = data.wanted(data.q, 0), data.wanted(data.k, 1)
    data.slots[1] = data.slots[3] = -1
    torch.testing.assert_close(data.rotate(), q)
    there = torch.tensor([0, 2], device=DEVICE)
    torch.testing.assert_close(written(data.pools.keys, data.slots[there]), k[there])
    for pool in data.pools[:2]:
        assert (~pool.isnan()).sum() == 2 * 2 * 64


def test_pools_of_other_orders() -> None:
    """Heads outermost, as the pool of the CPU has it; values further apart than keys."""
    data = Data(Case(tokens=4))
    keys, values = torch.zeros(2, 5, 16, 64, device=DEVICE), torch.zeros(3, 6, 20, 70, device=DEVICE)
    data.pools = Pools(keys.transpose(0, 1), values[1:, :5, :16, :64].transpose(0, 1))
    k, v = data.wanted(data.k, 1), data.v.clone()
    data.rotate()
    torch.testing.assert_close(written(data.pools.keys, data.slots), k)
    assert torch.equal(written(data.pools.values, data.slots), v)


def test_positions_of_32_bits_and_no_tokens() -> None:
    data = Data(Case(tokens=2))
    data.positions = data.positions.int()
    q = data.wanted(data.q, 0)
    torch.testing.assert_close(data.rotate(), q)
    assert Data(Case(tokens=0)).rotate().shape == (0, 4, 64)


def test_offsets_beyond_32_bits() -> None:
    """Blocks, heads and tokens times what lies between them pass 2³¹; of the memory only what is touched is there."""
    apart = 1 << 30
    size = 2 * (2 * apart + 64 * 16 * 12)
    if DEVICE == "cuda":
        memory = torch.empty(size // 2, dtype=torch.float16, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        memory = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=torch.float16)
    data = Data(Case(tokens=3, dtype=torch.float16, heads=2, kv_heads=3))
    q, k = data.wanted(data.q, 0), data.wanted(data.k, 1)
    data.slots = torch.tensor([3, 16 + 5, 32 + 9], device=DEVICE)
    by_block = torch.as_strided(memory, (3, 3, 16, 64), (apart, 1024, 64, 1))
    by_head = torch.as_strided(memory, (3, 3, 16, 64), (1024, apart, 64, 1), 4096)
    out = torch.as_strided(memory, (3, 2, 64), (apart, 64, 1), 8192)
    data.pools = Pools(by_block, by_head)
    torch.testing.assert_close(data.rotate(out).float(), q, rtol=1e-3, atol=2e-3)
    torch.testing.assert_close(written(by_block, data.slots).float(), k, rtol=1e-3, atol=2e-3)
    assert torch.equal(written(by_head, data.slots), data.v)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(
    "rope",
    [
        Rope(theta=1e6),
        Rope(kind="linear", numbers={"factor": 4.0}),
        Rope(
            kind="llama3",
            theta=500_000.0,
            numbers={
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64.0,
            },
        ),
    ],
    ids=lambda rope: rope.kind,
)
def test_it_is_what_the_model_does(rope: Rope, norm: bool) -> None:
    data = Data(Case(norm=norm, interleaved=True))
    table = rotation_table(rope, 64, POSITIONS)
    data.turns = RotaryTables(table.real.contiguous().to(DEVICE), table.imag.contiguous().to(DEVICE))
    heads = data.merged[:, :6].cpu().clone()
    if data.norms is not None:
        gains = torch.cat([data.norms.q_gain.expand(4, -1), data.norms.k_gain.expand(2, -1)]).cpu()
        RMSNorm(gains, EPS).in_place(heads)
    rotate(heads, table[data.positions.cpu()][:, None])
    torch.testing.assert_close(data.rotate().cpu(), heads[:, :4], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(written(data.pools.keys, data.slots).cpu(), heads[:, 4:], rtol=1e-5, atol=1e-5)


def test_misfits_are_refused() -> None:
    def refused(what: str, **changes: object) -> None:
        data = Data(Case(norm=True))
        for name, value in changes.items():
            setattr(data, name, value)
        with pytest.raises(ValueError, match=what):
            data.rotate()

    fine = Data(Case(norm=True))
    assert fine.norms is not None
    refused("k ", k=fine.k[:, :1])
    refused("v .*float16", v=fine.v.half())
    refused("q .*float64", q=fine.q.double())
    refused("positions", positions=fine.positions[:2])
    refused("slots .*int32", slots=fine.slots.int())
    refused("sin", turns=fine.turns._replace(sin=fine.turns.sin[:, :-1]))
    refused("cos .*float64", turns=RotaryTables(fine.turns.cos.double(), fine.turns.sin))
    refused("values", pools=fine.pools._replace(values=fine.pools.values[:4]))
    apart = torch.empty(5, 2, 64, 16, device=DEVICE).transpose(2, 3)
    refused("side by side", pools=fine.pools._replace(values=apart))
    refused("growth", growth=torch.ones(POSITIONS + 1, device=DEVICE))
    refused("k_gain", norms=fine.norms._replace(k_gain=torch.randn(32)))


@pytest.mark.parametrize(
    ("dtype", "head_dim", "rotary", "interleaved"),
    [(torch.float32, 128, 64, False), (torch.float32, 20, 16, True), (torch.bfloat16, 20, 20, False)],
)
def test_keys_with_a_norm_of_their_own(dtype: torch.dtype, head_dim: int, rotary: int, interleaved: bool) -> None:
    """Before they turn, and without values; queries have none."""
    data = Data(Case(5, 6, 1, head_dim, rotary, dtype=dtype, interleaved=interleaved))
    wanted, pools = data.wanted(data.q, 0), Pools(data.pools.keys, data.pools.values[..., :0])
    gain, bias = torch.randn(2, head_dim, device=DEVICE)
    data.k.add_(3)  # so that their mean counts
    keys = torch.nn.functional.layer_norm(data.k.float(), (head_dim,), gain, bias, 1e-6)
    given = data.k, data.k[..., :0], data.positions, data.slots, data.turns, pools
    found = rotate_and_write(data.q, *given, key_norm=KeyNorm(gain, bias, 1e-6), interleaved=interleaved)
    tolerance: Any = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(found.float(), wanted, **tolerance)
    kept = written(data.pools.keys, data.slots).float()
    torch.testing.assert_close(kept, data.wanted(keys, 1), **tolerance)
    assert data.pools.values.isnan().all()
    norms = Norms(gain, gain, EPS)
    with pytest.raises(ValueError, match="norm of its own"):
        rotate_and_write(data.q, *given, norms=norms, key_norm=KeyNorm(gain, bias, 1e-6), interleaved=interleaved)
    with pytest.raises(ValueError, match="key_norm's bias"):
        rotate_and_write(data.q, *given, key_norm=KeyNorm(gain, bias[1:], 1e-6), interleaved=interleaved)
