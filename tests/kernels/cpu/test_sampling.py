"""Sampling against the distribution that transformers' warpers give, and its independence of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from actorserve.kernels.cpu.sampling import CANDIDATES, OF_XTC, log_weights, sample, uniform
from tests.kernels.sampled_rows import chi_square, mixed, parameters
from tests.support.selection import pairwise

DRAWS = 20_000
FEW_DRAWS = 5_000


def expected(logits: torch.Tensor, filters: dict[str, float]) -> np.ndarray:
    """Probabilities after top-nσ, by its formula, and then transformers' warpers in their order."""
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        TypicalLogitsWarper,
    )

    scores = logits[None].clone()
    if "top_n_sigma" in filters:
        scores[0, ~within_sigmas(logits, filters["top_n_sigma"])] = float("-inf")
    ids: Any = torch.zeros(1, 1, dtype=torch.long)
    if "temperature" in filters:
        scores = TemperatureLogitsWarper(float(filters["temperature"]))(ids, scores)
    if "top_k" in filters:
        scores = TopKLogitsWarper(int(filters["top_k"]))(ids, scores)
    if "top_p" in filters:
        scores = TopPLogitsWarper(float(filters["top_p"]))(ids, scores)
    if "min_p" in filters:
        scores = MinPLogitsWarper(float(filters["min_p"]))(ids, scores)
    if "typical_p" in filters:
        scores = TypicalLogitsWarper(float(filters["typical_p"]))(ids, scores)
    return np.asarray(torch.softmax(scores[0].double(), -1).numpy())


def within_sigmas(logits: torch.Tensor, sigmas: float) -> torch.Tensor:
    """The words that top-nσ keeps of one row."""
    deviation = logits[logits.isfinite()].double().std(correction=0)
    return logits >= logits.max() - sigmas * deviation


def draw(logits: torch.Tensor, filters: dict[str, float], count: int = DRAWS, rows: int = 500) -> np.ndarray:
    """`count` draws of one distribution, in batches."""
    batch = logits.expand(rows, -1)
    drawn = []
    for first in range(0, count, rows):
        values = parameters(rows, **filters)
        drawn.append(sample(batch, values._replace(position=values.position + first)))
    return np.concatenate(drawn)


FILTERS: list[dict[str, float]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 64},
    {"top_k": 90},
    {"top_k": 10_000},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.7, "top_k": 95, "top_p": 0.95, "min_p": 0.02},
    {"temperature": 1.3, "top_p": 0.97, "min_p": 0.01},
    {"temperature": 0.7, "top_k": 30, "min_p": 0.1},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 1.5, "temperature": 2.5, "top_k": 90},
    {"top_n_sigma": 1.2, "temperature": 1.6, "top_p": 0.8, "min_p": 0.05},
    {"typical_p": 0.3},
    {"typical_p": 0.95, "temperature": 1.5},
    {"typical_p": 0.5, "top_k": 30},
    {"typical_p": 0.6, "temperature": 1.7, "top_k": 95, "top_p": 0.95, "min_p": 0.02},
    {"typical_p": 0.7, "temperature": 1.3, "top_n_sigma": 1.5},
]


@pytest.mark.parametrize(("filters", "words"), pairwise(FILTERS, [50, 199]), ids=str)
def test_the_distribution_is_that_of_the_warpers(words: int, filters: dict[str, float]) -> None:
    as_the_warpers(words, filters, FEW_DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("words", [50, 199])
def test_the_distribution_in_more_draws(words: int, filters: dict[str, float]) -> None:
    as_the_warpers(words, filters, DRAWS)


def as_the_warpers(words: int, filters: dict[str, float], draws: int) -> None:
    logits = torch.randn(words, generator=torch.Generator().manual_seed(words)) * 2
    assert abs(chi_square(draw(logits, filters, draws), expected(logits, filters))) < 4.5


WIDE: list[dict[str, float]] = [
    {"top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.5},
    {"top_p": 0.9, "min_p": 0.3},
    {"top_k": 300, "top_p": 0.8},
    {"top_k": 300},
    {"typical_p": 0.7},
    {},
]


@pytest.mark.parametrize("filters", WIDE, ids=str)
def test_a_nucleus_beyond_the_candidates(filters: dict[str, float]) -> None:
    """A flat distribution over many words: what is kept does not fit into the candidates."""
    beyond_the_candidates(800, filters, 4_000)


@pytest.mark.slow
@pytest.mark.parametrize("filters", WIDE, ids=str)
def test_a_nucleus_far_beyond_the_candidates(filters: dict[str, float]) -> None:
    beyond_the_candidates(3000, filters, 60_000)


def beyond_the_candidates(words: int, filters: dict[str, float], draws: int) -> None:
    logits = torch.randn(words, generator=torch.Generator().manual_seed(3)) * 0.5
    probabilities = expected(logits, filters)
    assert (probabilities > 0).sum() > CANDIDATES
    assert abs(chi_square(draw(logits, filters, draws), probabilities)) < 4.5


def test_the_kept_words_are_those_of_the_warpers_in_a_large_vocabulary() -> None:
    """By the two levels of candidates, with logits of a steepness as models have it."""
    logits = torch.randn(40_000, generator=torch.Generator().manual_seed(4)) * 4
    several: list[dict[str, float]] = [{"top_k": 50}, {"top_p": 0.7}, {"temperature": 0.7, "top_k": 20, "top_p": 0.9}]
    for filters in several:
        probabilities = expected(logits, filters)
        assert abs(chi_square(draw(logits, filters, 1_600, 200), probabilities)) < 4.5


def test_equal_logits_are_cut_to_the_share() -> None:
    """Where all words are alike any choice of them is right, but so many must stay as the warper leaves."""
    for words in (60, 400):
        logits = torch.zeros(words)
        kept = (expected(logits, {"top_p": 0.3}) > 0).sum()
        drawn = np.unique(draw(logits, {"top_p": 0.3}, 4_000))
        assert abs(drawn.size - kept) <= 1  # 0.3 of the words, but for rounding
        assert np.unique(draw(logits, {"top_k": 5}, 4_000)).size == words, "equals of the k-th largest stay"


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = torch.randn(9, 777)
    logits[3, [40, 500]] = 9.0
    tokens = sample(logits, parameters(9, temperature=0.0))
    assert tokens.tolist() == logits.argmax(-1).tolist()
    assert tokens[3] == 40


@pytest.mark.parametrize("words", [100, 2000, 40_000])
def test_a_row_draws_the_same_in_every_batch(words: int) -> None:
    logits = torch.randn(48, words, generator=torch.Generator().manual_seed(5)) * 2
    values = mixed(48)
    together = sample(logits, values)
    alone = [int(sample(logits[row, None], values.of(np.array([row])))[0]) for row in range(48)]
    assert together.tolist() == alone
    for count in (2, 4, 5, 17):
        some = np.random.default_rng(count).permutation(48)[:count]
        assert sample(logits[torch.from_numpy(some)], values.of(some)).tolist() == together[some].tolist()


def test_logits_are_not_changed() -> None:
    logits = torch.randn(48, 1000)
    before = logits.clone()
    sample(logits, mixed(48))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_broken_row_harms_nobody_else(broken: float) -> None:
    """A row of nonsense gets some word; the others draw as ever."""
    logits = torch.randn(40, 1000)
    values = mixed(40)
    before = sample(logits, values)
    for whole in (False, True):
        harmed = logits.clone()
        for row in range(0, 40, 3):
            harmed[row, slice(None) if whole else slice(0, 1)] = broken
        after = sample(harmed, values)
        assert ((after >= 0) & (after < 1000)).all()
        others = np.arange(40) % 3 != 0
        assert (after[others] == before[others]).all()


@pytest.mark.parametrize(("sigmas", "temperature"), pairwise([0.1, 0.7, 1.0, 2.3, 5.0, 100.0], [0.8, 60.0]))
def test_top_n_sigma_keeps_what_its_formula_says(sigmas: float, temperature: float) -> None:
    """Of random logits, some of them masked before; where the temperature makes all alike, each that is kept comes."""
    logits = torch.randn(70, generator=torch.Generator().manual_seed(int(sigmas * 10))) * 3
    logits[::5] = float("-inf")
    wanted = set(torch.nonzero(within_sigmas(logits, sigmas) & logits.isfinite())[:, 0].tolist())
    drawn = set(draw(logits, {"top_n_sigma": sigmas, "temperature": temperature}, 1000).tolist())
    assert drawn == wanted if temperature > 1 else drawn <= wanted
    assert 1 <= len(wanted) <= 56 and (len(wanted) == 56) == (sigmas >= 5)


@pytest.mark.parametrize("beside", [{}, {"top_k": 5}, {"top_p": 0.4}, {"min_p": 0.2}], ids=str)
def test_top_n_sigma_goes_before_the_other_filters(beside: dict[str, float]) -> None:
    """They see the logits as if what it removes had been masked."""
    logits = torch.randn(300, generator=torch.Generator().manual_seed(4)) * 2
    masked = logits.masked_fill(~within_sigmas(logits, 0.9), float("-inf"))
    filters = {"temperature": 3.0, **beside}
    assert (draw(logits, filters | {"top_n_sigma": 0.9}, 500) == draw(masked, filters, 500)).all()


def test_rows_that_do_not_ask_for_top_n_sigma_draw_as_ever() -> None:
    logits = torch.randn(48, 1000)
    with_it = mixed(48)
    without = with_it._replace(top_n_sigma=np.zeros(48, np.float32))
    others = with_it.top_n_sigma == 0
    assert (sample(logits, with_it)[others] == sample(logits, without)[others]).all() and 0 < others.sum() < 48


@pytest.mark.parametrize("beside", [{}, {"temperature": 2.0}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.4}], ids=str)
def test_typical_p_keeps_what_the_warper_keeps(beside: dict[str, float]) -> None:
    """Of flat distributions, where each word that is kept comes; the likeliest is not always one of them."""
    without_likeliest = 0
    for number, share in enumerate((0.05, 0.2, 0.5, 0.8, 0.95)):
        logits = torch.randn(40, generator=torch.Generator().manual_seed(number)) * 0.5
        wanted = expected(logits, {"typical_p": share, **beside}) > 0
        drawn = np.unique(draw(logits, {"typical_p": share, **beside}, 1000))
        assert drawn.tolist() == np.flatnonzero(wanted).tolist()
        without_likeliest += not wanted[int(logits.argmax())]
    assert without_likeliest


def test_words_as_typical_as_the_last_stay() -> None:
    for words in (1, 60, 200):
        assert np.unique(draw(torch.zeros(words), {"typical_p": 0.01}, 2_000)).size == words
    logits = torch.tensor([2.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    for share in (0.1, 0.9):
        assert (
            np.unique(draw(logits, {"typical_p": share}, 500)).tolist()
            == np.flatnonzero(expected(logits, {"typical_p": share})).tolist()
        )


def test_rows_that_do_not_ask_for_typical_p_draw_as_ever() -> None:
    """1 asks for nothing."""
    logits = torch.randn(48, 1000)
    with_it = mixed(48)
    without = with_it._replace(typical_p=np.ones(48))
    others = with_it.typical_p == 1
    assert (sample(logits, with_it)[others] == sample(logits, without)[others]).all() and 0 < others.sum() < 48


def shares_of(logits: torch.Tensor, temperature: float = 1.0) -> np.ndarray:
    return np.asarray(torch.softmax(logits.double() / temperature, -1).numpy())


def without_top(shares: np.ndarray, threshold: float) -> np.ndarray:
    """llama.cpp's XTC, over the words in their order."""
    order = np.argsort(-shares, kind="stable")
    last = -1
    for place, word in enumerate(order):
        if not shares[word] > 0 or shares[word] < threshold:
            break
        last = place
    left = shares.copy()
    left[order[: max(last, 0)]] = 0
    left /= left.sum()
    return left


@pytest.mark.parametrize("beside", [{}, {"temperature": 0.7}, {"top_k": 6}, {"typical_p": 0.9}], ids=str)
@pytest.mark.parametrize(("threshold", "chance"), [(0.1, 1.0), (0.15, 0.4), (0.0, 0.5), (0.6, 1.0)])
def test_xtc_leaves_out_top_choices_as_often_as_it_is_asked(
    threshold: float, chance: float, beside: dict[str, float]
) -> None:
    logits = torch.tensor([1.0, 2.0, 3.0, 3.4, 0.5, 2.8, -1.0, 1.7])
    before = expected(logits, beside)
    wanted = (1 - chance) * before + chance * without_top(before, threshold)
    drawn = draw(logits, {"xtc_probability": chance, "xtc_threshold": threshold, **beside}, DRAWS)
    assert np.abs(np.bincount(drawn, minlength=8) / DRAWS - wanted).max() < 0.015
    assert (np.abs(wanted - before).max() > 0.05) == (threshold < 0.5)


def test_xtc_keeps_words_as_likely_as_the_least_likely_of_the_top() -> None:
    filters = {"xtc_probability": 1.0, "xtc_threshold": 0.2}
    assert np.unique(draw(torch.tensor([0.0, 0.0, 0.0]), filters, 300)).tolist() == [0, 1, 2]
    assert np.unique(draw(torch.tensor([0.5, 0.0, 0.0, -9.0]), filters, 300)).tolist() == [1, 2]


@pytest.mark.parametrize("beside", [{}, {"top_k": 5}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize(("middle", "reach", "exponent"), [(1.0, 0.5, 1.0), (0.8, 0.8, 2.0), (1.5, 0.3, 0.5)])
def test_a_dynamic_temperature_is_that_of_llamacpp(
    middle: float, reach: float, exponent: float, beside: dict[str, float]
) -> None:
    """Behind the filters, which see the temperature 1."""
    logits = torch.tensor([1.0, 2.0, 3.0, 3.4, 0.5, 2.8, -1.0, 1.7])
    before = expected(logits, beside)
    left = before[before > 0]
    evenness = -(left * np.log(left)).sum() / np.log(left.size)
    low = max(0.0, middle - reach)
    kept = logits.masked_fill(torch.from_numpy(before == 0), float("-inf"))
    wanted = shares_of(kept, low + (middle + reach - low) * evenness**exponent)
    filters = {"temperature": middle, "dynatemp_range": reach, "dynatemp_exponent": exponent}
    drawn = draw(logits, {**filters, **beside}, DRAWS)
    assert np.abs(np.bincount(drawn, minlength=8) / DRAWS - wanted).max() < 0.015


def test_what_is_drawn_from_is_told_of_all_ways() -> None:
    """By draws, of rows of all kinds in one batch."""
    logits = torch.randn(40, 30, generator=torch.Generator().manual_seed(2)) * 2
    values = mixed(40)
    told = log_weights(logits, values).softmax(-1).numpy()
    assert np.allclose(log_weights(logits[7:8], values.of(np.array([7]))).softmax(-1).numpy(), told[7])
    many = 1500
    for row in range(40):
        own = values.of(np.full(many, row))
        hit = uniform(own.seed ^ OF_XTC, own.position) < own.xtc_probability
        own = own._replace(position=np.arange(many), xtc_probability=np.where(hit, 1, 0).astype(np.float32))
        drawn = sample(logits[row].expand(many, -1), own)
        assert set(drawn) <= {*np.flatnonzero(told[row])}
        assert np.abs(np.bincount(drawn, minlength=30) / many - told[row]).max() < 0.06
    greedy = values.temperature == 0
    assert (told[greedy].max(-1) == 1).all() and greedy.any()


def test_a_dynamic_temperature_of_nothing_takes_the_likeliest() -> None:
    filters = {"temperature": 0.5, "dynatemp_range": 0.5, "dynatemp_exponent": 100.0}
    assert set(draw(torch.tensor([5.0, 1.0, -1.0]), filters, 200)) == {0}
    assert set(draw(torch.tensor([5.0]), filters, 3)) == {0}


def test_suppressed_words_are_never_drawn() -> None:
    logits = torch.randn(130)
    logits[::2] = float("-inf")
    several: list[dict[str, float]] = [{}, {"top_p": 0.999}, {"top_k": 100}, {"temperature": 5.0, "min_p": 0.001}]
    several.append({"typical_p": 0.99})
    for filters in several:
        assert (draw(logits, filters, 1000) % 2 == 1).all()


def test_uniform_numbers_are_uniform_and_independent() -> None:
    """Over positions of one seed and over seeds at one position, neighbours included."""
    count = 100_000
    along = uniform(np.full(count, 12345, np.uint64), np.arange(count))
    across = uniform(np.arange(count).astype(np.uint64), np.full(count, 7))
    for drawn in (along, across):
        assert drawn.min() >= 0 and drawn.max() < 1
        bins = np.bincount((drawn * 100).astype(int), minlength=100)
        assert abs(((bins - 1000.0) ** 2 / 1000).sum() - 99) < 4.5 * np.sqrt(2 * 99)
        assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.015
    largest = np.array([2**64 - 1], np.uint64)
    assert 0 <= uniform(largest, np.array([2**40]))[0] < 1
