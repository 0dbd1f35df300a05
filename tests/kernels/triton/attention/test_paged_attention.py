"""Paged attention by Triton against plain torch, over all it takes and what it must not read."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from actorserve.kernels.pages import Pages, gathered
from actorserve.kernels.triton.attention import paged_decode as decode_module
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.attention.paged_prefill import split_count as prefill_splits
from actorserve.kernels.triton.attention.tiles import Scratch, are_latents
from tests.kernels.reference.attention import reference_attention
from tests.kernels.triton.attention.paged_cases import (
    DEVICE,
    FEATURES,
    NAN,
    QUICK,
    VALUES,
    Case,
    check_decode,
    check_prefill,
    clean,
    compare,
    far_apart,
    filled,
    named,
    pairwise,
    random_queries,
)

UNDIVIDED = {"splits": (None,)}


@pytest.mark.parametrize("case", pairwise(QUICK), ids=named)
def test_decode(case: Case) -> None:
    check_decode(case, (0, 1, 137))


@pytest.mark.parametrize("case", [Case(), Case(torch.bfloat16, window=33), Case(torch.float32, chunk=64)], ids=named)
def test_long_rows_alone_are_divided(case: Case) -> None:
    """Short ones are one program's, and leave nothing in the others' places."""
    torch.manual_seed(0)
    lengths = (300, 0, 1, 64, 65, 20)
    pages, q = filled(case, lengths, [1] * len(lengths)), random_queries(case, len(lengths))
    scratch = Scratch.make(q, 4)._replace(least=64)
    for part in scratch[:2]:
        part.fill_(NAN)
    out = paged_decode(q, pages, case.scoring, scratch)
    compare(case, out, reference_attention(q, list(range(len(lengths) + 1)), clean(pages), case.scoring))
    used = (~scratch.sums.isnan()).all(1).sum(1).tolist()
    assert used[1:4] == [0, 1, 1] and used[5] == 1
    assert used[0] == (4 if case == Case() else 1)


@pytest.mark.parametrize("case", pairwise(QUICK | UNDIVIDED), ids=named)
def test_prefill(case: Case) -> None:
    check_prefill(case, (67, 1, 34), (5, 1, 1), tail=1)


ALL = Case(
    torch.bfloat16, head_dim=80, value_dim=48, block_size=16, sinks=True, slopes=True, soft_cap=1.5, chunk=24, splits=2
)
SOME_FEATURES = [
    ALL,
    replace(ALL, dtype=torch.float32, group=20, kv_heads=1, value_dim=None, chunk=None, splits=None),
    Case(torch.float16, head_dim=64, group=8, kv_heads=1, sinks=True, window=33, splits=2),
    Case(torch.float32, head_dim=192, group=1, value_dim=128, chunk=32),
    Case(torch.bfloat16, scaled=True, sinks=True, chunk=64, value_dim=48),
]


@pytest.mark.parametrize("case", SOME_FEATURES, ids=named)
def test_features(case: Case) -> None:
    check_decode(case, (0, 1, 65))
    check_prefill(case, (67, 1, 3), (30, 1, 4), tail=1)


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(torch.bfloat16, head_dim=256, group=2, window=33),
        Case(torch.float16, group=8, splits=2, soft_cap=1.5),
        Case(torch.bfloat16, group=2, scaled=True),
    ],
    ids=named,
)
def test_tokens_of_a_picture_see_one_another(case: Case) -> None:
    """Two pictures in a row, one that ends a row, and rows without; over the borders of tiles."""
    counts, lengths = (60, 1, 40, 20), (90, 1, 40, 50)
    ends = torch.zeros(sum(counts) + 1, dtype=torch.int64, device=DEVICE)
    ends[5:30], ends[40:60], ends[61:95] = 30 + 30, 30 + 60, 34
    found = check_prefill(case, lengths, counts, tail=1, ends=ends)
    without = check_prefill(case, lengths, counts, tail=1)
    same = (found == without).flatten(1).all(1)
    assert not same[5:29].any() and not same[61:94].any()
    assert same[:5].all() and same[95:].all() and same[60], "whoever is no picture's sees what it saw"


def test_latents_have_no_ends() -> None:
    case = Case(torch.bfloat16, head_dim=80, group=2, kv_heads=1)
    pages, q = filled(case, (5,), (3,)), random_queries(case, 3)
    starts = torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)
    latents = pages._replace(values=pages.keys[..., :64])
    with pytest.raises(ValueError, match="not of latents"):
        paged_prefill(q, starts, latents, case.scoring, ends=torch.zeros(3, dtype=torch.int64, device=DEVICE))
    with pytest.raises(ValueError, match=r"ends must be int64 \[3\]"):
        paged_prefill(q, starts, pages, case.scoring, ends=torch.zeros(2, dtype=torch.int64, device=DEVICE))


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise(FEATURES), ids=named)
def test_features_of_decoding(case: Case) -> None:
    """Rows that see one key or none, too."""
    check_decode(case, (0, 1, 65, 137))


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise(FEATURES), ids=named)
def test_features_of_prompts(case: Case) -> None:
    """Tiles across the borders of chunks; a token at a position below 0 and one of no row, which see nothing."""
    check_prefill(case, (67, 1, 130, 3), (30, 1, 70, 4), tail=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise(VALUES), ids=named)
def test_decode_for_more_groups(case: Case) -> None:
    check_decode(case, (300, 0, 1, 64, 137))


@pytest.mark.slow
@pytest.mark.parametrize("case", pairwise(VALUES | UNDIVIDED), ids=named)
def test_prefill_for_more_groups(case: Case) -> None:
    check_prefill(case, (67, 0, 1, 200, 34), (67, 0, 1, 20, 1), tail=5)


@pytest.mark.parametrize("splits", [1, 3, 12])
@pytest.mark.parametrize("window", [None, 700])
def test_long_rows_are_divided(splits: int, window: int | None) -> None:
    """12 splits take two turns of the merge; a row of 130 needs two of them only."""
    check_decode(Case(torch.float16, group=2, kv_heads=1, splits=splits, window=window), (1411, 130))


def test_long_rows_with_sinks_and_chunks_are_divided() -> None:
    """A sink counts in one split alone, and splits begin where the chunk does."""
    check_decode(Case(torch.float16, group=8, kv_heads=1, splits=3, sinks=True, chunk=400), (799, 530, 130))


@pytest.mark.parametrize(
    "case",
    [
        Case(torch.float16, group=7),
        Case(torch.bfloat16, group=1, kv_heads=1, window=70),
        Case(torch.float32, group=3, kv_heads=1, soft_cap=1.5),
        Case(torch.float16, group=16, kv_heads=1, window=20),
    ],
    ids=named,
)
def test_mixed_batch(case: Case) -> None:
    """Chunks over several tiles, whole prompts, decoding, rows that are not there, tokens without a row."""
    tokens = 160 // case.group if case.group > 1 else 131  # two tiles at least
    check_prefill(case, (150, 0, 1, 40, 33, 0), (tokens, 3, 1, 0, 33, 0), tail=17)


@pytest.mark.parametrize("rows", [5, 8, 18])
def test_each_program_finds_its_row(rows: int) -> None:
    """Rows of no token among them, several in a tile, and some of several tiles."""
    counts = [(1, 0, 0, 40, 3)[row % 5] for row in range(rows)]
    check_prefill(Case(group=1, kv_heads=1, block_size=16), [count + 4 for count in counts], counts, tail=1)


@pytest.mark.parametrize(
    "case",
    [
        Case(torch.float16, group=2, kv_heads=1, splits=3),
        Case(torch.float32, group=3, kv_heads=1, splits=2, window=700),
        Case(torch.bfloat16, group=4, kv_heads=1, splits=16, soft_cap=1.5, scaled=True),
    ],
    ids=named,
)
def test_keys_of_few_tokens_are_divided(case: Case) -> None:
    """A long row, one that a split has all of, one that is not there, and tokens of no row."""
    check_prefill(case, (900, 130, 0, 700), (20, 3, 0, 36), tail=2)


@pytest.mark.parametrize(
    ("dtype", "group", "width"),
    [(torch.float32, 20, 64), (torch.float16, 100, 64), (torch.bfloat16, 20, 32), (torch.float32, 5, 48)],
)
def test_values_may_be_a_part_of_the_keys(dtype: torch.dtype, group: int, width: int) -> None:
    """A latent and what turns beside it, of which all heads read: of keys of 80 numbers the first ones are the values.
    Those are read once if they are a power of two; a group may be more than a program has rows for."""
    case = Case(dtype, head_dim=80, group=group, kv_heads=1, block_size=16)
    torch.manual_seed(0)
    pages, q = filled(case, (3, 50), (2, 3)), random_queries(case, 5)
    pages = pages._replace(values=pages.keys[..., :width])
    assert are_latents(pages.keys, pages.values) == (width != 48)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    wanted = reference_attention(q, [0, 2, 5], clean(pages), case.scoring)
    for scratch in (None, Scratch.make(q, 2, width)):
        compare(case, paged_prefill(q, starts, pages, case.scoring, scratch=scratch), wanted)
        compare(case, paged_decode(q[1::3], pages, case.scoring, scratch), wanted[1::3])


def test_latents_where_programs_have_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 33 heads a program has 32: the product is no larger than such a device has room for."""
    sizes: list[int] = []

    def configured(*given: Any) -> Any:
        options, launched = configuration(*given)
        sizes.append(options["QUERIES"])
        return options, launched

    configuration = decode_module.configuration
    monkeypatch.setattr(decode_module, "configuration", configured)
    case = Case(torch.float16, head_dim=80, group=33, kv_heads=1, block_size=16)
    pages, q = filled(case, (50,), (1,)), random_queries(case, 1)
    pages = pages._replace(values=pages.keys[..., :64])
    wanted = reference_attention(q, [0, 1], clean(pages), case.scoring)
    for narrow in (False, True):
        monkeypatch.setattr(decode_module, "is_narrow", lambda device, narrow=narrow: narrow)
        compare(case, paged_decode(q, pages, case.scoring), wanted)
    assert sizes == [64, 32]


@pytest.mark.parametrize("scaled", [False, True])
def test_attention_over_what_is_made_of_contexts(scaled: bool) -> None:
    """What is gathered reads as the pools do, and what a model makes of it, slot by slot, is attended to likewise."""
    case = Case(torch.float32, group=2, block_size=16, scaled=scaled, sinks=True)
    torch.manual_seed(0)
    pages, q, by_head = filled(case, (0, 40, 17), (0, 5, 17)), random_queries(case, 22), case.by_head()
    starts = torch.tensor([0, 0, 5, 22], dtype=torch.int32, device=DEVICE)
    wanted = paged_prefill(q, starts, pages, case.scoring, by_head=by_head)
    own = gathered(pages)
    assert torch.equal(paged_prefill(q, starts, own, case.scoring, by_head=by_head), wanted)
    if scaled:
        return
    made = own._replace(keys=own.keys @ torch.randn(64, 32) / 8, values=own.values @ torch.randn(64, 48) / 8)
    q = torch.randn(22, 4, 32)
    wanted = reference_attention(q, starts.tolist(), clean(made), case.scoring, by_head)
    compare(case, paged_prefill(q, starts, made, case.scoring, by_head=by_head), wanted)


def test_few_tokens_fill_the_device() -> None:
    keys = torch.empty(1, 8, 32, 128, device="meta")
    assert [prefill_splits(100, 1, 32, keys, longest, 132) for longest in (100, 512, 700, 16384)] == [1, 1, 2, 4]
    assert prefill_splits(1, 1, 32, keys, 1 << 20, 132) == 16
    assert prefill_splits(2048, 1, 32, keys, 1 << 20, 132) == 1
    wide = torch.empty(1, 1, 32, 256, device="meta")
    assert prefill_splits(100, 3, 8, wide, 1 << 20, 132) == 132 // (100 // 8 + 3)
    latents = torch.empty(1, 1, 32, 576, device="meta")
    assert [prefill_splits(10, 1, heads, latents, 1 << 20, 132) for heads in (16, 128)] == [16, 132 // (11 * 2)]


def test_tokens_before_the_row_see_nothing() -> None:
    out = check_prefill(Case(), (3,), (5,))
    assert not out[:2].any() and out[2:].all()


def test_tokens_before_the_first_start_are_left_alone() -> None:
    """They are decoding rows, which paged_decode writes to the same memory; two tokens are a tile here."""
    case = Case(group=8)
    torch.manual_seed(0)
    pages, q = filled(case, (40, 50, 60), (1, 1, 45)), random_queries(case, 47)
    out = torch.full(q.shape, 7.0, dtype=q.dtype, device=DEVICE)
    starts = torch.tensor([0, 2, 47], dtype=torch.int32, device=DEVICE)[1:]
    for scratch in (Scratch.make(q[2:], 2), None):
        paged_prefill(q, starts, Pages(*pages[:2], pages.blocks[2:], pages.lengths[2:]), case.scoring, out, scratch)
        assert (out[:2] == 7).all()
    paged_decode(q[:2], Pages(*pages[:2], pages.blocks[:2], pages.lengths[:2]), case.scoring, out=out[:2])
    compare(case, out, reference_attention(q, [0, 1, 2, 47], clean(pages), case.scoring))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp2")  # meant to be: tanh is 1 there
@pytest.mark.parametrize("soft_cap", [None, 20.0])
def test_large_scores(soft_cap: float | None) -> None:
    """Exponents far beyond what float32 holds."""
    case = Case(soft_cap=soft_cap, splits=2)
    torch.manual_seed(0)
    pages, q = filled(case, (140,), (1,)), random_queries(case, 1) * 300
    wanted = reference_attention(q, [0, 1], clean(pages), case.scoring)
    compare(case, paged_decode(q, pages, case.scoring, Scratch.make(q, 2)), wanted)
    starts = torch.tensor([0, 1], dtype=torch.int32, device=DEVICE)
    compare(case, paged_prefill(q, starts, pages, case.scoring), wanted)


@pytest.mark.parametrize(
    "what", ["blocks", "small blocks", "kv heads", "rows", "heads", "rows of out", "heads of out", "tables"]
)
def test_offsets_beyond_32_bits(tmp_path: Path, what: str) -> None:
    case = Case(torch.float16, group=1, kv_heads=4, block_size=16 if what == "small blocks" else 64)
    torch.manual_seed(0)
    pages, q = filled(case, (1, 1, 20, 30), (1, 1, 1, 1)), random_queries(case, 4)
    out = torch.empty_like(q)
    sources = {
        "blocks": (pages.keys, 0),
        "small blocks": (pages.keys, 0),
        "kv heads": (pages.keys, 1),
        "tables": (pages.blocks, 0),
    }
    source, axis = sources.get(what, (q, 0 if "rows" in what else 1))
    far = far_apart(tmp_path, source.dtype, source.shape, axis).copy_(source)
    wanted = reference_attention(q, [0, 1, 2, 3, 4], clean(pages), case.scoring)
    if source is pages.keys:
        pages = pages._replace(keys=far, values=far)
        wanted = reference_attention(q, [0, 1, 2, 3, 4], clean(pages), case.scoring)
    elif what == "tables":
        pages = pages._replace(blocks=far)
    elif what in ("rows", "heads"):
        q = far
    else:
        out = far
    paged_decode(q, pages, case.scoring, out=out)
    compare(case, out, wanted)
    starts = torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32, device=DEVICE)
    paged_prefill(q, starts, pages, case.scoring, out=out.fill_(NAN))
    compare(case, out, wanted)


def test_the_reference_is_what_torch_computes() -> None:
    case = Case(head_dim=80, group=2)
    torch.manual_seed(0)
    pages, q = clean(filled(case, (70,), (30,))), random_queries(case, 30)
    order = pages.blocks[0].long()
    keys, values = (pool[order].transpose(1, 2).flatten(0, 1)[:70].transpose(0, 1) for pool in pages[:2])
    seen = torch.ones(30, 70, dtype=torch.bool, device=DEVICE).tril(40)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys[None], values[None], seen, scale=case.scoring.scale, enable_gqa=True
    )
    torch.testing.assert_close(reference_attention(q, [0, 30], pages, case.scoring), wanted[0].transpose(0, 1))
