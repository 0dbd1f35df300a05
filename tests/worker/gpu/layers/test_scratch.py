"""How many programs attention is, in graphs that have room for more rows than a step has."""

from __future__ import annotations

import os

import msgspec
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.architecture import Architecture
from actorserve.actors.model.memory.kv import KVSpec, LayerAttention
from actorserve.actors.model.rope import Rope
from actorserve.actors.model.shapes import IndexShape, LatentShape
from actorserve.actors.worker.gpu.adapted.shape import shape_of
from actorserve.actors.worker.gpu.graphs import StepSize, mixed_sizes, smallest
from actorserve.actors.worker.gpu.layers import scratch
from actorserve.actors.worker.gpu.layers.scratch import SplitScratch, attention_of
from actorserve.kernels.pages import Scoring
from actorserve.kernels.triton.attention.paged_prefill import configuration

CPU = torch.device("cpu")
SHAPE = Architecture(  # of 8 billion weights
    vocab_size=128256,
    hidden_size=4096,
    intermediate_size=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-6,
    windows=(None,),
    rope=Rope(),
)
PROCESSORS = 132


@pytest.mark.parametrize(("decoding", "tokens", "chunks"), [(40, 20, 1), (100, 28, 2), (200, 300, 3), (60, 64, 20)])
def test_chunks_beside_many_rows_are_few_programs(
    decoding: int, tokens: int, chunks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that find nothing to do are not a multiple of what runs at a time."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    size = smallest(mixed_sizes(256, 8192), StepSize(decoding + tokens, decoding, chunks))
    assert size is not None
    keys = torch.empty(1, SHAPE.kv_heads, 16, SHAPE.head_dim, dtype=torch.bfloat16)
    divided = SplitScratch(SHAPE, 32768, [256], CPU).of_chunks(size.tokens, size.chunks, keys)
    splits = 1 if divided is None else divided.partial.shape[2]
    options, _ = configuration(keys.dtype, keys, SHAPE.heads, Scoring(1.0))
    programs = (size.tokens // options["TOKENS"] + size.chunks + 1) * SHAPE.kv_heads * options["PARTS"] * splits
    assert programs < 5 * PROCESSORS, (size, splits)


def test_the_next_turn_of_a_chat_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few tokens behind a long context, beside however many rows."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    keys = torch.empty(1, SHAPE.kv_heads, 16, SHAPE.head_dim, dtype=torch.bfloat16)
    for decoding in (3, 40, 200):
        size = smallest(mixed_sizes(256, 8192), StepSize(decoding + 20, decoding, 1))
        assert size is not None and size.chunks == 8
        made = SplitScratch(SHAPE, 32768, [256], CPU).of_chunks(size.tokens, size.chunks, keys)
        assert (made is None) == (decoding == 200)


def test_chunks_of_more_rows_are_divided_where_heads_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a group's member: nine rows with drafts behind long contexts are few programs."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    member = msgspec.structs.replace(SHAPE, heads=8, kv_heads=1)
    keys = torch.empty(1, member.kv_heads, 16, member.head_dim, dtype=torch.bfloat16)
    size = smallest(mixed_sizes(256, 8192, drafts=True), StepSize(9 * 6, 0, 9))
    assert size is not None and size.chunks > 9
    made = SplitScratch(member, 32768, [256], CPU).of_chunks(size.tokens, size.chunks, keys)
    assert made is not None and made.partial.shape[2] >= 4


def test_long_rows_among_many_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """And others are not; what their parts leave is bounded, whatever heads are."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    found = SplitScratch(SHAPE, 131072, [1, 8, 64, 256], CPU)
    assert [found.divides(rows) for rows in (1, 8, 64, 256)] == [False, False, True, True]
    assert found.of(64).partial.shape[2] == 1 and found.of(64).least is None
    with found.uneven():
        assert [found.of(rows).partial.shape[2] for rows in (64, 60, 256)] == [16, 16, 8]
        assert found.of(64).least == 8192
    assert found.of(64).partial.shape[2] == 1 and found.of(64).least is None
    assert not SplitScratch(SHAPE, 8192, [64], CPU).divides(64), "none can be long"


def test_windows_hold_no_long_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless a layer sees all."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    for windows, divides in (((4096,), False), ((4096, None), True), ((32768,), True)):
        shape = msgspec.structs.replace(SHAPE, windows=windows)
        assert SplitScratch(shape, 131072, [64], CPU).divides(64) == divides


def test_layers_whose_heads_differ_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are divided as is best for those that see everything, and results of any layer have room."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    narrow = LayerAttention(heads=24, kv_heads=8, key_dim=256, value_dim=128, scale=1.0, window=1024)
    wide = msgspec.structs.replace(narrow, heads=16, kv_heads=2, key_dim=512, value_dim=512, window=None)
    shape = shape_of(KVSpec(layers=(narrow, narrow, wide, msgspec.structs.replace(wide, source=2))), 64, 99)
    assert attention_of(shape) == wide
    found = SplitScratch(shape, 32768, [1, 16], CPU)
    assert found.layer == 2 and found.of(1).partial.shape[2] == 2 * PROCESSORS // 2 - 4, "128 are most"
    for own in (found.of(16), found.of_chunks(16, 1, torch.empty(1, 2, 16, 512))):
        assert own is not None
        rows, splits = own.partial.shape[0], own.partial.shape[2]
        for layer in (narrow, wide):
            part = own.of_heads(layer.heads, layer.value_dim)
            assert part.splits(torch.empty(rows, layer.heads, layer.value_dim)) == splits
            assert part.partial.data_ptr() == own.partial.data_ptr() and part.sums.data_ptr() == own.sums.data_ptr()


@pytest.mark.parametrize("heads", [8, 16])
def test_rows_that_see_chosen_tokens_alone_are_not_long(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long their texts are: each reads as many latents. Where no text is longer than that, all are read."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    index = IndexShape(topk=2048, heads=64, dim=128, interleaved=False, layers=(True,))
    sizes = LatentShape(q_rank=1536, rank=512, plain=128, turning=64, value_dim=128, norm_eps=1e-6)
    every = msgspec.structs.replace(SHAPE, heads=heads, kv_heads=heads, latent=sizes)
    some = msgspec.structs.replace(every, latent=msgspec.structs.replace(sizes, index=index))
    counts = [1, 8, 16, 64, 128]
    found, plain = SplitScratch(some, 131072, counts, CPU), SplitScratch(some, 2048, counts, CPU)
    lengths = np.full(16, 1000)
    lengths[7] = 131072
    for rows in counts:
        assert not found.divides(rows) and not found.is_uneven(rows, lengths)
        assert found.of(rows).partial.shape == plain.of(rows).partial.shape
    assert any(SplitScratch(every, 131072, counts, CPU).divides(rows) for rows in counts)


def test_when_rows_are_uneven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all rows are divided anyway, those that are long enough for longer programs than they have so."""
    monkeypatch.setattr(scratch, "PROCESSORS", PROCESSORS)
    found = SplitScratch(SHAPE, 131072, [16, 64], CPU)
    assert found.divides(16) and found.of(16).partial.shape[2] == 4
    for rows, longest, uneven in ((64, 9000, True), (16, 9000, False), (16, 32768, False), (16, 33000, True)):
        lengths = np.full(rows, 1000)
        assert not found.is_uneven(rows, lengths)
        lengths[7] = longest
        assert found.is_uneven(rows, lengths) == uneven, (rows, longest)
    assert not found.is_uneven(64, np.full(64, 100_000)), "all wait for all"
