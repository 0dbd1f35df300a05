"""How the kernels in C are compiled, kept, found again and handed on."""

from __future__ import annotations

import errno
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

from actorserve.actors.model.memory.machine import cpu_flags
from actorserve.kernels.cpu.native import cache, variants
from actorserve.kernels.cpu.native import library as native
from actorserve.kernels.cpu.native.compiler import NativeError, find_compiler
from actorserve.kernels.cpu.native.linear import float_linear
from tests.support.compiler import need_compiler

NAMES = [one.name for one in variants.variants(cpu_flags())]

QUICKLY = tuple(flag for flag in cache.COMMON if flag != "-O3")  # nothing is computed by what is compiled so
PARTS = ("threads.c", "threads.h")  # and of it only this is asked for when it is loaded


def in_another_process(code: str, cache: Path, **environment: str) -> subprocess.Popen[str]:
    """Without torch, which only those need that multiply."""
    setting = {**os.environ, "XDG_CACHE_HOME": str(cache), **environment}
    loading = "import sys, types\n"
    loading += "without = types.SimpleNamespace(WeightMemory=object)\n"
    loading += "sys.modules['actorserve.kernels.cpu.native.weight_memory'] = without\n"
    loading += "from actorserve.actors.model.memory.machine import cpu_flags\n"
    loading += "from actorserve.kernels.cpu.native import cache, library as native\n"
    loading += f"cache.COMMON, files = {QUICKLY}, cache.sources()\n"
    loading += f"cache.sources = lambda: [file for file in files if file.name in {PARTS}]\n"
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
    own = next(one for one in variants.VARIANTS if one.name == "avx512bf16")
    assert [one.name for one in variants.variants(own.needs | more)] == [*names, "plain"]


def test_processors_of_amd_ask_for_weights_of_more_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    own = next(one for one in variants.VARIANTS if one.name == "avx2")
    intel, amd = (variants.variants(own.needs | {vendor})[0] for vendor in ("GenuineIntel", "AuthenticAMD"))
    assert intel == own and amd.name == own.name and amd.flags == (*own.flags, "-DASKS_FROM=3")


def test_what_cc_says_has_words(kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ccache gcc`, or flags; but a path may have spaces."""
    cc = find_compiler()[0]
    script = tmp_path / "my cc"
    script.write_text('#!/bin/sh\nexec "$@"\n')
    script.chmod(0o700)
    for given in (f"{cc} -g0", f"'{script}' {cc} '-DWORDS=\"a b\"'", f" '{script}' {cc}"):
        monkeypatch.setenv("CC", given)
        assert native.load(cpu_flags()).seconds > 0, "each is another one"
        assert native.load(cpu_flags()).seconds == 0
    monkeypatch.setenv("CC", str(script))
    assert find_compiler() == [str(script)]
    for wrong in ("'cc", "no-such-compiler cc"):
        monkeypatch.setenv("CC", wrong)
        with pytest.raises(NativeError, match=wrong):
            find_compiler()


def test_two_starts_at_once_and_a_third_one_find_a_whole_library(tmp_path: Path) -> None:
    need_compiler()
    both = [in_another_process(LOAD, tmp_path) for _ in range(2)]
    assert sorted(one.communicate()[0] for one in both) == ["False\n", "True\n"], "one waits for the other"
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
    again = in_another_process(LOAD, tmp_path, CC="gcc" if find_compiler()[0].endswith("cc") else "cc")
    assert again.communicate()[0] == "True\n" and not left.exists()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a cache of one's own, for a library that is compiled at once."""
    need_compiler()
    files = [file for file in cache.sources() if file.name in PARTS]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "COMMON", QUICKLY)
    monkeypatch.setattr(cache, "sources", lambda: files)
    folder = tmp_path / "actorserve" / "kernels"
    folder.mkdir(mode=0o700, parents=True)  # whatever others may by itself
    return folder


def test_without_a_compiler_and_with_a_failing_one_the_reason_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(NativeError, match="no C compiler"):
        native.load(cpu_flags())
    monkeypatch.setenv("CC", "false")
    with pytest.raises(NativeError, match="fails"):
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
    found = native.load(cpu_flags())
    assert found.variant == "plain"
    if NAMES[0] != "plain":
        assert found.lack.startswith(f"not {NAMES[0]}: {script} fails") and found.lack.endswith(words)
        with pytest.raises(NativeError, match=re.escape(words)):
            native.load(cpu_flags(), NAMES[0])


def test_where_nothing_can_be_compiled_the_first_reason_is_said(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cc"
    script.write_text('#!/bin/sh\necho "cc: error: not with $*" >&2\nexit 1\n')
    script.chmod(0o700)
    monkeypatch.setenv("CC", str(script))
    first = variants.variants(cpu_flags())[0]
    with pytest.raises(NativeError, match=re.escape(f"not with {' '.join((*QUICKLY, *first.flags))} -c")):
        native.load(cpu_flags())


def test_where_no_compiler_is_what_any_has_made_of_these_sources_is_taken(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an image that was built with its kernels; those of a lesser processor where it has no others."""
    made = {native.load(cpu_flags(), variant).name for variant in {"plain", NAMES[0]}}
    monkeypatch.setenv("CC", "no-such-compiler")
    found = native.load(cpu_flags())
    assert found.variant == NAMES[0] and found.name in made and not found.seconds and not found.lack
    for file in kernels.glob("*.so"):
        if NAMES[0] != "plain" and not file.name.startswith("plain"):
            file.write_bytes(file.read_bytes()[:-1])
    lesser = native.load(cpu_flags())
    assert lesser.variant == "plain"
    assert lesser.lack == ("" if NAMES[0] == "plain" else f"not {NAMES[0]}: there is no C compiler (no-such-compiler)")
    monkeypatch.setattr(cache, "COMMON", (*QUICKLY, "-g0"))
    with pytest.raises(NativeError, match="no C compiler"):
        native.load(cpu_flags())


def test_where_no_compiler_is_a_library_that_cannot_be_taken_hides_no_other(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that somebody removes meanwhile, and one that the loader does not take."""
    made = kernels / native.load(cpu_flags(), "plain").name
    started = made.name.rpartition("-")[0]
    (kernels / f"{started}-0.so").write_bytes(b"no library")
    cache._seal(kernels / f"{started}-0.so")
    (kernels / f"{started}-1.so").write_bytes(made.read_bytes())
    read = Path.read_bytes

    def fails(path: Path) -> bytes:
        if path.name.endswith("-1.so"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fails)
    monkeypatch.setenv("CC", "no-such-compiler")
    assert native.load(cpu_flags(), "plain").name == made.name


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
    with pytest.raises(NativeError, match=r"broken\.so"):
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
    with pytest.raises(NativeError, match=os.strerror(errno.EDQUOT)):
        native.load(cpu_flags())


def test_where_no_memory_can_be_a_file_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", no_room)
    with pytest.raises(NativeError, match=r"plain-1\.so in memory: .*" + os.strerror(errno.EDQUOT)):
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
    with pytest.raises(NativeError, match=r"amx-1\.so in memory"):
        native.load_image(native.Image("amx-1.so", b"no library"))
