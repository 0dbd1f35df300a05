"""Pages that nobody needs any more, on kernels that take them back and on others."""

from __future__ import annotations

import mmap
import os

import pytest

from actorserve.shm.layout import PAGE
from actorserve.shm.pages import can_give_back, give_back
from actorserve.shm.table.logprobs import Logprobs


def written(pages: int) -> tuple[mmap.mmap, int]:
    fd = os.memfd_create("test-pages")
    os.ftruncate(fd, pages * PAGE)
    memory = mmap.mmap(fd, pages * PAGE)
    memory[:] = b"x" * len(memory)
    return memory, fd


def test_pages_take_no_memory_and_are_zeros() -> None:
    memory, fd = written(3)
    taken = os.fstat(fd).st_blocks
    give_back(memory, PAGE, PAGE)
    assert os.fstat(fd).st_blocks * 3 == taken * 2
    assert memory[:] == b"x" * PAGE + bytes(PAGE) + b"x" * PAGE
    os.close(fd)


def test_a_mistake_is_no_refusal() -> None:
    memory, fd = written(1)
    with pytest.raises(OSError, match="Invalid argument"):
        give_back(memory, 8, 8)
    os.close(fd)


@pytest.mark.usefixtures("keeps_pages")
def test_they_stay_where_the_kernel_refuses() -> None:
    memory, fd = written(1)
    assert not can_give_back()
    give_back(memory, 0, PAGE)
    assert memory[:] == b"x" * PAGE
    os.close(fd)


@pytest.mark.usefixtures("keeps_pages")
def test_logprobs_stay_until_they_are_written_again() -> None:
    fd = Logprobs.create(2, 8)
    area = Logprobs(fd, 2, 8)
    area.copy_in(1, 3, 1, bytes(range(8)))
    area.forget(1)
    area.copy_in(1, 3, 1, bytes(range(8, 16)))
    assert area.copy_out(1, 3, 1, 0) == bytes(range(8, 16))
    os.close(fd)
