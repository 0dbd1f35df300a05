"""Two engines, for each test anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .two_engines import Servers


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()
