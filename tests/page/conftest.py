"""A server and a browser for each module that wants them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.page.browser import Page, browsing, find_chromium
from tests.support.server import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Page]:
    chromium = find_chromium()
    assert chromium is not None
    async with browsing(chromium) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Page) -> Page:
    """A tab of its own for each test."""
    await browser.renew()
    await browser.resize(1200, 800)
    return browser
