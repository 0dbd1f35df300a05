"""What a person does with the page, and what tests look for in it."""

from __future__ import annotations

import pytest

from tests.page.browser import Page, find_chromium
from tests.support.server import Server

IN_A_BROWSER = [
    pytest.mark.skipif(find_chromium() is None, reason="no chromium is installed"),
    pytest.mark.asyncio(loop_scope="module"),
]
ANSWER = "document.querySelector('.turn.assistant:last-child .text')"
COMING = "document.querySelector('.turn.coming')"
TOLD = "document.querySelector('.turn.assistant:last-child .facts')"


async def open_page(page: Page, server: Server) -> None:
    """All that it shows is there."""
    await page.go(f"{server.base_url}/")
    await page.until("document.getElementById('link').dataset.state === 'ready'")


async def send(page: Page, text: str) -> None:
    """As a person does, by the keyboard."""
    await page.evaluate("document.getElementById('message').focus()")
    await page.type(text)
    await page.press("Enter", "\r")


def check_calm(page: Page, base_url: str) -> None:
    """No error, no violation of the policy, and nothing asked of another host."""
    assert not page.complaints
    assert page.urls and all(url.startswith((f"{base_url}/", "data:")) for url in page.urls), page.urls


def is_status(complaint: str, status: int) -> bool:
    """Does the console say no more than that an answer was an error?"""
    return '"source": "network"' in complaint and f"status of {status} " in complaint
