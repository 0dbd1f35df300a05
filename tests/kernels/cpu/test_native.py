"""The kernels in C against their formulas, for each kind of processor that this can be."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.worker.lora.products import bias_of, weight_of
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native import variants
from actorserve.kernels.cpu.native.linear import (
    Grouped,
    NativeLinear,
    Scales,
    bfloat16_linear,
    float_linear,
    grouped_linear,
    grouped_linears,
    int8_linear,
    side_by_side_weight,
)
from tests.support.compiler import need_compiler
from tests.worker.driver import rounded_by_groups

NAMES = [one.name for one in variants.variants(cpu_flags())]
EMULATION = Path(__file__).with_name("matrix_instructions.h")


def check_rows(library: native.Library, product: NativeLinear, x: torch.Tensor, expected: torch.Tensor) -> None:
    """Whatever the number of threads, also where they are added to something."""
    library.set_threads(len(x) % 3 + 1)
    assert torch.equal(product(x), expected), len(x)
    residual = x[:, :1].expand(-1, expected.shape[1]).clone()
    product.add_to(residual, x)
    assert torch.equal(residual, x[:, :1] + expected)


def emulated() -> variants.Variant:
    """With matrix instructions in C, for a processor that has none."""
    (avx512,) = (one for one in variants.VARIANTS if one.name == "avx512")
    mark = f"-DEMULATION={hashlib.sha256(EMULATION.read_bytes()).hexdigest()[:8]}"  # the library's name depends on it
    return avx512._replace(name="emulated", flags=(*avx512.flags, "-include", str(EMULATION), mark))


if "avx512" in NAMES and "amx" not in NAMES:
    NAMES.append("emulated")


class Libraries(dict[str, native.Library]):
    """By variants' names, each loaded by who first wants it: on a machine that has none yet all take minutes."""

    def __missing__(self, name: str) -> native.Library:
        self[name] = native.load(cpu_flags(), name)
        return self[name]


@pytest.fixture(scope="module")
def libraries() -> Iterator[Libraries]:
    """Those of all variants."""
    need_compiler()
    made = Libraries()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants, "VARIANTS", (*variants.VARIANTS, emulated()))
        yield made
    for one in made.values():
        one.set_threads(1)


def int8_formula(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Sums in whole numbers; each step of the rest rounded to float32."""
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    whole = (x / step).nan_to_num(0.0).round().long()
    found: torch.Tensor = (whole @ weight.long().T).float() * scales * step + bias
    return found


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_int8_products_are_the_formula_whatever_the_rows(libraries: Libraries, variant: str, threads: int) -> None:
    library = libraries[variant]
    library.set_threads(threads)
    generator = torch.Generator().manual_seed(threads)
    for outputs, inputs in ((5, 3), (64, 64), (67, 130), (256, 1000)):
        weight = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        scales, bias = torch.rand(outputs, generator=generator), torch.randn(outputs, generator=generator)
        product = int8_linear(library, weight, scales, bias)
        assert torch.equal(side_by_side_weight(product), weight.float() * scales[:, None])
        x = torch.randn(33, inputs, generator=generator)
        expected = int8_formula(x, weight, scales, bias)
        for rows in (*range(1, 10), 16, 33):
            check_rows(library, product, x[:rows], expected[:rows])


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_of_floats_are_near_and_the_same_whatever_the_rows(
    libraries: Libraries, variant: str, dtype: torch.dtype
) -> None:
    library = libraries[variant]
    generator = torch.Generator().manual_seed(3)
    for outputs, inputs in ((5, 3), (64, 64), (67, 131), (130, 1000)):
        weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
        bias, x = torch.randn(outputs, generator=generator), torch.randn(101, inputs, generator=generator)
        product = float_linear(library, weight, bias)
        exact = x.double() @ weight.double().T + bias.double()
        library.set_threads(1)
        alone = torch.cat([product(row[None]) for row in x])
        assert (alone - exact).abs().max() < 1e-6 * inputs
        for rows in (2, 3, 5, 16, 33, 48, 101):
            check_rows(library, product, x[:rows], alone[:rows])
        narrow = float_linear(library, weight, None)(x.bfloat16())
        assert torch.equal(narrow, float_linear(library, weight, None)(x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("outputs", [300, 1500, 2300])
def test_every_output_is_in_one_task_however_large_these_are(libraries: Libraries, variant: str, outputs: int) -> None:
    """64 KB of weights are a task, or many of these where there are enough for all threads."""
    library, generator = libraries[variant], torch.Generator().manual_seed(outputs)
    weight, x = torch.randn(outputs, 1024, generator=generator), torch.randn(33, 1024, generator=generator)
    exact, product = x.double() @ weight.double().T, float_linear(library, weight, None)
    for threads in (1, 2, 3, 7):
        library.set_threads(threads)
        for rows in (1, 33):
            added = torch.ones(rows, outputs)
            product.add_to(added, x[:rows])
            assert (added - 1 - exact[:rows]).abs().max() < 1e-3


@pytest.mark.parametrize("variant", NAMES)
def test_products_of_bfloat16_are_near_and_the_same_whatever_the_rows(libraries: Libraries, variant: str) -> None:
    library = libraries[variant]
    generator = torch.Generator().manual_seed(5)
    for outputs, inputs, most in ((5, 3, 40), (64, 64, 40), (67, 131, 40), (130, 1000, 40), (300, 96, 600)):
        weight = torch.randn(outputs, inputs, generator=generator).bfloat16()
        bias, x = torch.randn(outputs, generator=generator), torch.randn(most, inputs, generator=generator)
        product = bfloat16_linear(library, weight, bias)
        assert torch.equal(side_by_side_weight(product), weight.float())
        assert torch.equal(weight_of(product), weight.float())
        exact = x.bfloat16().double() @ weight.double().T + bias.double()
        library.set_threads(1)
        alone = torch.cat([product(row[None]) for row in x])
        assert (alone - exact).abs().max() < 1e-6 * inputs
        for rows in (*range(2, 10), 16, 33, 257, 514, most):
            check_rows(library, product, x[:rows], alone[:rows])
        x[1, 0], x[2, 2] = float("nan"), float("inf")
        assert product(x[:9]).isfinite().all(1).tolist() == [True, False, False, *6 * [True]]


@pytest.mark.parametrize("variant", NAMES)
def test_the_smallest_numbers_of_bfloat16_are_nothing_whatever_the_rows(libraries: Libraries, variant: str) -> None:
    """Matrix instructions know no others. What sums are added to keeps them, and a thread that has multiplied rounds as
    it did before."""
    library = libraries[variant]
    library.set_threads(1)
    generator = torch.Generator().manual_seed(6)
    scale = torch.pow(2.0, torch.randint(-130, -50, (64, 96), generator=generator))
    weight, x = (torch.randn(64, 96, generator=generator) * scale).bfloat16(), torch.randn(33, 96) * scale[:33]
    product, small = bfloat16_linear(library, weight, None), torch.tensor(1e-40)
    alone = torch.cat([product(row[None]) for row in x])
    assert float(small * 0.5) == float(torch.tensor(5e-41)) != 0
    bias, residual = torch.randn(64) * 1e-39, torch.randn(33, 64) * 1e-39
    biased = bfloat16_linear(library, weight, bias)
    for rows in (1, 4, 5, 33):
        assert torch.equal(product(x[:rows]), alone[:rows])
        assert torch.equal(biased(x[:rows]), alone[:rows] + bias)
        added = residual[:rows].clone()
        product.add_to(added, x[:rows])
        assert torch.equal(added, residual[:rows] + alone[:rows])


def grouped(
    scaled: Scales, outputs: int, inputs: int, generator: torch.Generator, width: int = 128
) -> tuple[Grouped, torch.Tensor]:
    """Random ones, and what they mean in float64; of FLOAT_PAIRS with groups of `width`."""
    each = 32
    ranges = {Scales.EIGHT_BITS: (torch.int8, -128, 128), Scales.SIX_BITS: (torch.uint8, 0, 64)}
    kind, least, most = ranges.get(scaled, (torch.uint8, 0, 16))
    numbers = torch.randint(least, most, (outputs, inputs), generator=generator, dtype=kind)
    groups = -(-inputs // 128) * 4
    scale, other = torch.rand(2, outputs, groups, generator=generator).add(0.1).unbind(0)
    match scaled:
        case Scales.HALVES:
            scales: tuple[torch.Tensor, ...] = (scale.half(),)
            d, m = scale.half().double(), 8 * scale.half().double()
        case Scales.EIGHT_BITS:
            scales = (scale.half(),)
            d, m = scale.half().double(), torch.zeros(outputs, groups).double()
        case Scales.BFLOAT_PAIRS:
            scales = (torch.stack([scale, other], 2).bfloat16(),)
            d, middle = scales[0].double().unbind(2)
            m = 8 * d - middle
        case Scales.FLOAT_PAIRS:
            wide = width // 32
            scale, other = scale[:, ::wide].contiguous(), other[:, ::wide].contiguous()
            scales = (torch.stack([scale, other], 2),)
            d, m = (one.double().repeat_interleave(wide, 1)[:, :groups] for one in (scale, other))
        case Scales.SUPER_BLOCKS:
            s, t = torch.randint(0, 64, (2, outputs, groups), generator=generator, dtype=torch.uint8).unbind(0)
            supers = torch.rand(outputs, -(-groups // 8), 2, generator=generator).half()
            scales = (supers, s, t)
            wider = supers.double().repeat_interleave(8, 1)[:, :groups]
            d, m = s * wider[..., 0], t * wider[..., 1]
        case Scales.SIX_BITS:
            small = torch.randint(-128, 128, (outputs, 2 * groups), generator=generator, dtype=torch.int8)
            supers = torch.rand(outputs, -(-groups // 8), generator=generator).half().float()
            scales = (supers, small)
            d = small * supers.double().repeat_interleave(16, 1)[:, : 2 * groups]
            each, m = 16, 32 * d
    d, m = (one.repeat_interleave(each, 1)[:, :inputs] for one in (d, m))
    return Grouped(numbers, scales, scaled, width if scaled is Scales.FLOAT_PAIRS else 0), numbers.double() * d - m


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("scaled", Scales)
def test_products_of_groups_are_the_formula_whatever_the_rows(
    libraries: Libraries, variant: str, scaled: Scales
) -> None:
    library = libraries[variant]
    generator = torch.Generator().manual_seed(4)
    for outputs, inputs in ((5, 3), (64, 128), (150, 200), (34, 1056)):
        parts, weight = grouped(scaled, outputs, inputs, generator)
        bias, x = torch.randn(outputs, generator=generator), torch.randn(33, inputs, generator=generator)
        product = grouped_linear(library, parts, bias)
        assert (weight_of(product) - weight).abs().max() <= 2e-6 * weight.abs().max()
        found = product(x)  # for which there may have to be more room
        before = library.scratch(0), library.pool
        assert torch.equal(product.apart(x), found) and (library.scratch(0), library.pool) == before
        exact = rounded_by_groups(x) @ weight.T + bias.double()
        scale = rounded_by_groups(x).abs() @ weight.abs().T
        library.set_threads(1)
        alone = torch.cat([product(row[None]) for row in x])
        assert ((alone - exact).abs() <= 1e-5 * scale + 1e-6).all()
        for rows in (*range(2, 10), 33):
            check_rows(library, product, x[:rows], alone[:rows])
        x[1, 0], x[2, 2] = float("nan"), float("inf")
        assert product(x[:4]).isnan().all(1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize(("scaled", "most"), [(Scales.HALVES, 15), (Scales.SIX_BITS, 63), (Scales.EIGHT_BITS, -128)])
def test_sums_of_the_largest_numbers_fit(libraries: Libraries, variant: str, scaled: Scales, most: int) -> None:
    """Sums of pairs have 16 bits where a processor has no others."""
    scales = {Scales.HALVES: (torch.ones(16, 4).half(),), Scales.EIGHT_BITS: (torch.ones(16, 4).half(),)}
    six = (torch.ones(16, 1), torch.ones(16, 8, dtype=torch.int8))
    numbers = torch.full((16, 128), most).to(torch.int8 if most < 0 else torch.uint8)
    product = grouped_linear(libraries[variant], Grouped(numbers, scales.get(scaled, six), scaled), None)
    middle = {Scales.HALVES: 8, Scales.SIX_BITS: 32}.get(scaled, 0)
    for rows in (1, 2, 3, 8):
        x = torch.full((rows, 128), -127.0)
        x[-1] *= -1
        assert torch.equal(product(x), x.sum(1, keepdim=True).expand(-1, 16) * (most - middle))


@pytest.mark.parametrize("variant", NAMES)
def test_outputs_of_several_kinds_are_those_of_each(libraries: Libraries, variant: str) -> None:
    library, generator = libraries[variant], torch.Generator().manual_seed(5)
    kinds = ((Scales.SUPER_BLOCKS, 96), (Scales.SIX_BITS, 32), (Scales.EIGHT_BITS, 50))
    runs = [grouped(scaled, outputs, 300, generator)[0] for scaled, outputs in kinds]
    bias, x = torch.randn(178, generator=generator), torch.randn(33, 300, generator=generator)
    product = grouped_linears(library, runs, bias)
    whole = bias_of(product)
    assert whole is not None and torch.equal(whole, bias)
    alone = torch.cat([grouped_linear(library, run, None)(x) for run in runs], 1) + bias
    for rows in (1, 2, 8, 33):
        check_rows(library, product, x[:rows], alone[:rows])


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("width", [32, 160])
def test_groups_of_any_width_are_the_formula(libraries: Libraries, variant: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    parts, weight = grouped(Scales.FLOAT_PAIRS, 34, 480, generator, width)
    product = grouped_linear(libraries[variant], parts, None)
    assert (weight_of(product) - weight).abs().max() <= 2e-6 * weight.abs().max()


@pytest.mark.parametrize("variant", NAMES)
def test_a_row_that_is_no_number_makes_none_of_another(libraries: Libraries, variant: str) -> None:
    library = libraries[variant]
    product = int8_linear(library, torch.ones(8, 64, dtype=torch.int8), torch.ones(8), None)
    x = torch.ones(4, 64)
    x[0, 5], x[1, 7], x[2] = float("nan"), float("inf"), 0
    result = product(x)
    assert result[:2].isnan().all() and (result[2] == 0).all() and (result[3] - 64).abs().max() < 1e-3
