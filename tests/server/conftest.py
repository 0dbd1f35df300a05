"""A client of the demo model's server, for the files that have none of their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest

from tests.support.client import http_client
from tests.support.server import Server


@pytest.fixture(scope="module")
def client(demo_server: Server) -> Iterator[httpx.Client]:
    with http_client(demo_server) as made:
        yield made
