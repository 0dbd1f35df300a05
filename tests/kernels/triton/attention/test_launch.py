"""How attention over pages is launched: splits, scratch, graphs, and what is refused."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from actorserve.kernels.pages import ByHead
from actorserve.kernels.triton.attention.decode_launch import MOST_SPLITS, TABLE, DecodeLaunch, kind_of, places_of
from actorserve.kernels.triton.attention.paged_decode import paged_decode, split_count
from actorserve.kernels.triton.attention.paged_prefill import paged_prefill
from actorserve.kernels.triton.attention.tiles import Scratch
from tests.kernels.reference.attention import reference_attention
from tests.kernels.triton.attention.paged_cases import (
    DEVICE,
    NAN,
    Case,
    clean,
    compare,
    filled,
    random_queries,
)


def test_scratch_is_shared_by_smaller_batches() -> None:
    """What a larger batch left there is not read."""
    case = Case(torch.float16)
    torch.manual_seed(0)
    pages, q = filled(case, (300, 0, 129), (1, 1, 1)), random_queries(case, 3)
    scratch = Scratch.make(random_queries(case, 5), 4)
    for part in scratch[:2]:
        part.fill_(NAN)
    wanted = reference_attention(q, [0, 1, 2, 3], clean(pages), case.scoring)
    compare(case, paged_decode(q, pages, case.scoring, scratch), wanted)


def test_splits_fill_the_device() -> None:
    for rows, kv_heads, longest in itertools.product((1, 8, 32, 256), (1, 8), (1, 500, 8192, 131072)):
        splits = split_count(rows, kv_heads, longest, 132)
        least = 64 if rows == 1 else 128
        assert 1 <= splits <= MOST_SPLITS and (splits - 1) * least < longest
        assert splits == 1 or rows * kv_heads * splits <= 4 * 132, "no second wave"
        more = rows * kv_heads * (splits + 1) <= 4 * 132
        assert not more or splits in (MOST_SPLITS, -(-longest // least)), "and all of the first"
    assert split_count(256, 8, 131072, 132) == 1
    assert split_count(1, 8, 1024, 132) == 16, "one row of 1k positions makes a program for nearly each multiprocessor"
    assert [places_of(heads, 1, True) for heads in (16, 20, 64, 128)] == [1, 1, 2, 4], "of latents, 64 in a program"
    assert [places_of(71, 1), places_of(32, 8)] == [5, 8]
    assert TABLE["16 bits"]._replace(round_up=True).splits(32, 8, 8192, 132) == 3, "two waves, to be compared with"


def test_which_entry_of_the_table() -> None:
    kinds = [kind_of(torch.float32, 256, scaled) for scaled in (False, True)]
    kinds += [kind_of(torch.bfloat16, 256, False), kind_of(torch.float16, 128, True)]
    kinds += [kind_of(torch.float16, 256, True), kind_of(torch.bfloat16, 512, False)]
    kinds += [kind_of(torch.float16, 1024, False, True)]
    assert kinds == list(TABLE)
    tiles = [TABLE[kind].tile(128, size) for kind, size in (("float32", 4), ("16 bits", 2), ("8 bits", 1))]
    assert tiles == [16, 32, 32] and TABLE["16 bits"].tile(64, 2) == 64


@pytest.mark.parametrize("splits", [1, 5])
@pytest.mark.parametrize("rows", [1, 2])
def test_how_it_is_launched_changes_no_result(splits: int, rows: int) -> None:
    """Tiles of 16 keys, and splits of 32 positions: no position is read twice, or left out."""
    case = Case()
    pages, q = filled(case, (150, 77)[:rows], (1,) * rows), random_queries(case, rows)
    wanted = reference_attention(q, list(range(rows + 1)), clean(pages), case.scoring)
    for launch in (DecodeLaunch(tile_bytes=2048, least=32, least_alone=16), DecodeLaunch(least=64, warps=2)):
        found = paged_decode(q, pages, case.scoring, Scratch.make(q, splits), launch=launch)
        compare(case, found, wanted)


@pytest.mark.skipif(DEVICE == "cpu", reason="a graph is a thing of GPUs")
def test_a_captured_graph_serves_any_lengths() -> None:
    case = Case(torch.bfloat16, splits=4)
    torch.manual_seed(0)
    pages, q = filled(case, (900, 900, 900), (1, 1, 1)), random_queries(case, 3)
    scratch, out = Scratch.make(q, 4), torch.empty_like(q)
    paged_decode(q, pages, case.scoring, scratch, out)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        paged_decode(q, pages, case.scoring, scratch, out)
    for lengths in ((900, 1, 0), (0, 130, 513)):
        pages.lengths.copy_(torch.tensor(lengths))
        graph.replay()
        compare(case, out, reference_attention(q, [0, 1, 2, 3], clean(pages), case.scoring))


WRONG: dict[str, tuple[Any, str]] = {
    "heads": (lambda q, p: (q[:, :3], p), "3 heads of queries over 2"),
    "group": (lambda q, p: (q.repeat(1, 40, 1), p), "at most 128"),
    "type": (lambda q, p: (q.half(), p), "float16 queries"),
    "number": (lambda q, p: (q.double(), p), "queries are torch.float64"),
    "head_dim": (lambda q, p: (q[..., :48].contiguous(), p), "heads of 48, keys of 64"),
    "side by side": (lambda q, p: (q.transpose(1, 2).contiguous().transpose(1, 2), p), "side by side"),
    "lengths": (lambda q, p: (q, p._replace(lengths=p.lengths.long())), "int32"),
    "rows": (lambda q, p: (q, p._replace(lengths=p.lengths[:1])), "lengths are"),
    "values": (lambda q, p: (q, p._replace(values=p.values[:, :1])), "do not go with keys"),
    "values apart": (lambda q, p: (q, p._replace(values=p.values.mT.contiguous().mT)), "side by side"),
    "value_dim": (lambda q, p: (q, p._replace(values=p.values[..., :40])), "heads of 40"),
    "blocks": (lambda q, p: (q, p._replace(keys=p.keys[:, :, :8], values=p.values[:, :, :8])), "blocks of 8"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_kernels_cannot_take_is_refused(wrong: str) -> None:
    pages, q = filled(Case(), (5, 6), (1, 1)), random_queries(Case(), 2)
    change, message = WRONG[wrong]
    q, pages = change(q, pages)
    starts = torch.arange(len(pages.lengths) + 1, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=message):
        paged_decode(q, pages, Case().scoring)
    with pytest.raises(ValueError, match=message):
        paged_prefill(q, starts, pages, Case().scoring)


def test_outputs_scratch_starts_and_options_are_checked() -> None:
    pages, q = filled(Case(), (5, 6), (1, 1)), random_queries(Case(), 2)
    scoring, scratch = Case().scoring, Scratch.make(q, 2)
    for bad in (Scratch(scratch.partial[:1], scratch.sums[:1]), Scratch(scratch.partial.half(), scratch.sums)):
        with pytest.raises(ValueError, match="scratch"):
            paged_decode(q, pages, scoring, bad)
    with pytest.raises(ValueError, match="out"):
        paged_decode(q, pages, scoring, out=torch.empty(1, *q.shape[1:]))
    many = pages._replace(blocks=pages.blocks[:1].expand(70000, -1), lengths=pages.lengths[:1].repeat(70000))
    with pytest.raises(ValueError, match="70000 rows, and a launch takes 65535"):
        paged_decode(q[:1].expand(70000, -1, -1), many, scoring)
    with pytest.raises(ValueError, match="2 lengths for 1 rows"):
        paged_decode(q[:1], pages, scoring)
    for by_head in (ByHead(sinks=torch.zeros(7)), ByHead(slopes=torch.zeros(8, dtype=torch.float16))):
        with pytest.raises(ValueError, match="one for each of 8 heads"):
            paged_decode(q, pages, scoring, by_head=by_head)
    with pytest.raises(ValueError, match="starts"):
        paged_prefill(q, torch.zeros(2, dtype=torch.int32, device=DEVICE), pages, scoring)
    for options in ({"window": 0}, {"soft_cap": 0.0}, {"scale": NAN}, {"chunk": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            replace(scoring, **options)
