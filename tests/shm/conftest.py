"""Fixtures of the tests of shm/."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import pytest

from actorserve.shm.pages import can_give_back

from .post import Post


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.close()


@pytest.fixture
def keeps_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel refuses MADV_REMOVE, as gVisor does: it is an advice here that none has."""
    monkeypatch.setattr(mmap, "MADV_REMOVE", 9999)
    can_give_back.cache_clear()
    yield
    can_give_back.cache_clear()
