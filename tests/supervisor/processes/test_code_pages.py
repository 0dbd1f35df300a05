"""Code that only imports ran is let go of, and can be run again."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from actorserve.actors.supervisor.processes.code_pages import code_of_files, let_go

SMAPS = """\
7f0000000000-7f0000200000 r-xp 00001000 fe:00 77   /lib/code.so
Rss:                2000 kB
Anonymous:             0 kB
7f0000200000-7f0000400000 r--p 00201000 fe:00 77   /lib/code.so
Anonymous:             0 kB
7f0000400000-7f0000600000 r-xp 00001000 fe:00 78   /lib/written.so
Anonymous:             4 kB
7f0000600000-7f0000601000 r-xp 00001000 fe:00 79   /lib/small.so
Anonymous:             0 kB
7f0000800000-7f0000a00000 r-xp 00000000 00:00 0    [vdso]
Anonymous:             0 kB
7f0000a00000-7f0000c00000 rwxp 00000000 00:00 0
Anonymous:             0 kB
"""


def test_only_code_of_files_that_nobody_wrote_to() -> None:
    assert list(code_of_files(SMAPS.splitlines())) == [(0x7F0000000000, 0x200000)]


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
    let_go()
    assert mapped(path) == 0
    assert memory[:] == code and mapped(path) == 4 << 10
