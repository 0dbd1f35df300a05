"""Drawing by kernels: the words that filters leave, and the tokens that a CPU draws."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from actorserve.kernels.cpu import sampling  # noqa: E402
from actorserve.kernels.triton import sampling as gpu_sampling  # noqa: E402
from actorserve.kernels.triton.sampler.draw import uniform_number  # noqa: E402
from actorserve.kernels.triton.sampling import RowParameters, Tiling, Workspace, sample  # noqa: E402
from tests.kernels.reference.sampling import reference_kept, reference_order  # noqa: E402
from tests.kernels.sampled_rows import chi_square, mixed, parameters  # noqa: E402
from tests.kernels.triton.capture import captured  # noqa: E402

TILING = Tiling(width=512, lanes=128, segment=256, candidates=512)  # so that small vocabularies take several slices
NO_RESERVE = 0x4000  # of Linux' mmap; Python names it from 3.13 on


def random_logits(rows: int, words: int, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, words, generator=torch.Generator().manual_seed(words)) * scale


def on_device(values: sampling.Parameters) -> RowParameters:
    return RowParameters(
        *(
            torch.from_numpy(value.view(value.dtype.str.replace("u", "i"))).to(DEVICE)
            for value in (getattr(values, name) for name in RowParameters._fields)
        )
    )


def draw(
    logits: torch.Tensor, values: sampling.Parameters, rows: list[int] | None = None, tiling: Tiling = TILING
) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, numbers of words kept)."""
    count = len(logits)
    index = torch.arange(count) if rows is None else torch.tensor(rows)
    out, kept = (torch.full((count,), -7, dtype=torch.int32, device=DEVICE) for _ in range(2))
    workspace = Workspace.make(count, logits.shape[1], DEVICE, tiling)
    sample(logits.to(DEVICE), index.to(DEVICE), on_device(values), workspace, out, kept=kept, tiling=tiling)
    return out.cpu().numpy(), kept.cpu().numpy()


def check(logits: torch.Tensor, values: sampling.Parameters) -> np.ndarray:
    """Draws what a CPU draws, from the words that a full sort finds; returns how many these are in each row."""
    tokens, kept = draw(logits, values)
    wanted = reference_kept(logits, values)
    for row, (own, number) in enumerate(zip(logits, kept.tolist(), strict=True)):
        if values.temperature[row] == 0:
            continue
        if values.xtc_probability[row] > 0 or values.dynatemp_range[row] > 0:
            continue  # what a CPU draws from is compared where these alone are tried
        if values.typical_p[row] < 1:
            assert number == wanted[row].sum() and wanted[row, tokens[row]], (row, number, wanted[row].sum())
            continue
        _, words = reference_order(own, float(values.temperature[row]))
        mask = torch.zeros(len(own), dtype=torch.bool)
        mask[words[:number]] = True  # what is kept are always the first words in descending order
        assert torch.equal(mask, wanted[row]), (row, number, wanted[row].sum(), values.of(np.array([row])))
        assert mask[tokens[row]]
    assert tokens.tolist() == sampling.sample(logits, values).tolist()
    return kept


@pytest.mark.parametrize(("words", "rows"), [(1, 2), (50, 7), (199, 7), (3000, 12)])
def test_it_draws_what_a_cpu_draws_from_the_same_words(words: int, rows: int) -> None:
    check(random_logits(rows, words), mixed(rows, words))


@pytest.mark.slow
@pytest.mark.parametrize("words", [2, 64, 65, 80, 100, 1024, 1025, 4097])
@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_it_draws_what_a_cpu_draws_in_many_cases(words: int, scale: float) -> None:
    values = mixed(60, words)
    values.top_k[values.top_k >= words] = 0  # whether a CPU draws these in descending order is a matter of rounding
    check(random_logits(60, words, scale), values)


@pytest.mark.parametrize(
    "filters",
    [
        {"temperature": 3.0, "top_p": 0.9},
        {"top_p": 0.9, "min_p": 0.15},
        {"top_k": 700, "top_p": 0.9},
        {"top_k": 10_000},
        {"top_n_sigma": 3.2, "top_p": 0.95},
        {"typical_p": 0.9},
        {"typical_p": 0.9, "top_p": 0.95},
    ],
    ids=str,
)
def test_more_words_than_candidates(filters: dict[str, float]) -> None:
    """Flat distributions: thresholds are sought over the whole row."""
    kept = check(random_logits(2, 3000, 0.5), parameters(2, **filters))
    assert (kept > TILING.candidates).all()


@pytest.mark.parametrize("beside", [{}, {"top_k": 30}, {"top_p": 0.5}, {"min_p": 0.3, "temperature": 2.0}], ids=str)
def test_top_n_sigma(beside: dict[str, float]) -> None:
    """By each way that a row may go; with masked words, which do not count in the deviation."""
    logits = random_logits(4, 1100)
    logits[:2, ::3] = float("-inf")
    values = parameters(4, **beside)
    values.top_n_sigma[:] = [0.3, 1.5, 0.3, 1.5]
    assert (check(logits, values) < 400).all()


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
@pytest.mark.parametrize(
    "beside",
    [{}, {"top_k": 30}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_n_sigma": 1.2}, {"temperature": 2.0, "top_k": 400}],
    ids=str,
)
def test_typical_p(scale: float, beside: dict[str, float]) -> None:
    """By each way that a row may go: of steep distributions all that is kept is among the candidates."""
    logits = random_logits(5, 1100, scale)
    logits[:2, ::3] = float("-inf")
    values = parameters(5, **beside)
    values.typical_p[:] = [0.05, 0.3, 0.9, 0.97, 0.999]
    check(logits, values)


def test_equals_under_typical_p() -> None:
    """All equals of the last that it keeps stay, as far as top-p has left them."""
    values = parameters(3, typical_p=0.2)
    values.top_p[1], values.top_k[2] = 0.3, 5
    _, kept = draw(torch.full((3, 1500), -1.5), values)
    assert kept.tolist() == [1500, 450, 1500]


SHAPED: list[tuple[float, dict[str, float]]] = [
    (0.5, {}),
    (3.0, {"top_k": 30}),
    (0.5, {"top_p": 0.5}),
    (3.0, {"min_p": 0.05, "temperature": 1.7}),
    (3.0, {"typical_p": 0.6}),
    (0.5, {"typical_p": 0.6, "top_p": 0.9}),
    (2.0, {"top_n_sigma": 1.2, "temperature": 0.6}),
]


@pytest.mark.parametrize(("scale", "beside"), SHAPED, ids=str)
def test_xtc(scale: float, beside: dict[str, float]) -> None:
    """Whether something is left out follows from the seed and the position; equals of the last top choice stay."""
    logits = random_logits(7, 1100, scale)
    logits[0, ::3] = float("-inf")
    logits[2:4, 100:900:100] = logits[2:4].amax(-1, keepdim=True) - 0.5
    values = parameters(7, **beside, xtc_probability=0.8)
    values.xtc_threshold[:] = [0.0, 0.001, 0.01, 0.02, 0.05, 0.2, 0.9]
    tokens, kept = draw(logits, values)
    assert tokens.tolist() == sampling.sample(logits, values).tolist()
    assert kept.tolist() == (sampling.log_weights(logits, values) > float("-inf")).sum(1).tolist()
    _, all_kept = draw(logits, values._replace(xtc_probability=np.zeros(7, np.float32)))
    assert (kept <= all_kept).all() and (kept < all_kept).any()


@pytest.mark.parametrize(("scale", "beside"), SHAPED, ids=str)
def test_a_dynamic_temperature(scale: float, beside: dict[str, float]) -> None:
    """Filters see the temperature 1; then it follows from how even what they leave is, down to one of 0."""
    logits = random_logits(8, 1100, scale)
    logits[:2, ::3] = float("-inf")
    logits[2, :] = 1.5
    logits[3, [7, 400, 1000]] = 90.0
    values = parameters(8, **beside)
    values.dynatemp_range[:] = [0.3, 0.5, 0.7, 2.0, 0.3, 0.5, 0.7, 2.0]
    values.dynatemp_exponent[:] = [1.0, 0.0, 2.0, 1.0, 0.5, 1.0, 3.0, 1.0]
    tokens, _ = draw(logits, values)
    assert tokens.tolist() == sampling.sample(logits, values).tolist()
    values.xtc_probability[:], values.xtc_threshold[:] = 1, 0.02
    assert draw(logits, values)[0].tolist() == sampling.sample(logits, values).tolist()


def test_a_dynamic_temperature_of_a_greedy_row_says_nothing() -> None:
    logits = random_logits(3, 700)
    values = parameters(3, temperature=0.0, dynatemp_range=1.0, dynatemp_exponent=1.0, xtc_probability=1.0)
    assert draw(logits, values)[0].tolist() == logits.argmax(-1).tolist()


def test_more_candidates_than_a_slice_has_room_for() -> None:
    """The likely words are all neighbours."""
    logits = random_logits(3, 3000, 0.5)
    logits[:, 600:1000] += 6
    values = parameters(3, top_p=0.9)
    values.top_k[1:] = [300, 100]
    values.top_p[1] = 1
    kept = check(logits, values)
    assert (kept[:2] > TILING.segment).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_logits_of_16_bits(dtype: torch.dtype) -> None:
    """They are what float32 makes of them: many equals among them."""
    logits = random_logits(6, 1300).to(dtype)
    tokens, _ = draw(logits, mixed(6))
    assert tokens.tolist() == sampling.sample(logits.float(), mixed(6)).tolist()


def test_a_vocabulary_of_more_slices_than_are_looked_over() -> None:
    """A slice is as wide as ever, else its program would spill registers; and has fewer lanes."""
    assert Tiling().of(262_144) == Tiling() and Tiling().of(262_145) == Tiling(lanes=64)  # Gemma 3 has 262,208
    assert Tiling().of(1 << 20) == Tiling(lanes=32)
    logits, values = random_logits(2, 8200, 5.0), parameters(2, top_p=0.8)
    tiling = Tiling(width=64, lanes=64, segment=64, candidates=2048)
    assert tiling.of(8200).lanes == 32
    tokens, _ = draw(logits, values, tiling=tiling)
    assert tokens.tolist() == sampling.sample(logits, values).tolist()


def test_few_words_that_are_allowed() -> None:
    """A grammar leaves three; filters that would leave more find them all among the candidates."""
    logits = random_logits(5, 2000)
    allowed = torch.tensor([3, 700, 1999])
    only = torch.full_like(logits, float("-inf"))
    only[:, allowed] = logits[:, allowed]
    values = parameters(5)
    values.top_k[:] = [50, 0, 0, 2, 0]
    values.top_p[:] = [1, 0.999, 1, 0.5, 0.4]
    check(only, values)


def test_equals_are_cut_to_the_share() -> None:
    logits = torch.full((3, 1500), -1.5)
    values = parameters(3)
    values.top_k[:] = [5, 0, 0]
    values.top_p[:] = [1, 0.3, 1e-9]
    tokens, kept = draw(logits, values)
    assert kept.tolist() == [1500, 450, 1]  # equals of the k-th largest stay
    assert tokens[1] < 450 and tokens[2] == 0, "of equals the first stay"


def test_equals_among_unequal_words() -> None:
    """The last that top-p keeps has equals on both sides of other words."""
    logits = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0, -1.0, 0.0, 0.0]]).repeat(2, 1)
    values = parameters(2)
    values.top_p[:] = [0.75, 0.9]
    _, kept = draw(logits, values)
    assert kept.tolist() == reference_kept(logits, values).sum(1).tolist()


def test_the_distribution() -> None:
    check_distribution(random_logits(1, 12, 1.0), {"temperature": 0.6, "min_p": 0.05}, 150)


@pytest.mark.slow
@pytest.mark.parametrize(
    "filters",
    [{}, {"top_k": 5}, {"top_p": 0.8}, {"temperature": 1.7, "top_k": 20, "top_p": 0.95, "min_p": 0.02}],
    ids=str,
)
def test_the_distribution_in_more_draws(filters: dict[str, float]) -> None:
    check_distribution(random_logits(1, 30, 1.0), filters, 600)


def check_distribution(logits: torch.Tensor, filters: dict[str, float], draws: int) -> None:
    """Against the softmax of what the reference keeps."""
    values = parameters(draws, **filters)
    tokens, _ = draw(logits.expand(draws, -1), values)
    scores = logits[0].double() / filters.get("temperature", 1.0)
    shares = torch.softmax(scores.masked_fill(~reference_kept(logits, values)[0], float("-inf")), 0).numpy()
    assert abs(chi_square(tokens, shares)) < 4.5


def _uniform(seeds: Any, positions: Any, out: Any, SIZE: tl.constexpr) -> None:
    at = tl.arange(0, SIZE)
    tl.store(out + at, uniform_number(tl.load(seeds + at), tl.load(positions + at)))


uniform_kernel = triton.jit(_uniform)


def test_random_numbers_are_those_of_a_cpu() -> None:
    """Bit for bit, with all bits of seeds."""
    random = np.random.default_rng(0)
    seeds = random.integers(0, 1 << 64, 4096, dtype=np.uint64)
    positions = random.integers(0, 1 << 40, 4096)
    seeds[:4], positions[:4] = [0, 2**64 - 1, 2**63, 1], [0, 0, 2**40, 2**62]
    inputs = (torch.from_numpy(values).to(DEVICE) for values in (seeds.view(np.int64), positions))
    out = torch.zeros(4096, dtype=torch.float64, device=DEVICE)
    uniform_kernel[(1,)](*inputs, out, SIZE=4096)
    assert np.array_equal(out.cpu().numpy(), sampling.uniform(seeds, positions))
    assert len(np.unique(out.cpu().numpy())) == 4096


def test_greedy_takes_the_first_of_the_largest() -> None:
    logits = random_logits(6, 2500)
    logits[3, [40, 500, 1064, 2000]] = 9.0
    tokens, kept = draw(logits, parameters(6, temperature=0.0))
    assert tokens.tolist() == logits.argmax(-1).tolist() and tokens[3] == 40
    assert kept.tolist() == [1] * 6


def test_state_rows() -> None:
    """Rows of logits name the rows of the parameters, in any order; -1 is a row that fills up the batch."""
    logits, values = random_logits(5, 300), mixed(9, 3)
    rows = [8, -1, 0, 5, -1]
    tokens, kept = draw(logits, values, rows)
    there = np.array([row for row in rows if row >= 0])
    expected = sampling.sample(logits[[0, 2, 3]], values.of(there))
    assert tokens[[0, 2, 3]].tolist() == expected.tolist()
    assert tokens[[1, 4]].tolist() == kept[[1, 4]].tolist() == [0, 0]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"temperature": 0.0}], ids=str)
def test_broken_rows(filters: dict[str, float]) -> None:
    """Nonsense gets some word, and harms nobody else."""
    logits = random_logits(5, 300)
    expected = sampling.sample(logits, parameters(5, **filters))
    logits[0] = float("nan")
    logits[1, 7] = float("inf")
    logits[2] = float("-inf")
    logits[3, 4] = float("nan")
    tokens, _ = draw(logits, parameters(5, **filters))
    assert ((tokens >= 0) & (tokens < 300)).all()
    assert tokens[1] == 7 and tokens[3] != 4 and tokens[4] == expected[4]


def test_logits_are_not_changed_and_rows_may_lie_apart() -> None:
    wide = torch.full((3, 400), float("nan"))
    wide[:, :300] = random_logits(3, 300)
    wide[:, 300:] = 1e9
    before = wide.clone()
    values = parameters(3, top_p=0.9)
    tokens, _ = draw(wide[:, :300], values)
    assert tokens.tolist() == sampling.sample(wide[:, :300].contiguous(), values).tolist()
    assert torch.equal(wide, before)


def test_rows_beyond_32_bits() -> None:
    """The number of a row times the numbers between rows passes 2³¹; of the memory only what is touched is there."""
    apart = (1 << 30) + 64
    if DEVICE == "cuda":
        memory = torch.empty(2 * apart + 100, device=DEVICE)
    else:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
        memory = torch.frombuffer(mmap.mmap(-1, 4 * (2 * apart + 100), flags=flags), dtype=torch.float32)
    logits = torch.as_strided(memory, (3, 100), (apart, 1))
    logits.copy_(random_logits(3, 100))
    values = parameters(3, temperature=0.0)
    assert draw(logits, values)[0].tolist() == logits.argmax(-1).tolist()


def test_no_rows_and_no_report() -> None:
    values = on_device(parameters(3))
    nothing = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    workspace = Workspace.make(3, 9, DEVICE)
    assert sample(torch.zeros(0, 9, device=DEVICE), nothing, values, workspace, nothing.clone()).shape == (0,)
    logits, rows = random_logits(3, 70).to(DEVICE), torch.arange(3, device=DEVICE)
    workspace = Workspace.make(3, 70, DEVICE)
    out = sample(logits, rows, values, workspace, torch.zeros(3, dtype=torch.int64, device=DEVICE))
    assert out.tolist() == sampling.sample(logits.cpu(), parameters(3)).tolist()


def test_what_concerns_a_row_is_one_programs_work() -> None:
    """And not that of each slice: from where on its words count, and are candidates."""
    values, rows = on_device(parameters(3, top_p=0.9)), torch.arange(3, device=DEVICE)
    workspace = Workspace.make(3, 5000, DEVICE)
    with captured(gpu_sampling) as launches:
        sample(torch.zeros(3, 5000, device=DEVICE), rows, values, workspace, rows.clone())
    assert [launch.grid for launch in launches] == [(3, 2), (3,), (3, 2), (3,)]


def test_misfits_are_refused() -> None:
    logits, rows, values = torch.randn(3, 9), torch.arange(3), on_device(parameters(3))
    workspace, out = Workspace.make(3, 9, "cpu"), torch.zeros(3, dtype=torch.int32)
    fine: dict[str, Any] = {
        "logits": logits, "rows": rows, "parameters": values, "workspace": workspace, "out": out
    }  # fmt: skip

    def refused(what: str, **changes: Any) -> None:
        with pytest.raises(ValueError, match=what):
            sample(**(fine | changes))

    refused("logits .*float64", logits=logits.double())
    refused("side by side", logits=torch.randn(9, 3).t())
    refused("rows .*int32", rows=rows.int())
    refused("top_p .*float32", parameters=values._replace(top_p=values.top_p.float()))
    refused("seed|temperature", parameters=values._replace(seed=values.seed[:2]))
    refused("workspace .* 3 rows", workspace=Workspace.make(2, 9, "cpu"))
    refused("workspace", tiling=TILING)
    refused("workspace .* 1 slices", workspace=Workspace.make(3, 5000, "cpu"))
    refused("out", out=out[:2])
    refused("kept", kept=out.long())
