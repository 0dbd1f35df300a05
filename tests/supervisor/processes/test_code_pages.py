"""Code that only imports ran is let go of, and can be run again."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from actorserve.actors.supervisor.processes.code_pages import code_of_files, let_go
from actorserve.actors.supervisor.processes.mappings import parse, read_mappings

from .smaps import smaps

SMAPS = smaps(
    ("7f0000000000-7f0000200000 r-xp 00001000 fe:00 77   /lib/code.so", 0, "rd ex mr mw me"),
    ("7f0000200000-7f0000400000 r--p 00201000 fe:00 77   /lib/code.so", 0, "rd mr mw me"),
    ("7f0000400000-7f0000600000 r-xp 00001000 fe:00 78   /lib/written.so", 4, "rd ex mr mw me"),
    ("7f0000600000-7f0000601000 r-xp 00001000 fe:00 79   /lib/small.so", 0, "rd ex mr mw me"),
    ("7f0000800000-7f0000a00000 r-xp 00000000 00:00 0    [vdso]", 0, "rd ex mr mw me de"),
    ("7f0000a00000-7f0000c00000 rwxp 00000000 00:00 0", 0, "rd wr ex mr mw me"),
)


def test_only_code_of_files_that_nobody_wrote_to() -> None:
    assert [one[:2] for one in code_of_files(parse(SMAPS))] == [(0x7F0000000000, 0x7F0000200000)]


def mapped(path: Path) -> int:
    """KB of its pages that this process has mapped."""
    found = re.findall(rf"{re.escape(str(path))}\n(?:\w+: .*\n)*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text())
    return sum(map(int, found))


def test_pages_that_were_run_are_mapped_no_more_and_can_be_read_again(tmp_path: Path) -> None:
    path, code = tmp_path / "code.so", os.urandom(4 << 20)
    path.write_bytes(code)
    with path.open() as file:
        memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)
    assert memory[:] == code and mapped(path) == 4 << 10
    let_go(read_mappings())
    assert mapped(path) == 0
    assert memory[:] == code and mapped(path) == 4 << 10
