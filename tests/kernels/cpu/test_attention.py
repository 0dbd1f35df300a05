"""Paged attention against the formula, over blocks in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.memory.kv import KV_TYPES, KVSpec, LayerAttention, uniform
from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.worker.memory import make_pools
from actorserve.kernels.cpu import decode as cpu_decode
from actorserve.kernels.cpu import pool_memory
from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.attention import MANY_QUERIES, StepAttention
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.kernels.cpu.pool_memory import QuantisedPool
from tests.kernels.reference.kv_formats import read
from tests.kernels.reference.layer_attention import layer_attention
from tests.support.compiler import need_compiler
from tests.support.selection import pairwise

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
SOME = [(1, 328), (5, 18), (34, 163), (1, 1), (1, 64)]  # (queries, context)
LENGTHS = [(1, 1328), (5, 18), (129, 463), (1, 1), (1, 64), (300, 300), (2, 65), (128, 256)]  # (queries, context)


class Kernels:
    """Those in C, where these are tried."""

    library: Library | None = None


PLAIN = ["numpy", "torch", "native"]
ALL = ["numpy", *(f"{products}{aligned}" for products in ("torch", "native") for aligned in ("", " aligned"))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All kernels, and aligned those that are others then: numpy's products have no part in that."""
    if not any("kernels" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        metafunc.parametrize("kernels", ALL if "aligned" in metafunc.fixturenames else PLAIN)


@pytest.fixture
def aligned(kernels: str) -> bool:
    return kernels.endswith(" aligned")


@pytest.fixture(autouse=True)
def products(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose products decode."""
    name = kernels.split()[0]
    if name == "native":
        need_compiler()
    monkeypatch.setattr(Kernels, "library", native.load(cpu_flags()) if name == "native" else None)
    if name == "torch":
        monkeypatch.setattr(pool_memory, "pays", lambda pool: False)
    elif not cpu_decode.prepare_numpy():
        pytest.skip("this numpy has no OpenBLAS of its own")
    monkeypatch.setattr(cpu_decode, "MOST_THREADS", 1 << 10)


@dataclass(frozen=True)
class Case:
    kv_heads: int = 2
    group: int = 2
    head_dim: int = 32
    window: int | None = None
    block_size: int = 32
    dtype: torch.dtype = torch.float32
    kv_type: str | None = None  # of the KV memory, None: the queries'
    aligned: bool = False
    narrow: bool = False  # products of chunks may be of the KV memory's type
    order: str = "mixed"  # how blocks follow one another: in one run, scattered, or either


known: dict[tuple[object, ...], torch.Tensor] = {}


@pytest.fixture(scope="module", autouse=True)
def known_once() -> Iterator[None]:
    yield
    known.clear()


def formula(rule: LayerAttention, *numbers: torch.Tensor | None) -> torch.Tensor:
    """What the formula gives for queries, keys, values and sinks, computed once: other kernels, orders and sizes of
    blocks are asked for the same numbers again.
    """
    key = repr(rule), *(None if one is None else digest(one) for one in numbers)
    if key not in known:
        known[key] = layer_attention(rule, *numbers).float()  # type: ignore[arg-type]
    return known[key].double()


def digest(numbers: torch.Tensor) -> bytes:
    return hashlib.sha1(numbers.contiguous().view(torch.uint8).numpy().tobytes()).digest()


class Batch:
    """Sequences in the KV memory of some layers, each with queries; what is not a written slot is NaN, which must not
    be read."""

    def __init__(self, case: Case, layers: Sequence[LayerAttention | None], lengths: Sequence[tuple[int, int]]) -> None:
        random = np.random.default_rng(0)
        torch.manual_seed(0)
        self.case, self.layers = case, layers
        needed = [-(-context // case.block_size) for _, context in lengths]
        blocks = 2 * sum(needed)
        self.kind = KV_TYPES[case.kv_type or str(case.dtype).removeprefix("torch.")]
        pools = make_pools(KVSpec(layers=layers), blocks, case.block_size, self.kind)
        for pool in pools:
            numbers = pool.scales if isinstance(pool, QuantisedPool) else pool
            for part in (numbers,) if isinstance(numbers, torch.Tensor) else numbers:
                if isinstance(part, torch.Tensor):
                    part.fill_(float("nan"))
        self.kv = PagedKV(
            KVSpec(layers=layers), pools, case.block_size, case.aligned, case.dtype, Kernels.library, case.narrow
        )
        scattered = random.permutation(np.arange(sum(needed), blocks))
        self.spans: list[Span] = []
        begin = 0
        for index, (queries, context) in enumerate(lengths):
            one_run = case.order == "run" or (case.order == "mixed" and index % 2 == 0)
            first = sum(needed[:index])
            run = np.arange(first, first + needed[index])
            table = run if one_run else scattered[first : first + needed[index]]
            self.spans.append(Span(begin, queries, context - queries, table, one_run))
            begin += queries
        self.memory = {
            index: self._write(index) for index, layer in enumerate(layers) if layer and layer.source is None
        }
        self.queries = [self._random(begin, layer.heads, layer.key_dim) for layer in layers if layer]
        self.sinks = [3 * torch.randn(layer.heads) if layer.sinks else None for layer in layers if layer]

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape).to(self.case.dtype)

    def _kept(self, index: int, slots: torch.Tensor, *numbers: torch.Tensor) -> Sequence[torch.Tensor]:
        """What is left of keys and values in the KV memory's type."""
        memory, place = self.kv.at(index)
        if isinstance(memory.pool, QuantisedPool):
            return list(read(memory.pool, place, slots))
        return [values.to(getattr(torch, self.kind.name)) for values in numbers]

    def _write(self, index: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values of each sequence in a layer."""
        layer, memory = self.layers[index], []
        assert layer is not None
        for span in self.spans:
            positions, size = np.arange(span.position + span.size), self.case.block_size
            slots = torch.from_numpy(span.blocks[positions // size] * size + positions % size)
            keys = self._random(len(positions), layer.kv_heads, layer.key_dim)
            values = self._random(len(positions), layer.kv_heads, layer.value_dim)
            if layer.values_in_keys:
                values = keys[:, :, : layer.value_dim]
            if layer.key_dim == layer.value_dim:
                self.kv.write_joined(index, slots, torch.stack([keys, values], 1))
            else:
                self.kv.write(index, slots, keys, values)
            keys, values = self._kept(index, slots, keys, values)
            memory.append((keys, values))
        return memory

    def make(self, kv: PagedKV | None = None) -> StepAttention | AlignedAttention:
        return (AlignedAttention if self.case.aligned else StepAttention)(kv or self.kv, self.spans, self.layers)

    def check(self) -> None:
        attention = self.make()
        attending = [(index, layer) for index, layer in enumerate(self.layers) if layer]
        for (index, layer), queries, sinks in zip(attending, self.queries, self.sinks, strict=True):
            out = attention(index, queries, sinks)
            source = index if layer.source is None else layer.source
            for span, memory in zip(self.spans, self.memory[source], strict=True):
                rows = slice(span.first, span.first + span.size)
                wanted = formula(layer, queries[rows], *memory, sinks)
                chunk = self.case.narrow and span.size >= MANY_QUERIES
                most = TOLERANCE[torch.bfloat16 if chunk else self.case.dtype]
                torch.testing.assert_close(out[rows].double(), wanted, rtol=0, atol=most)


def rule_of(case: Case, **given: Any) -> LayerAttention:
    fields = {"heads": case.kv_heads * case.group, "kv_heads": case.kv_heads, "scale": case.head_dim**-0.5}
    return LayerAttention(**{**fields, "key_dim": case.head_dim, "value_dim": case.head_dim, **given})


def check(case: Case, lengths: Sequence[tuple[int, int]] = LENGTHS) -> None:
    """A mixed batch, over a layer with the case's window and one without."""
    Batch(case, [rule_of(case, window=case.window), rule_of(case)], lengths).check()


@pytest.mark.parametrize(
    ("window", "block_size", "order", "kernels"),
    pairwise([None, 64], [16, 32, 64], ["run", "scattered", "mixed"], ALL),
)
def test_blocks_and_windows(window: int | None, block_size: int, order: str, aligned: bool) -> None:
    check(Case(window=window, block_size=block_size, order=order, aligned=aligned))


@pytest.mark.parametrize(("head_dim", "window", "kernels"), pairwise([32, 64, 80, 128], [None, 64, 7], ALL))
def test_head_sizes(head_dim: int, window: int | None, aligned: bool) -> None:
    check(Case(head_dim=head_dim, window=window, aligned=aligned))


@pytest.mark.parametrize(("group", "kernels"), pairwise(range(1, 8), ALL))
def test_groups(group: int, aligned: bool) -> None:
    check(Case(group=group, kv_heads=3, window=100, aligned=aligned))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("window", [None, 64])
def test_types_of_16_bits(dtype: torch.dtype, window: int | None) -> None:
    check(Case(dtype=dtype, window=window, head_dim=64))


@pytest.mark.parametrize(("dtype", "kept", "kernels"), pairwise(TOLERANCE, KV_TYPES, ALL))
def test_kv_memory_of_another_type(kept: str, dtype: torch.dtype, aligned: bool) -> None:
    check(Case(dtype=dtype, kv_type=kept, window=100, aligned=aligned, head_dim=48 if "_" in kept else 32), SOME)


@pytest.mark.parametrize(("window", "order", "kernels"), pairwise([None, 64], ["run", "scattered"], ["native"]))
def test_chunks_of_a_model_whose_products_are_of_bfloat16(window: int | None, order: str) -> None:
    """What is left of the step is as exact as float32."""
    check(Case(kv_type="bfloat16", narrow=True, window=window, order=order, head_dim=64))


@pytest.mark.parametrize("kept", ["fp8", "nvfp4", "turboquant_k3v4_nc"])
def test_keys_and_values_of_widths_of_their_own(kept: str, aligned: bool) -> None:
    case = Case(kv_type=kept, aligned=aligned, block_size=16)
    Batch(case, [rule_of(case, key_dim=48, value_dim=32, sinks=True, window=40)], SHORT).check()


SHORT = [(1, 41), (5, 18), (37, 61), (1, 1), (1, 64), (2, 65), (150, 150)]
FEATURES: dict[str, dict[str, Any]] = {
    "soft cap": {"soft_cap": 1.5, "scale": 1.0},
    "sinks": {"sinks": True},
    "sinks beside peaks": {"sinks": True, "scale": 3.0},
    "slopes": {"slopes": (0.5, 0.25, 0.0625, -0.125)},
    "chunks": {"chunk": 24},
    "chunks that blocks do not divide": {"chunk": 7},
    "widths": {"value_dim": 48},
    "values in keys": {"key_dim": 72, "value_dim": 56, "kv_heads": 1, "values_in_keys": True},
    "wide keys": {"key_dim": 72, "value_dim": 16, "kv_heads": 1},
    "all": {
        "soft_cap": 2.0,
        "scale": 0.7,
        "sinks": True,
        "slopes": (0.5, 0.25, 0.0625, -0.125),
        "chunk": 24,
        "window": 17,
        "value_dim": 16,
    },
}


@pytest.mark.parametrize(("feature", "dtype", "kernels"), pairwise(FEATURES, TOLERANCE, ALL))
def test_features(feature: str, aligned: bool, dtype: torch.dtype) -> None:
    case = Case(aligned=aligned, dtype=dtype, block_size=16)
    Batch(case, [rule_of(case, **FEATURES[feature])], SHORT).check()


@pytest.mark.parametrize(("seed", "kernels"), pairwise(range(10), ALL))
def test_layers_of_any_kinds_in_one_step(seed: int, aligned: bool) -> None:
    """Of several shapes, some without attention, some reading another's keys."""
    random = np.random.default_rng(seed)
    draw: Callable[..., Any] = lambda *values: values[int(random.integers(len(values)))]  # noqa: E731
    layers: list[LayerAttention | None] = []
    for index in range(7):
        kv_heads, group, key_dim, value_dim = draw(1, 2, 3), draw(1, 2, 5), draw(16, 24), draw(16, 40)
        source = None
        owners = [number for number, layer in enumerate(layers) if layer and layer.source is None]
        if index > 2 and owners and draw(0, 1):
            source = draw(*owners)
            owner = layers[source]
            assert owner is not None
            kv_heads, key_dim, value_dim = owner.kv_heads, owner.key_dim, owner.value_dim
        slopes = tuple(random.normal(size=kv_heads * group).round(2).tolist())
        rule = LayerAttention(
            heads=kv_heads * group,
            kv_heads=kv_heads,
            key_dim=key_dim,
            value_dim=value_dim,
            scale=draw(0.2, 1.0),
            window=draw(None, 1, 9, 33),
            chunk=draw(None, 1, 8, 20),
            soft_cap=draw(None, 0.8),
            slopes=draw(None, slopes),
            sinks=draw(False, True),
            source=source,
        )
        layers.append(draw(rule, rule, rule, None))
    dtype = draw(torch.float32, torch.float32, torch.bfloat16)
    case = Case(aligned=aligned, dtype=dtype, block_size=draw(8, 16, 32), order=draw("run", "scattered", "mixed"))
    Batch(case, layers, [(1, 41), (5, 18), (20, 33), (1, 1), (1, 64), (2, 65)]).check()


@pytest.mark.parametrize("order", ["run", "scattered"])
def test_contexts_and_attention_over_what_is_made_of_them(order: str) -> None:
    """A latent of one head becomes keys and values of all heads, of other widths."""
    case = Case(order=order, block_size=16)
    latent = rule_of(case, heads=4, kv_heads=1, key_dim=24, value_dim=8, sinks=True, window=40, chunk=50)
    batch = Batch(case, [None, latent], SHORT)
    attention = batch.make()
    assert isinstance(attention, StepAttention)
    contexts = attention.contexts(1)
    for (keys, values), (known_keys, known_values) in zip(contexts, batch.memory[1], strict=True):
        assert torch.equal(keys, known_keys.transpose(0, 1)) and torch.equal(values, known_values.transpose(0, 1))
    wider, heads = torch.randn(4, 24, 12), torch.randn(4, 8, 20)
    made = [(k @ wider, v @ heads) for k, v in contexts]
    queries, sinks = torch.randn(sum(size for size, _ in SHORT), 4, 12), torch.randn(4)
    out = attention.attend_gathered(1, queries, [k for k, _ in made], [v for _, v in made], sinks)
    for span, (own_keys, own_values) in zip(batch.spans, made, strict=True):
        rows = slice(span.first, span.first + span.size)
        own = own_keys.transpose(0, 1), own_values.transpose(0, 1)
        torch.testing.assert_close(
            out[rows].double(), layer_attention(latent, queries[rows], *own, sinks), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize(("lengths", "feature", "kernels"), pairwise([(60, 90, 49), (70, 66)], FEATURES, PLAIN))
def test_steps_that_go_on_see_what_new_ones_would(feature: str, lengths: tuple[int, ...]) -> None:
    """20 steps up to these lengths, some of them over the width that rows share."""
    case = Case(block_size=16)
    batch = Batch(case, [rule_of(case, **FEATURES[feature])], [(1, length) for length in lengths])
    spans = batch.spans
    batch.spans = [span._replace(position=span.position - 20) for span in spans]
    moving, moved = batch.make(), 0
    pools = [memory.pool for memory in batch.kv.pools]
    other = PagedKV(batch.kv.spec, pools, case.block_size, library=Kernels.library)
    for _ in range(20):
        batch.spans = [span._replace(position=span.position + 1) for span in batch.spans]
        new = batch.make(other)
        if moving.advance():
            moved += 1
        else:
            moving = batch.make()
        (queries,), (sinks,) = batch.queries, batch.sinks
        assert torch.equal(moving(0, queries, sinks), new(0, queries, sinks))
    no_room = feature in ("chunks that blocks do not divide", "all")
    assert moved or (Kernels.library is None and (other.pools[0].numpy is None or no_room))


def test_strided_queries() -> None:
    """The model hands over a part of a wider matrix."""
    spec = uniform([None], 4, 2, 32, 1.0)
    kv = PagedKV(spec, [torch.randn(1, 2, 2, 64, 32)], 32, library=Kernels.library)
    wide = torch.randn(3, 8, 32)
    spans = [Span(0, 1, 40, np.array([0, 1]), True), Span(1, 2, 38, np.array([1, 0]), False)]
    attention = StepAttention(kv, spans, spec.layers)
    torch.testing.assert_close(attention(0, wide[:, :4]), attention(0, wide[:, :4].contiguous()))


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_only_the_given_slots_are_written(dtype: torch.dtype, joined: bool) -> None:
    pool = torch.zeros(2, 2, 2, 64, 8, dtype=dtype)
    kv = PagedKV(uniform([None, None], 2, 2, 8, 1.0), [pool], 16, library=Kernels.library)
    keys_values = torch.randn(3, 6, 2, 8).to(dtype)[:, 2:4]  # the model hands over a part of a wider matrix
    if joined:
        kv.write_joined(1, torch.tensor([63, 0, 17]), keys_values)
    else:
        kv.write(1, torch.tensor([63, 0, 17]), *keys_values.unbind(1))
    assert torch.equal(pool[1, :, :, [63, 0, 17]], keys_values.permute(1, 2, 0, 3))
    written = pool.abs().sum((0, 1, 2, 4)) > 0
    assert written.nonzero()[:, 0].tolist() == [0, 17, 63] and not pool[0].any()
