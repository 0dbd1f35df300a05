"""The kernels in C against their formulas, for each kind of processor that this can be; and how they are made."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.actors.worker.lora.products import bias_of, weight_of
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.linear import (
    Grouped,
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

NAMES = [one.name for one in native.variants(cpu_flags())]
EMULATION = Path(__file__).with_name("matrix_instructions.h")


def emulated() -> native.Variant:
    """With matrix instructions in C, for a processor that has none."""
    (avx512,) = (one for one in native.VARIANTS if one.name == "avx512")
    mark = f"-DEMULATION={hashlib.sha256(EMULATION.read_bytes()).hexdigest()[:8]}"  # the library's name depends on it
    return avx512._replace(name="emulated", flags=(*avx512.flags, "-include", str(EMULATION), mark))


if "avx512" in NAMES and "amx" not in NAMES:
    NAMES.append("emulated")


@pytest.fixture(scope="module")
def libraries() -> Iterator[dict[str, native.Library]]:
    """Those of all variants."""
    need_compiler()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "VARIANTS", (*native.VARIANTS, emulated()))
        made = {name: native.load(cpu_flags(), name) for name in NAMES}
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
def test_int8_products_are_the_formula_whatever_the_rows(
    libraries: dict[str, native.Library], variant: str, threads: int
) -> None:
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
            assert torch.equal(product(x[:rows]), expected[:rows]), (outputs, inputs, rows)
            residual = x[:rows, :1].expand(-1, outputs).clone()
            product.add_to(residual, x[:rows])
            assert torch.equal(residual, x[:rows, :1] + expected[:rows])


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_of_floats_are_near_and_the_same_whatever_the_rows(
    libraries: dict[str, native.Library], variant: str, dtype: torch.dtype
) -> None:
    library = libraries[variant]
    generator = torch.Generator().manual_seed(3)
    for outputs, inputs in ((5, 3), (64, 64), (67, 131), (130, 1000)):
        weight = torch.randn(outputs, inputs, generator=generator).to(dtype)
        bias, x = torch.randn(outputs, generator=generator), torch.randn(33, inputs, generator=generator)
        product = float_linear(library, weight, bias)
        exact = x.double() @ weight.double().T + bias.double()
        library.set_threads(1)
        alone = torch.cat([product(row[None]) for row in x])
        assert (alone - exact).abs().max() < 1e-6 * inputs
        for rows in (2, 3, 5, 33):
            library.set_threads(rows % 3 + 1)
            assert torch.equal(product(x[:rows]), alone[:rows])
        narrow = float_linear(library, weight, None)(x.bfloat16())
        assert torch.equal(narrow, float_linear(library, weight, None)(x.bfloat16().float()).bfloat16())


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("outputs", [300, 1500, 2300])
def test_every_output_is_in_one_task_however_large_these_are(
    libraries: dict[str, native.Library], variant: str, outputs: int
) -> None:
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
def test_products_of_bfloat16_are_near_and_the_same_whatever_the_rows(
    libraries: dict[str, native.Library], variant: str
) -> None:
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
            library.set_threads(rows % 3 + 1)
            assert torch.equal(product(x[:rows]), alone[:rows])
            residual = x[:rows, :1].expand(-1, outputs).clone()
            product.add_to(residual, x[:rows])
            assert torch.equal(residual, x[:rows, :1] + alone[:rows])
        x[1, 0], x[2, 2] = float("nan"), float("inf")
        assert product(x[:9]).isfinite().all(1).tolist() == [True, False, False, *6 * [True]]


@pytest.mark.parametrize("variant", NAMES)
def test_the_smallest_numbers_of_bfloat16_are_nothing_whatever_the_rows(
    libraries: dict[str, native.Library], variant: str
) -> None:
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
    libraries: dict[str, native.Library], variant: str, scaled: Scales
) -> None:
    library = libraries[variant]
    generator = torch.Generator().manual_seed(4)
    for outputs, inputs in ((5, 3), (64, 128), (150, 200), (34, 1056)):
        parts, weight = grouped(scaled, outputs, inputs, generator)
        bias, x = torch.randn(outputs, generator=generator), torch.randn(33, inputs, generator=generator)
        product = grouped_linear(library, parts, bias)
        assert (weight_of(product) - weight).abs().max() <= 2e-6 * weight.abs().max()
        before = library.scratch(0), library.pool
        assert torch.equal(product.apart(x), product(x)) and (library.scratch(0), library.pool) == before
        exact = rounded_by_groups(x) @ weight.T + bias.double()
        scale = rounded_by_groups(x).abs() @ weight.abs().T
        library.set_threads(1)
        alone = torch.cat([product(row[None]) for row in x])
        assert ((alone - exact).abs() <= 1e-5 * scale + 1e-6).all()
        for rows in (*range(2, 10), 33):
            library.set_threads(rows % 3 + 1)
            assert torch.equal(product(x[:rows]), alone[:rows])
            residual = x[:rows, :1].expand(-1, outputs).clone()
            product.add_to(residual, x[:rows])
            assert torch.equal(residual, x[:rows, :1] + alone[:rows])
        x[1, 0], x[2, 2] = float("nan"), float("inf")
        assert product(x[:4]).isnan().all(1).tolist() == [False, True, True, False]


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize(("scaled", "most"), [(Scales.HALVES, 15), (Scales.SIX_BITS, 63), (Scales.EIGHT_BITS, -128)])
def test_sums_of_the_largest_numbers_fit(
    libraries: dict[str, native.Library], variant: str, scaled: Scales, most: int
) -> None:
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
def test_outputs_of_several_kinds_are_those_of_each(libraries: dict[str, native.Library], variant: str) -> None:
    library, generator = libraries[variant], torch.Generator().manual_seed(5)
    kinds = ((Scales.SUPER_BLOCKS, 96), (Scales.SIX_BITS, 32), (Scales.EIGHT_BITS, 50))
    runs = [grouped(scaled, outputs, 300, generator)[0] for scaled, outputs in kinds]
    bias, x = torch.randn(178, generator=generator), torch.randn(33, 300, generator=generator)
    product = grouped_linears(library, runs, bias)
    whole = bias_of(product)
    assert whole is not None and torch.equal(whole, bias)
    alone = torch.cat([grouped_linear(library, run, None)(x) for run in runs], 1) + bias
    for rows in (1, 2, 8, 33):
        library.set_threads(rows % 3 + 1)
        assert torch.equal(product(x[:rows]), alone[:rows])
        residual = x[:rows, :1].expand(-1, 178).clone()
        product.add_to(residual, x[:rows])
        assert torch.equal(residual, x[:rows, :1] + alone[:rows])


@pytest.mark.parametrize("variant", NAMES)
@pytest.mark.parametrize("width", [32, 160])
def test_groups_of_any_width_are_the_formula(libraries: dict[str, native.Library], variant: str, width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    parts, weight = grouped(Scales.FLOAT_PAIRS, 34, 480, generator, width)
    product = grouped_linear(libraries[variant], parts, None)
    assert (weight_of(product) - weight).abs().max() <= 2e-6 * weight.abs().max()


@pytest.mark.parametrize("variant", NAMES)
def test_a_row_that_is_no_number_makes_none_of_another(libraries: dict[str, native.Library], variant: str) -> None:
    library = libraries[variant]
    product = int8_linear(library, torch.ones(8, 64, dtype=torch.int8), torch.ones(8), None)
    x = torch.ones(4, 64)
    x[0, 5], x[1, 7], x[2] = float("nan"), float("inf"), 0
    result = product(x)
    assert result[:2].isnan().all() and (result[2] == 0).all() and (result[3] - 64).abs().max() < 1e-3


QUICKLY = tuple(flag for flag in native.COMMON if flag != "-O3")  # nothing is computed by what is compiled so
PARTS = ("threads.c", "threads.h")  # and of it only this is asked for when it is loaded


def in_another_process(code: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Without torch, which only those need that multiply."""
    setting = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    loading = "import sys, types\n"
    loading += "without = types.SimpleNamespace(WeightMemory=object)\n"
    loading += "sys.modules['actorserve.kernels.cpu.native.weight_memory'] = without\n"
    loading += "from actorserve.actors.model.memory.machine import cpu_flags\n"
    loading += "from actorserve.kernels.cpu.native import library as native\n"
    loading += f"native.COMMON, files = {QUICKLY}, native.sources()\n"
    loading += f"native.sources = lambda: [file for file in files if file.name in {PARTS}]\n"
    return subprocess.Popen([sys.executable, "-c", loading + code], env=setting, text=True, stdout=subprocess.PIPE)


LOAD = "print(native.load(cpu_flags()).seconds > 0)\nassert 'torch' not in sys.modules"


@pytest.mark.parametrize(
    ("more", "names"),
    [
        (set(), ["avx512bf16", "avx512"]),
        ({"GenuineIntel"}, ["avx512", "avx512bf16"]),
        ({"GenuineIntel", "amx_tile", "amx_int8", "amx_bf16"}, ["amx", "avx512", "avx512bf16"]),
    ],
)
def test_which_kernels_a_processor_has(more: set[str], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    own = next(one for one in native.VARIANTS if one.name == "avx512bf16")
    assert [one.name for one in native.variants(own.needs | more)] == [*names, "plain"]


def test_processors_of_amd_ask_for_weights_of_more_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    own = next(one for one in native.VARIANTS if one.name == "avx2")
    intel, amd = (native.variants(own.needs | {vendor})[0] for vendor in ("GenuineIntel", "AuthenticAMD"))
    assert intel == own and amd.name == own.name and amd.flags == (*own.flags, "-DASKS_FROM=3")


def test_what_cc_says_has_words(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ccache gcc`, or flags; but a path may have spaces."""
    cc = native.find_compiler()[0]
    script = tmp_path / "my cc"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    script.chmod(0o700)
    for given in (f"{cc} -g0", f"'{script}' {cc} '-DWORDS=\"a b\"'", f" '{script}' {cc}"):
        monkeypatch.setenv("CC", given)
        assert native.load(cpu_flags()).seconds > 0, "each is another one"
        assert native.load(cpu_flags()).seconds == 0
    monkeypatch.setenv("CC", str(script))
    assert native.find_compiler() == [str(script)]
    for wrong in ("'cc", "no-such-compiler cc"):
        monkeypatch.setenv("CC", wrong)
        with pytest.raises(native.NativeError, match=wrong):
            native.find_compiler()


def test_two_starts_at_once_and_a_third_one_find_a_whole_library(tmp_path: Path) -> None:
    need_compiler()
    both = [in_another_process(LOAD, tmp_path) for _ in range(2)]
    assert "True\n" in [one.communicate()[0] for one in both]
    assert in_another_process(LOAD, tmp_path).communicate()[0] == "False\n"
    assert len(list((tmp_path / "actorserve" / "kernels").iterdir())) == 1


def slow_compiler(folder: Path) -> Path:
    """One that says that it runs, and ends when it is allowed to."""
    script = folder / "slow-cc"
    script.write_text(f'#!/bin/sh\necho $$ > "{folder}/pid"\nread line < "{folder}/go"\nexec cc "$@"\n')
    script.chmod(0o700)
    os.mkfifo(folder / "go")
    return script


def test_who_is_killed_while_it_compiles_leaves_nothing_that_is_loaded(tmp_path: Path) -> None:
    need_compiler()
    killed = in_another_process(LOAD, tmp_path, CC=str(slow_compiler(tmp_path)))
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    folder = tmp_path / "actorserve" / "kernels"
    (left,) = folder.iterdir()
    assert in_another_process(LOAD, tmp_path).communicate()[0] == "True\n" and left.exists()
    os.utime(left, (0, 0))
    again = in_another_process(LOAD, tmp_path, CC="gcc" if native.find_compiler()[0].endswith("cc") else "cc")
    assert again.communicate()[0] == "True\n" and not left.exists()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a cache of one's own, for a library that is compiled at once."""
    need_compiler()
    files = [file for file in native.sources() if file.name in PARTS]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "COMMON", QUICKLY)
    monkeypatch.setattr(native, "sources", lambda: files)
    folder = tmp_path / "actorserve" / "kernels"
    folder.mkdir(parents=True)
    return folder


def test_without_a_compiler_and_with_a_failing_one_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(native.NativeError, match="no C compiler"):
        native.load(cpu_flags())
    monkeypatch.setenv("CC", "false")
    with pytest.raises(native.NativeError, match="fails"):
        native.load(cpu_flags())


@pytest.mark.parametrize(
    "words",
    [
        "cc: error: unrecognized command-line option '-mavx2'",
        "/tmp/cc1.s:7: Error: no such instruction: `tileloadd (%rax,%rcx,1),%tmm4'",
    ],
)
def test_a_toolchain_older_than_the_processor_makes_what_it_knows(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Its compiler, or the assembler behind that. It speaks English where that is asked for."""
    script = tmp_path / "old-cc"
    says = f'test "$LC_ALL" = C && cat {tmp_path}/words >&2; exit 1'
    script.write_text(f'#!/bin/sh\ncase "$*" in *" -m"*) {says};; esac\nexec cc "$@"\n')
    script.chmod(0o700)
    (tmp_path / "words").write_text(words)
    monkeypatch.setenv("CC", str(script))
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert native.load(cpu_flags()).variant == "plain"
    if NAMES[0] != "plain":
        with pytest.raises(native.NativeError, match=re.escape(words)):
            native.load(cpu_flags(), NAMES[0])


def test_where_nothing_can_be_compiled_the_first_reason_is_said(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\necho "cc: error: not with $*" >&2\nexit 1\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    first = native.variants(cpu_flags())[0]
    with pytest.raises(native.NativeError, match=re.escape(f"not with {' '.join((*QUICKLY, *first.flags))} -c")):
        native.load(cpu_flags())


@pytest.mark.parametrize(("kept", "size"), [(0, 0), (0.5, 0.5), (0.5, 1)])
def test_a_damaged_library_in_the_cache_is_compiled_again(tmp_path: Path, kept: float, size: float) -> None:
    """Empty, cut off, or with zeros at its end, as a loss of power leaves files."""
    need_compiler()
    assert in_another_process(LOAD, tmp_path).communicate()[0] == "True\n"
    (path,) = (tmp_path / "actorserve" / "kernels").iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))].ljust(int(size * len(content)), b"\0"))
    assert in_another_process(LOAD, tmp_path).communicate()[0] == "True\n"
    assert in_another_process(LOAD, tmp_path).communicate()[0] == "False\n"


def test_a_library_that_cannot_be_mapped_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"no library")
    with pytest.raises(native.NativeError, match=r"broken\.so"):
        native.Library("plain", broken)


@pytest.mark.parametrize("mode", [0o777, 0o500])
def test_a_cache_that_others_may_write_or_we_may_not_is_not_used(kernels: Path, mode: int) -> None:
    kernels.chmod(mode)
    assert native.load(cpu_flags()).seconds > 0
    if mode == 0o777 or os.geteuid():
        assert not list(kernels.iterdir())


def test_what_is_in_a_cache_that_may_only_be_read_is_used(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image has it that was built with its kernels."""
    assert native.load(cpu_flags()).seconds > 0
    kernels.chmod(0o500)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # the test's user may be root
    assert native.load(cpu_flags()).seconds == 0


def no_room(*arguments: object, **options: object) -> None:
    raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


@pytest.mark.parametrize("at", ["compiler", "rename"])
def test_where_the_cache_is_full_a_library_of_ones_own_is_made(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    if at == "rename":
        monkeypatch.setattr(os, "rename", no_room)
    else:
        words = f"as: x.o: {os.strerror(errno.ENOSPC)}"
        script = tmp_path / "cc"
        script.write_text(f'#!/bin/sh\ncase "$*" in *"{kernels}"*) echo "{words}" >&2; exit 1;; esac\nexec cc "$@"\n')
        script.chmod(0o700)
        monkeypatch.setenv("CC", str(script))
    assert native.load(cpu_flags()).seconds > 0
    assert not list(kernels.iterdir())


@pytest.mark.parametrize(("module", "name"), [(tempfile, "mkdtemp"), (os, "chmod")])
def test_where_no_file_can_be_made_the_reason_is_said(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    monkeypatch.setattr(module, name, no_room)
    with pytest.raises(native.NativeError, match=os.strerror(errno.EDQUOT)):
        native.load(cpu_flags())


def test_where_no_memory_can_be_a_file_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", no_room)
    with pytest.raises(native.NativeError, match=r"plain-1\.so in memory: .*" + os.strerror(errno.EDQUOT)):
        native.load_image(native.Image("plain-1.so", b""))


def test_a_library_is_handed_on_in_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever has become of its file, and of the compiler."""
    need_compiler()
    images: list[native.Image] = []
    first = native.load(cpu_flags(), keep=images.append)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    again = native.load_image(*images)
    assert (again.name, again.variant) == (first.name, first.variant) and not list(tmp_path.iterdir())
    weight, x = torch.randn(40, 300), torch.randn(5, 300)
    assert torch.equal(float_linear(again, weight, None)(x), float_linear(first, weight, None)(x))
    with pytest.raises(native.NativeError, match=r"amx-1\.so in memory"):
        native.load_image(native.Image("amx-1.so", b"no library"))
