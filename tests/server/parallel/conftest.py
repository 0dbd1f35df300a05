"""Another machine, for tests that cut the way to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .namespaces import Network, make_network


@pytest.fixture
def network() -> Iterator[Network]:
    with make_network() as made:
        yield made
