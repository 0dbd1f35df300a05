"""The frontend's neighbours, for each test anew."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .others import Others


@pytest.fixture
async def others() -> AsyncIterator[Others]:
    made = Others()
    yield made
    made.memory.close()
