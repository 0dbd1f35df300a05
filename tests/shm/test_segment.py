"""Unnamed shared memory: size, inheritance, and what happens when there is none."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from pathlib import Path

import numpy as np
import posix_ipc
import psutil
import pytest

from actorserve.shm import free_memory
from actorserve.shm import segment as module
from actorserve.shm.layout import PAGE
from actorserve.shm.segment import Segment, SegmentError


def test_memory_is_zeroed_and_whole_pages() -> None:
    segment = Segment.create(PAGE + 1, "test")
    assert segment.size == 2 * PAGE == len(segment.map) == 8 * len(segment.words)
    assert not any(segment.words)
    segment.close()


def test_all_of_it_is_allocated() -> None:
    segment = Segment.create(1 << 20, "test")
    assert os.fstat(segment.fd).st_blocks * 512 >= 1 << 20
    segment.close()


def test_nothing_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size: "a-name-of-this-test")
    segment = Segment.create(PAGE, "test")
    assert not [name for name in os.listdir("/dev/shm") if "a-name-of-this-test" in name]
    assert os.readlink(f"/proc/self/fd/{segment.fd}").endswith("(deleted)")
    segment.close()


def test_two_mappings_are_one_memory() -> None:
    segment = Segment.create(PAGE, "test")
    other = Segment.attach(os.dup(segment.fd))
    segment.words[3] = 1 << 63
    assert other.size == segment.size and other.words[3] == 1 << 63
    other.map[8:11] = b"abc"
    assert segment.map[8:11] == b"abc"
    other.close()
    segment.close()


def test_a_child_process_inherits_the_descriptor_only_by_pass_fds() -> None:
    segment = Segment.create(PAGE, "test")
    code = "import sys; from actorserve.shm.segment import Segment; Segment.attach(int(sys.argv[1])).words[0] = 42"
    command = [sys.executable, "-c", code, str(segment.fd)]
    subprocess.run(command, check=True, pass_fds=[segment.fd])
    assert segment.words[0] == 42
    assert subprocess.run(command, capture_output=True).returncode != 0
    segment.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
def test_no_room_says_how_much_is_wanted_for_what_and_how_much_there_is(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    opened: list[int] = []

    def no_room(fd: int, offset: int, size: int) -> None:
        opened.append(fd)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", no_room)
    monkeypatch.setattr(module, "_free_bytes", lambda: 1234567)
    with pytest.raises(SegmentError, match=r"request table: 12,288 bytes .* /dev/shm has 1,234,567 free"):
        Segment.create(3 * PAGE, "request table")
    for fd in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_more_than_there_is_is_refused_for_real() -> None:
    stat, memory = os.statvfs("/dev/shm"), psutil.virtual_memory().total
    if not stat.f_blocks:
        pytest.skip("/dev/shm has no limit")
    with pytest.raises(SegmentError, match="too much"):
        Segment.create(max(stat.f_blocks * stat.f_frsize, memory) + 1, "too much")


@pytest.mark.parametrize("what", ["too small", "not there"])
def test_where_there_is_no_room_in_its_folder_it_is_memory_all_the_same(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Container engines give 64 MiB, of which no server starts."""
    allocate, fds = os.posix_fallocate, list[int]()

    def small(fd: int, offset: int, size: int) -> None:
        fds.append(fd)
        if len(fds) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, size)

    def nowhere(*given: object, **named: object) -> None:
        raise posix_ipc.ExistentialError("No shared memory exists with the specified name")

    if what == "too small":
        monkeypatch.setattr(os, "posix_fallocate", small)
    else:
        monkeypatch.setattr(posix_ipc, "SharedMemory", nowhere)
    segment = Segment.create(1 << 20, "test")
    assert os.fstat(segment.fd).st_blocks * 512 >= 1 << 20 and not any(segment.words)
    assert "memfd:actorserve-segment" in os.readlink(f"/proc/self/fd/{segment.fd}")
    assert not os.get_inheritable(segment.fd)
    segment.close()


def test_there_it_takes_no_more_than_a_limit_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """That of a container here; else the kernel would end processes for want of memory."""
    allocate, taken = os.posix_fallocate, list[int]()

    def small(fd: int, offset: int, size: int) -> None:
        taken.append(fd)
        if len(taken) % 2:  # in the folder, whose size counts first
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(fd, offset, size)

    (tmp_path / "memory.max").write_text(f"{3 * PAGE}\n")
    (tmp_path / "memory.current").write_text(f"{PAGE}\n")
    monkeypatch.setattr(module, "SHM_FOLDER", "/nowhere")
    monkeypatch.setattr(free_memory, "cgroup_folders", lambda: [tmp_path])
    monkeypatch.setattr(os, "posix_fallocate", small)
    Segment.create(2 * PAGE, "test").close()
    with pytest.raises(SegmentError, match="/nowhere has 0 free"):
        Segment.create(2 * PAGE + 1, "test")
    assert len(taken) == 3, "nothing was tried that would not fit"


def test_no_descriptors_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*given: object, **named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(posix_ipc, "SharedMemory", none_left)
    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(SegmentError, match=r"test: no shared memory can be made: .*Too many open files"):
        Segment.create(PAGE, "test")


def test_other_errors_are_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "posix_fallocate", broken)
    with pytest.raises(OSError, match="broken"):
        Segment.create(PAGE, "test")


def test_a_size_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="0 bytes"):
        Segment.create(0, "test")


def test_close_twice_and_with_views_about() -> None:
    segment = Segment.create(PAGE, "test")
    view = np.ndarray((4,), np.uint64, segment.map)
    segment.close()
    segment.close()
    view[0] = 7
    del segment
    assert view[0] == 7
