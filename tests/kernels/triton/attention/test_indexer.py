"""Which tokens queries see, against plain torch; in the interpreter where there is no GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

os.environ["TRITON_INTERPRET"] = "0" if torch.cuda.is_available() else "1"  # read when kernels are imported

from actorserve.kernels.pages import Pages, Scoring
from actorserve.kernels.triton.attention import indexer
from actorserve.kernels.triton.attention.indexer import ChosenTokens, choose_tokens
from actorserve.kernels.triton.attention.paged_decode import paged_decode
from actorserve.kernels.triton.attention.tiles import Scratch
from tests.kernels.reference.indexer import chosen_slots

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NAN, NOWHERE = float("nan"), -7
LONGEST, ROWS = 320, 3
Given = tuple[Tensor, Tensor, Tensor, Tensor, ChosenTokens]


def made(
    lengths: Sequence[int],
    topk: int,
    dtype: torch.dtype = torch.float32,
    block_size: int = 16,
    heads: int = 5,
    dim: int = 20,
    largest: int = 3,
) -> Given:
    """What `choose_tokens` is given, of whole numbers, whose sums are exact and often the same. What no query is to
    read is NaN."""
    tokens, width = len(lengths), LONGEST // block_size
    table = torch.randperm(ROWS * width).int().view(ROWS, width)
    owners = torch.arange(tokens, dtype=torch.int32) % ROWS
    keys = torch.randint(-largest, largest + 1, (ROWS * width + 1, 1, block_size, dim)).to(dtype)
    for row in range(ROWS):
        end = max((own for own, owner in zip(lengths, owners, strict=True) if owner == row), default=0)
        places = table[row].long().repeat_interleave(block_size)[end:], torch.arange(LONGEST)[end:] % block_size
        keys[places[0], 0, places[1]] = NAN
    queries = torch.randint(-largest, largest + 1, (tokens, heads, dim)).to(dtype)
    weights = torch.randint(-largest, largest + 1, (tokens, heads)).float()
    positions = torch.tensor(lengths, dtype=torch.int32)
    slots = torch.full((tokens, topk), NOWHERE, dtype=torch.int32)
    chosen = ChosenTokens(*(part.to(DEVICE) for part in (owners, positions, positions.clamp(max=topk), slots)))
    return queries.to(DEVICE), weights.to(DEVICE), keys.to(DEVICE), table.to(DEVICE), chosen


def check(given: Given) -> None:
    queries, weights, keys, table, chosen = given
    choose_tokens(*given)
    topk = chosen.slots.shape[1]
    for token, (owner, length) in enumerate(zip(chosen.owners.tolist(), chosen.lengths.tolist(), strict=True)):
        wanted = chosen_slots(queries[token], weights[token], keys, table[owner], length, topk)
        assert len(wanted) == chosen.counts[token]
        found = chosen.slots[token].tolist()
        assert found == wanted + [NOWHERE] * (topk - len(wanted)), f"query {token}, of {length} positions"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("block_size", [16, 64])
def test_which_are_seen(dtype: torch.dtype, block_size: int) -> None:
    """Around the number that is seen, around tiles and parts; nobody's queries see nothing."""
    torch.manual_seed(block_size)
    check(made((0, 1, 23, 24, 25, 63, 64, 65, 0, 129, 320), 24, dtype, block_size))


def test_of_equal_scores_the_first_are_seen() -> None:
    """All may be equal, and 0 or below it: of a head without a product, of weights below 0."""
    torch.manual_seed(0)
    given = made((100, 300, 33, 320), 32, largest=1)
    check(given)
    for part in (given[0], given[1]):
        part.zero_()
        check(given)
    given[1].fill_(-1.0)
    check(given)


def test_scores_far_apart() -> None:
    """From below 0 to above it, and of all magnitudes: no bits of a score are left out."""
    torch.manual_seed(1)
    given = made((320, 319, 318), 40, heads=16, dim=32)
    given[0].copy_(torch.randn(given[0].shape) * 10.0 ** torch.randint(-12, 12, (3, 1, 1)))
    given[1].copy_(torch.randn(given[1].shape))
    check(given)


@pytest.mark.parametrize("lanes", [16, 64])
def test_parts_and_tiles(lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys in several parts, and scores in several tiles, also where many of them are equal."""
    monkeypatch.setattr(indexer, "LANES", lanes)
    monkeypatch.setattr(indexer, "LEAST", 128)
    monkeypatch.setattr(indexer, "PARTS", 2)
    torch.manual_seed(lanes)
    check(made((320, 257, 256, 128, 129, 60), 50, largest=1))


def test_for_some_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scores of all would take too much."""
    monkeypatch.setattr(indexer, "SCORED", 2 * LONGEST)
    torch.manual_seed(2)
    check(made([40 + 3 * number for number in range(2 * indexer.STEP + 3)], 30))


@pytest.mark.parametrize("splits", [1, 3])
def test_attention_over_what_was_chosen(splits: int) -> None:
    """Slots are a table of blocks of one token; what stands behind those that are seen is not read."""
    torch.manual_seed(3)
    given = made((50, 0, 17, 320), 48, heads=4, dim=16)
    choose_tokens(*given)
    chosen = given[4]
    latents = torch.randn(ROWS * LONGEST + 16, 1, 1, 48, device=DEVICE)
    q, scoring = torch.randn(4, 3, 48, device=DEVICE), Scoring(0.2)
    pages = Pages(latents, latents[..., :32], chosen.slots, chosen.counts)
    found = paged_decode(q, pages, scoring, Scratch.make(q, splits, 32))
    for token, count in enumerate(chosen.counts.tolist()):
        keys = latents[chosen.slots[token, :count].long()].flatten(0, 2)
        shares = (q[token] @ keys.T * scoring.scale).softmax(-1) if count else torch.zeros(3, 0, device=DEVICE)
        torch.testing.assert_close(found[token], shares @ keys[:, :32], rtol=1e-4, atol=1e-4)


WRONG: dict[str, tuple[Any, str]] = {
    "heads": (lambda g: (g[0].repeat(1, 30, 1), *g[1:]), "up to 128 heads"),
    "weights": (lambda g: (g[0], g[1].half(), *g[2:]), "weights torch.float16"),
    "type": (lambda g: (*g[:2], g[2].half(), *g[3:]), "keys torch.float16"),
    "dim": (lambda g: (*g[:2], g[2][..., :8], *g[3:]), "must be torch.float32.blocks, 1, block_size, 20"),
    "table": (lambda g: (*g[:3], g[3].long(), g[4]), "the table torch.int64"),
    "lengths": (lambda g: (*g[:4], g[4]._replace(lengths=g[4].lengths.long())), "lengths torch.int64"),
    "slots": (lambda g: (*g[:4], g[4]._replace(slots=g[4].slots[:1])), r"slots .* one for each of 2 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_what_the_kernels_cannot_take_is_refused(wrong: str) -> None:
    change, message = WRONG[wrong]
    with pytest.raises(ValueError, match=message):
        choose_tokens(*change(made((40, 30), 16)))
