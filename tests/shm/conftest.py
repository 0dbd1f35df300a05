"""Fixtures of the tests of shm/."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .post import Post


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post()
    yield made
    made.close()
