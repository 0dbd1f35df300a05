"""The attention in C for each kind of processor that this can be: against the formula in float64, and its bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, KVType, LayerAttention
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.worker.memory import make_pools
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.attention import NativeAttention
from actorserve.kernels.cpu.native.variants import variants
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.kernels.cpu.pool_memory import Pool, PoolMemory, QuantisedPool
from tests.kernels.reference.kv_formats import codes_of, read
from tests.kernels.reference.layer_attention import layer_attention
from tests.support.compiler import need_compiler
from tests.support.selection import pairwise

NAMES = [one.name for one in variants(cpu_flags()) if one.name != "avxvnni"]  # which is AVX2 here
BLOCK = 16
LONGEST = 800
SHAPES = [(4, 2, 64, 64), (8, 1, 128, 128), (7, 1, 80, 80), (3, 3, 24, 40), (2, 1, 256, 256), (12, 1, 72, 16)]
RULES: list[dict[str, Any]] = [
    {},
    {"window": 64},
    {"chunk": 100, "sinks": True},
    {"soft_cap": 1.5, "scale": 1.0, "window": 300},
    {"slopes": True},
]
Library = native.Library


def takes(_: str, kept: str, shape: tuple[int, ...], *others: object) -> bool:
    """Are there heads of this shape in KV memory of this type?"""
    kind = KV_TYPES[kept]
    return kind.keys.takes(shape[2]) and kind.values.takes(shape[3])


@pytest.fixture(scope="module", params=NAMES)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    need_compiler()
    made = native.load(cpu_flags(), request.param)
    yield made
    made.set_threads(1)


def each(*axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Libraries, types of KV memory, shapes, and more."""
    names = ("library", "kept", "shape", "given")[: 1 + len(axes)]
    return pytest.mark.parametrize(names, pairwise(NAMES, *axes, where=takes), indirect=["library"])


def rule_of(shape: tuple[int, int, int, int], slopes: bool = False, **given: Any) -> LayerAttention:
    heads, kv_heads, key_dim, value_dim = shape
    fields = {"scale": key_dim**-0.5, **given}
    steep = tuple(0.5 / (head + 1) for head in range(heads)) if slopes else None
    return LayerAttention(heads=heads, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, slopes=steep, **fields)


class Memory:
    """One layer's KV memory with some sequences in it, of which each has LONGEST tokens over scattered blocks."""

    def __init__(self, library: Library, rule: LayerAttention, name: str, sequences: int = 1) -> None:
        self.rule, self.library = rule, library
        spec, per_sequence = KVSpec(layers=(rule,)), LONGEST // BLOCK
        kind = KV_TYPES[name]
        pools = make_pools(spec, sequences * per_sequence, BLOCK, kind)
        kv = PagedKV(spec, pools, BLOCK, dtype=torch.float32, library=library)
        self.pool: PoolMemory = kv.pools[0]
        generator = torch.Generator().manual_seed(7)
        order = torch.randperm(sequences * per_sequence, generator=generator).numpy()
        self.tables = order.reshape(sequences, per_sequence)
        self.kept: list[list[torch.Tensor]] = []
        for table in self.tables:
            positions = np.arange(LONGEST)
            slots = torch.from_numpy(table[positions // BLOCK] * BLOCK + positions % BLOCK)
            keys = torch.randn(LONGEST, rule.kv_heads, rule.key_dim, generator=generator)
            values = torch.randn(LONGEST, rule.kv_heads, rule.value_dim, generator=generator)
            kv.write(0, slots, keys, values)
            self.kept.append(rounded(kind, keys, values, pools[0], slots))
        self.queries = torch.randn(sequences, LONGEST, rule.heads, rule.key_dim, generator=generator)
        self.sinks = torch.randn(rule.heads, generator=generator) if rule.sinks else None

    def attend(self, spans: Sequence[tuple[int, int, int]], threads: int = 1) -> list[torch.Tensor]:
        """Of (sequence, first position, how many)."""
        if self.library.threads != threads:
            self.library.set_threads(threads)
        made, first = [], 0
        for sequence, position, size in spans:
            made.append(Span(first, size, position, self.tables[sequence], False))
            first += size
        queries = torch.cat([self.queries[sequence, at : at + size] for sequence, at, size in spans])
        out = torch.full((first, self.rule.heads, self.rule.value_dim), torch.nan)
        assert self.pool.native is not None
        NativeAttention(self.pool.native, self.rule, BLOCK, made).attend(0, queries, out, self.sinks)
        return list(out.split([size for _, _, size in spans]))


def rounded(
    kind: KVType, keys: torch.Tensor, values: torch.Tensor, pool: Pool, slots: torch.Tensor
) -> list[torch.Tensor]:
    """Keys and values as they are to be read from KV memory: in float64, of the codes that lie there."""
    if not isinstance(pool, QuantisedPool):
        return [part.to(getattr(torch, kind.name)).double() for part in (keys, values)]
    made = list(read(pool, 0, slots))
    for numbers, part in zip(made, (keys, values), strict=True):
        assert (numbers - part).square().mean() < 0.05 * part.square().mean()
    return made


@each(list(KV_TYPES), SHAPES, RULES)
def test_results_are_those_of_the_formula(
    library: Library, kept: str, shape: tuple[int, int, int, int], given: dict[str, Any]
) -> None:
    memory = Memory(library, rule_of(shape, **given), kept, 2)
    spans = [(0, 799, 1), (1, 0, 37), (1, 255, 1), (0, 256, 2), (1, 511, 90), (0, 0, 1)]
    for span, found in zip(spans, memory.attend(spans), strict=True):
        sequence, position, size = span
        keys, values = (part[: position + size] for part in memory.kept[sequence])
        own = memory.queries[sequence, position : position + size]
        expected = layer_attention(memory.rule, own, keys, values, memory.sinks)
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-6)


@each(list(KV_TYPES), [SHAPES[0], SHAPES[2]])
def test_bits_follow_from_the_position_alone(library: Library, kept: str, shape: tuple[int, int, int, int]) -> None:
    """Whatever the rows beside it, the threads, and the chunks that a prompt is cut into."""
    rules = (rule_of(shape), rule_of(shape, window=70, sinks=True))
    for rule in rules if shape == SHAPES[0] else rules[:1]:
        memory = Memory(library, rule, kept, 3)
        whole = [memory.attend([(sequence, 0, LONGEST)])[0] for sequence in (0, 1)]
        for size in (1, 7, 256):
            begin = LONGEST - 20 * size if size < 256 else 0
            parts = [memory.attend([(0, at, min(size, LONGEST - at))])[0] for at in range(begin, LONGEST, size)]
            assert torch.equal(torch.cat(parts), whole[0][begin:]), size
        for threads in (1, 2, 3):
            for rows in (1, 2, 3, 4, 5, 8, 33):
                spans = [(row % 3, 797 - 20 * row, 1) for row in range(rows)]
                found = memory.attend(spans, threads)
                assert torch.equal(found[0][0], whole[0][797]), (rows, threads)
                assert rows < 2 or torch.equal(found[1][0], whole[1][777]), (rows, threads)
        mixed = memory.attend([(1, 300, 1), (0, 640, 160), (2, 5, 1)], 2)
        assert torch.equal(mixed[0][0], whole[1][300]) and torch.equal(mixed[1], whole[0][640:])


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kept", KV_TYPES)
def test_what_is_written_is_what_torch_would_write(library: Library, kept: str, source: torch.dtype) -> None:
    width = 40 if KV_TYPES[kept].values.takes(40) else 48
    rule = rule_of((2, 2, width, width))
    spec, slots = KVSpec(layers=(rule,)), torch.tensor([5, 0, 31, 17, 8, 2])
    given = torch.randn(6, 2, 2, width) * torch.tensor([1e-3, 1.0, 300.0, 1e4, 1.0, 1.0])[:, None, None, None]
    given[1, 0, 0], given[4, 1, 1, 3], given[5, 0, 1, 2], given[3, 0, 0, 0] = 0, torch.nan, torch.inf, 1e6
    given = given.to(source)
    written = []
    for own in (library, None):
        (pool,) = make_pools(spec, 2, BLOCK, KV_TYPES[kept])
        PagedKV(spec, [pool], BLOCK, dtype=source, library=own).write_joined(0, slots, given)
        written.append(pool)
    ours, torchs = written
    if not isinstance(ours, QuantisedPool):
        assert isinstance(ours, torch.Tensor) and isinstance(torchs, torch.Tensor)
        assert torch.equal(ours.nan_to_num(-1), torchs.nan_to_num(-1))
        return
    assert isinstance(torchs, QuantisedPool)
    assert torch.equal(ours.scales.nan_to_num(-1), torchs.scales.nan_to_num(-1))
    assert ours.scales.isnan().sum() == (3 if source == torch.float16 else 2)
    there = ours.scales.isfinite()
    for found, known, wanted in zip(codes_of(ours), there.unbind(1), codes_of(torchs), strict=True):
        assert torch.equal(found[known], wanted[known])


def test_a_row_that_is_no_number_makes_none_of_another(library: Library) -> None:
    for kept in KV_TYPES:
        memory = Memory(library, rule_of(SHAPES[0]), kept, 2)
        expected = memory.attend([(1, 700, 1), (0, 600, 100)])
        slot = int(memory.tables[0, 700 // BLOCK] * BLOCK + 700 % BLOCK)
        nothing = torch.full((1, 2, 64), torch.nan)
        memory.pool.write(0, torch.tensor([slot]), nothing, nothing)
        found = memory.attend([(1, 700, 1), (0, 600, 100), (0, 700, 1)])
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1]) and found[2].isnan().all()


def test_a_step_further_on_is_no_such_step_where_a_block_does_not_follow(library: Library) -> None:
    """The slot behind the last one is another sequence's then; a block may be known long before it is needed."""
    rule = rule_of((2, 2, 64, 64))
    spec = KVSpec(layers=(rule,))
    pools = make_pools(spec, 8, BLOCK, torch.float32)
    kv = PagedKV(spec, pools, BLOCK, dtype=torch.float32, library=library)
    for blocks, moves in (([3, 4, 9], True), ([3, 7, 9], False)):
        spans = [
            Span(0, 1, 2 * BLOCK - 3, np.array([1, 2, 6]), one_run=False),
            Span(1, 1, BLOCK - 2, np.array(blocks), one_run=False),
        ]
        attention = StepAttention(kv, spans, spec.layers)
        assert attention.advance(), "to the last place of a block"
        assert attention.advance() is moves
        assert not attention.advance(), "the first row's next block does not follow"
