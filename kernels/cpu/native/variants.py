"""The kinds of processor that the CPU kernels are compiled for, each with its flags."""

from __future__ import annotations

import platform
from collections.abc import Set
from typing import NamedTuple


class Variant(NamedTuple):
    """The kernels for one kind of processor."""

    name: str
    machine: str  # as platform.machine says; "" is any
    needs: frozenset[str]  # of the processor, in the kernel's names
    flags: tuple[str, ...]


def _x86(name: str, needs: str, flags: str) -> Variant:
    return Variant(name, "x86_64", frozenset(needs.split()), tuple(flags.split()))


_AVX512 = "avx512f avx512bw avx512vl avx512dq avx512_vnni fma f16c"
_AVX512_FLAGS = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c"
PAIRS, PLAIN = "avx512bf16", "avx512"  # with products of two pairs of bfloat16, and of single numbers alone
PAIRS_TAKE_LONGER = "GenuineIntel"  # on Sapphire Rapids four times as long as single numbers: so these are quicker
ASKS_LATER = "AuthenticAMD"  # Zen 4 by AVX2: with prefetches one row takes up to 2.6 times as long, 8 rows 0.8 to 1
VARIANTS = (  # the first that the processor has is taken
    _x86(
        "amx",
        f"{_AVX512} amx_tile amx_int8 amx_bf16",
        f"{_AVX512_FLAGS} -mamx-tile -mamx-int8 -mamx-bf16",
    ),
    _x86(PAIRS, f"{_AVX512} avx512_bf16", f"{_AVX512_FLAGS} -mavx512bf16"),
    _x86(PLAIN, _AVX512, _AVX512_FLAGS),
    _x86("avxvnni", "avx2 avx_vnni fma f16c", "-mavx2 -mavxvnni -mfma -mf16c"),
    _x86("avx2", "avx2 fma f16c", "-mavx2 -mfma -mf16c"),
    Variant("dotprod", "aarch64", frozenset({"asimddp"}), ("-march=armv8.2-a+dotprod",)),
    Variant("plain", "", frozenset(), ()),
)


def variants(flags: Set[str]) -> list[Variant]:
    """Those that a processor with these flags runs, the quickest first."""
    machine = platform.machine()
    found = [one for one in VARIANTS if one.machine in ("", machine) and one.needs <= flags]
    names = [one.name for one in found]
    if PAIRS_TAKE_LONGER in flags and PAIRS in names and PLAIN in names:
        found.insert(names.index(PLAIN), found.pop(names.index(PAIRS)))
    if ASKS_LATER in flags:
        found = [one._replace(flags=(*one.flags, "-DASKS_FROM=3")) for one in found]
    return found
