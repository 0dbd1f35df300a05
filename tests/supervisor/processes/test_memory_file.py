"""What imports have allocated is a file's, and the same; where it cannot be, it stays as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.cached import cache_folder
from actorserve.actors.supervisor.processes.mappings import mapped_ranges, parse, read_mappings
from actorserve.actors.supervisor.processes.memory_file import LEAST, grown, own_memory
from actorserve.kernels.cpu.native.compiler import find_compiler
from tests.support.compiler import need_compiler
from tests.support.server import LAUNCH, Server
from tests.support.until import until

from .filled_memory import BLOCK, BLOCKS, LARGE
from .smaps import smaps

PLAIN = "rd wr mr mw me ac"
ELSEWHERE = ("tmpfs", "ramfs", "nfs", "cifs", "smb2", "fuseblk", "fuse", "v9fs", "ceph")
SMAPS = smaps(
    ("01000000-02000000 rw-p 00000000 00:00 0    [heap]", 9, f"{PLAIN} sd"),
    ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0", 9, PLAIN),
    ("7f0000200000-7f0000400000 rw-p 00000000 fe:00 77   /lib/code.so", 9, PLAIN),
    ("7f0000400000-7f0000600000 rw-p 00000000 00:00 0", 9, f"{PLAIN} wf"),
    ("7f0000600000-7f0000800000 rw-p 00000000 00:00 0", 9, f"{PLAIN} lo"),
    ("7f0000800000-7f0000a00000 rw-s 00000000 00:01 99   /memfd:table (deleted)", 0, "rd wr sh mr mw me ms"),
    ("7f0000a00000-7f0000c00000 r--p 00000000 00:00 0", 9, "rd mr mw me ac"),
    ("7f0004000000-7f0004200000 rw-p 00000000 00:00 0", 9, f"{PLAIN} nr"),
    ("7f0004200000-7f0008000000 ---p 00000000 00:00 0", 0, "mr mw me nr"),
    ("7ffc00000000-7ffc00200000 rw-p 00000000 00:00 0    [stack]", 9, f"{PLAIN} gd"),
)


def need_disk(folder: Path) -> None:
    """Skip a test whose files must be on a disk of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
    if found.stdout.strip() in ELSEWHERE:
        pytest.skip(f"{folder} is in memory, or on another machine")


def test_memory_that_is_shared_wiped_at_forks_an_arena_or_a_stack_is_left_alone() -> None:
    assert own_memory(list(parse(SMAPS))) == [(0x1000000, 0x2000000), (0x7F0000000000, 0x7F0000200000)]


def test_only_what_has_grown_where_it_is_worth_it() -> None:
    m = LEAST
    assert list(grown([], [(0, 3 * m)])) == [(0, 3 * m)]
    assert list(grown([(0, m)], [(0, 3 * m)])) == [(m, 3 * m)]
    assert list(grown([(8 * m, 9 * m), (m, 2 * m)], [(0, 3 * m), (7 * m, 10 * m)])) == [
        (0, m),
        (2 * m, 3 * m),
        (7 * m, 8 * m),
        (9 * m, 10 * m),
    ]
    assert list(grown([(0, 3 * m)], [(m, 2 * m), (3 * m, 3 * m + 1)])) == []
    assert list(grown([(0, m - 1), (m + 5, 3 * m)], [(0, 4 * m - 1)])) == []


def test_this_process_is_read_as_the_kernel_tells_it() -> None:
    marked = bytearray(4 << 20)
    before, mappings, after = len(mapped_ranges()), read_mappings(), len(mapped_ranges())
    assert min(before, after) - 3 <= len(mappings) <= max(before, after) + 3, "and what is read takes and gives memory"
    assert sum(end - start for start, end in own_memory(mappings)) >= len(marked)


def filled(cache: Path, *how: str, **environment: str) -> dict[str, Any]:
    """What such a process says, that has this folder for what it keeps."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.supervisor.processes.filled_memory", *how],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["same"] and told["child"] and told["written"] and told["grown"] and not told["old"]
    return told | {"said": done.stderr}


def test_all_is_the_files_and_each_process_writes_to_its_own_pages(tmp_path: Path) -> None:
    need_compiler()
    need_disk(tmp_path)
    for _ in range(2):  # the second finds what the first has compiled
        told = filled(tmp_path)
        assert told["size"] == told["wanted"] >= BLOCK * BLOCKS
        assert told["of files"] == BLOCKS and told["said"] == ""
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in left} == {"memory_file.so", "made-of.json"}, "the file has no name"


def test_a_block_may_grow_behind_the_end_of_what_was_written(tmp_path: Path) -> None:
    """Its pages are moved, and those that follow are the file's, too."""
    need_compiler()
    need_disk(tmp_path)
    told = filled(tmp_path, "grows")
    assert told["size"] == told["wanted"] >= LARGE


@pytest.mark.parametrize("why", ["thread", "no time", "no memory", "no compiler", "no folder"])
def test_where_it_cannot_be_all_stays_as_it_is(tmp_path: Path, why: str) -> None:
    if why == "no folder":
        (tmp_path / "actorserve").touch()
    told = filled(tmp_path, why, **({"CC": "no-such-compiler"} if why == "no compiler" else {}))
    assert told["size"] == told["of files"] == 0 and told["said"] == ""


def test_a_file_in_memory_would_free_none() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert filled(Path(folder))["size"] == 0


def test_what_others_may_have_written_is_not_run(tmp_path: Path) -> None:
    need_compiler()
    need_disk(tmp_path)
    assert filled(tmp_path)["size"] > 0
    (tmp_path / "actorserve" / "templates").chmod(0o777)
    assert filled(tmp_path)["size"] == 0


def test_another_allocator_may_take_pages_for_zeros_that_it_has_given_back(tmp_path: Path) -> None:
    need_compiler()
    need_disk(tmp_path)
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(
        "void *__libc_malloc(unsigned long);\nvoid *malloc(unsigned long n) { return __libc_malloc(n); }\n"
    )
    subprocess.run([*find_compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    assert filled(tmp_path)["size"] > 0 and filled(tmp_path, LD_PRELOAD=str(library))["size"] == 0


@pytest.mark.parametrize("cc", ["false", "./no-program -O1"])
def test_a_compiler_that_fails_is_told_of(tmp_path: Path, cc: str) -> None:
    """Or that cannot be run."""
    (tmp_path / "no-program").write_text("")
    (tmp_path / "no-program").chmod(0o700)
    told = filled(tmp_path, CC=cc.replace(".", str(tmp_path)))
    assert told["size"] == 0 and "is not put into a file" in told["said"]


def test_a_compiler_without_room_is_told_of(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.write_text('#!/bin/sh\necho "ld: final link failed: No space left on device" >&2\nexit 1\n')
    full.chmod(0o700)
    told = filled(tmp_path, CC=str(full))
    assert told["size"] == 0 and "is not put into a file: ld: final link failed: No space left" in told["said"]


def test_a_start_does_not_wait_for_a_compiler_for_long(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o700)
    told = filled(tmp_path, "slow compiler", CC=str(slow))
    assert told["size"] == 0 and f"{slow} took more than 0.1 s" in told["said"]


def test_a_compiler_may_have_words(tmp_path: Path) -> None:
    """As `ccache gcc`, or `gcc -m64`."""
    need_compiler()
    need_disk(tmp_path)
    told = filled(tmp_path, CC=f"{find_compiler()[0]} -g0")
    assert told["size"] == told["wanted"] and told["said"] == ""


def test_a_template_and_its_workers_have_a_file_of_what_torch_allocates() -> None:
    """The server imports all anew: a copy of a process that has torch would find nothing to put away."""
    need_compiler()
    need_disk(cache_folder())
    with Server("--kv-cache-memory-bytes", "16M", "--threads", "1", command=LAUNCH) as server:

        def in_files(name: str) -> dict[tuple[str, str], int]:
            """Bytes of each file without a name that is mapped for its process alone."""
            lines = Path(f"/proc/{server.pids()[name]}/maps").read_text().splitlines()
            found: dict[tuple[str, str], int] = defaultdict(int)
            for place, permissions, _, *file in (line.split() for line in lines if line.endswith("(deleted)")):
                # kernels of an earlier life are there, too
                if permissions == "rw-p" and not file[2].startswith("/memfd:"):
                    start, end = (int(address, 16) for address in place.split("-"))
                    found[file[0], file[1]] += end - start
            return found

        def are_in_a_file() -> bool:
            """On a busy machine writing may take longer than it may; the next one writes anew."""
            pid = server.pids()["template-worker"]
            os.kill(pid, signal.SIGKILL)
            server.wait_for(rf"template-worker ended \(pid {pid}, ")
            server.replace("worker")
            return sum(in_files("template-worker").values()) > 50e6

        if sum(in_files("template-worker").values()) <= 50e6:
            until(are_in_a_file)
        for _ in range(2):
            assert len(in_files("template-worker")) == 1
            assert in_files("worker").keys() == in_files("template-worker").keys()
            server.replace("worker")
