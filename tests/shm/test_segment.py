"""Unnamed shared memory: size, inheritance, and what happens when there is none."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys

import numpy as np
import pytest

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
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


def test_more_than_there_is_is_refused_for_real() -> None:
    stat = os.statvfs("/dev/shm")
    if not stat.f_blocks:
        pytest.skip("/dev/shm has no limit")
    with pytest.raises(SegmentError, match="too much"):
        Segment.create((stat.f_blocks + 1) * stat.f_frsize, "too much")


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
