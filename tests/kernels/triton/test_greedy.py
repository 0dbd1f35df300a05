"""The likeliest word, of keys that members with a part of the vocabulary each have made."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.greedy import NOBODY, greedy_keys, words_of  # noqa: E402
from actorserve.kernels.triton.sampling import PARAMETER_DTYPES, RowParameters, Tiling, Workspace  # noqa: E402

TILING = Tiling(width=256, lanes=128, segment=256, candidates=512)  # so that small vocabularies take several slices
NEVER = float("-inf")


def drawn(logits: torch.Tensor, parts: int, rows: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(words, keys) of logits that so many members have, each as many but for the last ones."""
    words = logits.shape[1]
    each = -(-words // parts)
    parameters = RowParameters(*(torch.zeros(9, dtype=kind, device=DEVICE) for kind in PARAMETER_DTYPES))
    workspace = Workspace.make(len(rows), words, DEVICE, TILING)
    state = torch.tensor(rows, device=DEVICE)
    keys = []
    for part in range(parts):
        own = logits[:, min(part * each, words) : (part + 1) * each].to(DEVICE)
        out = torch.full((len(rows),), 77, device=DEVICE)
        keys.append(greedy_keys(own, part * each, state, parameters, workspace, out, tiling=TILING))
    best = torch.stack(keys).amax(0)
    return words_of(best, torch.empty(len(rows), dtype=torch.int32, device=DEVICE)).cpu(), best.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("words", "parts"), [(1, 1), (700, 1), (701, 2), (1500, 4), (5, 4)])
def test_the_largest_logit_of_all_parts(words: int, parts: int, dtype: torch.dtype) -> None:
    """Of 16 bits, many are equal: the lowest word is taken. A part may have no words."""
    logits = torch.randn(6, words, generator=torch.Generator().manual_seed(words)).to(dtype)
    found, _ = drawn(logits, parts, list(range(6)))
    largest = logits.float().amax(1, keepdim=True)
    assert found.tolist() == [int(torch.nonzero(row)[0]) for row in logits.float() == largest]


def test_equals_and_what_is_no_number() -> None:
    logits = torch.full((6, 600), -3.0)
    logits[0, [40, 350, 599]] = 2.5  # of both parts, and twice in one
    logits[1, 200], logits[1, 10] = 0.0, -0.0  # equals
    logits[2] = NEVER
    logits[3, 0] = float("nan")
    logits[3, 599] = -1.0
    logits[4, 300:] = -1e-30  # all below 0, equal in the second part
    logits[5, 450] = float("inf")
    found, _ = drawn(logits, 2, [3, 0, 2, 1, 4, 8])
    assert found.tolist() == [40, 10, 0, 599, 300, 450]


def test_rows_that_are_none() -> None:
    """Their word is 0, whatever the logits; of no words at all nothing is known."""
    logits = torch.randn(3, 400)
    found, _ = drawn(logits, 2, [-1, 5, -1])
    assert found[[0, 2]].tolist() == [0, 0] and found[1] == logits[1].argmax()
    _, keys = drawn(logits[:, :0], 1, [0, 1, 2])
    assert keys.tolist() == [NOBODY] * 3


def test_a_part_has_the_lanes_of_the_whole() -> None:
    """Of many slices, each has fewer; a part alone would have more."""
    tiling = Tiling(width=64, lanes=64, segment=64, candidates=512)
    whole, logits = 128 * 64 + 1, torch.randn(2, 700, device=DEVICE)
    workspace, rows = Workspace.make(2, whole, DEVICE, tiling), torch.arange(2, device=DEVICE)
    assert workspace.peaks.shape[2] == tiling.of(whole).lanes < tiling.of(700).lanes
    parameters = RowParameters(*(torch.zeros(2, dtype=kind, device=DEVICE) for kind in PARAMETER_DTYPES))
    keys = greedy_keys(logits, 5, rows, parameters, workspace, torch.empty_like(rows), tiling=tiling)
    found = words_of(keys, torch.empty(2, dtype=torch.int32, device=DEVICE))
    assert torch.equal(found, logits.argmax(1) + 5)


def test_what_does_not_fit() -> None:
    logits, rows = torch.randn(3, 400, device=DEVICE), torch.arange(3, device=DEVICE)
    parameters = RowParameters(*(torch.zeros(9, dtype=kind, device=DEVICE) for kind in PARAMETER_DTYPES))
    workspace = Workspace.make(2, 400, DEVICE, TILING)
    with pytest.raises(ValueError, match="workspace does not fit 3 rows"):
        greedy_keys(logits, 0, rows, parameters, workspace, torch.empty_like(rows), tiling=TILING)
    with pytest.raises(ValueError, match=r"int64 \[3\]"):
        greedy_keys(logits, 0, rows, parameters, workspace, torch.empty(2, dtype=torch.int64), tiling=TILING)
    with pytest.raises(ValueError, match="side by side"):
        greedy_keys(logits.T, 0, torch.arange(400), parameters, workspace, torch.empty(400, dtype=torch.int64))
