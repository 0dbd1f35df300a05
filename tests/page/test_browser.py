"""The page in a real browser: a conversation, actors that are killed meanwhile, keyboard, colours, a phone's width.

Skipped where there is no Chromium (Debian: `apt install chromium`).
"""

from __future__ import annotations

import os
import signal

import aiohttp

from tests.http.serving import serving
from tests.page.browser import Page
from tests.page.person import ANSWER, COMING, IN_A_BROWSER, TOLD, check_calm, open_page, send
from tests.support.server import Server

pytestmark = IN_A_BROWSER
QUESTION = "What happens when an actor dies?"
BEYOND_THE_EDGE = """[...document.querySelectorAll("body *")].filter((one) => !one.closest(".scroll, .code, .map")
    && one.getBoundingClientRect().right > innerWidth + 1).map((one) => one.outerHTML.slice(0, 80))"""
WIDER_THAN_IT_IS = """["turns", "actors", "log", "ask"].filter((id) => {
    const one = document.getElementById(id);
    return one.scrollWidth > one.clientWidth;
})"""


async def reference(server: Server) -> str:
    """The answer of an undisturbed server."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    async with aiohttp.ClientSession(server.base_url) as client:
        async with client.post("/v1/chat/completions", json=body) as answer:
            text: str = (await answer.json())["choices"][0]["message"]["content"]
    assert len(text.split()) > 10
    return text


async def ask_and_stop_worker(page: Page, server: Server) -> None:
    """A message is sent, and its answer comes as far as it has come; it is in the middle, since the worker stands."""
    for _ in range(20):
        await send(page, QUESTION)
        await page.until(f"{ANSWER} && {ANSWER}.textContent.length > 0")
        worker = server.pids()["worker"]
        os.kill(worker, signal.SIGSTOP)
        await page.until("document.querySelector('[data-actor=worker] [data-state=stopped]')")
        if await page.evaluate(f"{COMING} !== null"):
            return
        os.kill(worker, signal.SIGCONT)  # the answer was quicker
        await page.until("document.getElementById('link').dataset.state === 'ready'")
        await page.evaluate("document.getElementById('clear').click()")
    raise AssertionError("every answer was over before the worker could be stopped")


async def test_actors_die_while_the_answer_comes(page: Page, server: Server) -> None:
    """The page shows their deaths and their rebirths, and the answer goes on to its right end."""
    expected = await reference(server)
    await open_page(page, server)
    await page.evaluate("document.getElementById('p-temperature').value = '0'")
    await ask_and_stop_worker(page, server)
    begun = await page.evaluate(f"{ANSWER}.textContent")
    assert expected.startswith(begun.strip()) and len(begun) < len(expected)
    pids = server.pids()
    for name in ("detokenizer-0", "worker"):
        os.kill(pids[name], signal.SIGKILL)
    for name in ("detokenizer-0", "worker"):
        for kind in ("died", "back"):
            await page.until(f"document.querySelector('#log .{kind}[data-actor=\"{name}\"]')")
        row = f"document.querySelector('tr[data-actor=\"{name}\"]').innerText"
        shown = await page.evaluate(row)
        assert str(pids[name]) not in shown and str(server.pids()[name]) in shown
    await page.until(TOLD)
    assert (await page.evaluate(f"{ANSWER}.textContent")).strip() == expected
    assert await page.evaluate("document.querySelectorAll('.map .actor[data-state=ready]').length") == 5
    check_calm(page, server.base_url)


async def test_the_frontend_dies_while_the_answer_comes(page: Page, server: Server) -> None:
    """The answer's connection outlives it; the statistics are asked for again, which the console may say."""
    expected = await reference(server)
    await open_page(page, server)
    await page.evaluate("document.getElementById('p-temperature').value = '0'")
    await ask_and_stop_worker(page, server)
    pids = server.pids()
    os.kill(pids["frontend-0"], signal.SIGKILL)
    os.kill(pids["worker"], signal.SIGCONT)
    await page.until(TOLD)
    assert (await page.evaluate(f"{ANSWER}.textContent")).strip() == expected
    await page.until("document.querySelector('#log .back[data-actor=\"frontend-0\"]')")
    await page.until("document.getElementById('link').dataset.state === 'ready'")
    assert all('"source": "network"' in complaint for complaint in page.complaints)


async def test_the_keyboard(page: Page, server: Server) -> None:
    """Shift+Enter breaks the line, Enter sends, Esc stops; what has come stays, and the next question follows it."""
    await open_page(page, server)
    await page.evaluate("document.getElementById('message').focus()")
    await page.type("Two")
    await page.press("Enter", "\r", shift=True)
    await page.type("lines")
    assert await page.evaluate("document.getElementById('message').value") == "Two\nlines"
    await page.evaluate("document.getElementById('message').value = ''")
    await ask_and_stop_worker(page, server)
    try:
        assert not await page.evaluate("document.getElementById('stop').hidden")
        await page.press("Escape")
        await page.until(TOLD)
    finally:
        os.kill(server.pids()["worker"], signal.SIGCONT)
    assert await page.evaluate(f"{TOLD}.innerText.startsWith('Stopped.')")
    assert await page.evaluate(f"{ANSWER}.textContent.length > 0 && document.getElementById('stop').hidden")
    await page.until("document.getElementById('link').dataset.state === 'ready'")
    await send(page, "And again?")
    await page.until(f"document.querySelectorAll('.turn').length === 4 && {TOLD}")
    await page.evaluate("document.querySelector('.turn.assistant:last-child [data-copies=again]').click()")
    await page.until(f"{COMING} === null && document.querySelectorAll('.turn').length === 4 && {TOLD}")
    assert await page.evaluate("document.querySelectorAll('button:not([type])').length") == 0
    order = []
    await page.evaluate("document.querySelector('#theme').focus()")
    for _ in range(16):
        await page.press("Tab")
        order.append(await page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert order.index("turns") < order.index("message") < order.index("send") < order.index("clear"), order
    check_calm(page, server.base_url)


async def test_colours(page: Page, server: Server) -> None:
    """As the system has them, unless the button says otherwise; that is kept."""
    paper = "getComputedStyle(document.body).backgroundColor"
    await page.media(prefers_color_scheme="dark")
    await open_page(page, server)
    dark = await page.evaluate(paper)
    await page.media(prefers_color_scheme="light")
    light = await page.evaluate(paper)
    assert dark != light
    seen = []
    for _ in range(3):
        await page.evaluate("document.getElementById('theme').click()")
        seen.append(await page.evaluate(paper))
    assert seen == [light, dark, light]  # light, dark, the system's
    await page.evaluate("[1, 2].forEach(() => document.getElementById('theme').click())")
    await open_page(page, server)
    assert await page.evaluate(paper) == dark
    await page.media(prefers_reduced_motion="reduce")
    assert await page.evaluate("getComputedStyle(document.body).animationName") == "none"
    check_calm(page, server.base_url)


async def test_no_width_scrolls_sideways(page: Page, server: Server) -> None:
    """From the narrowest phone on, in both halves, with words that are longer than a line."""
    await open_page(page, server)
    await page.evaluate("document.getElementById('p-max_tokens').value = '8'")
    await send(page, "a" * 300)
    await page.until(TOLD)
    await page.evaluate("document.getElementById('parameters').open = true")
    for width in (320, 360, 400, 700, 1000, 1600):
        await page.resize(width, 740)
        for view in ("chat", "actors"):
            button = f"document.getElementById('show-{view}')"
            narrow = await page.evaluate(f"{button}.offsetParent !== null")
            assert narrow == (width < 896)
            if narrow:
                await page.evaluate(f"{button}.click()")
            assert await page.evaluate("document.documentElement.scrollWidth") <= width
            assert await page.evaluate(BEYOND_THE_EDGE) == [], (width, view)
            assert await page.evaluate(WIDER_THAN_IT_IS) == [], (width, view)
    check_calm(page, server.base_url)


async def test_another_site_cannot_frame_it(page: Page, server: Server) -> None:
    """Neither as a frame nor, by a name that leads here, to read what the actors do."""
    async with serving() as other:
        await page.go(f"http://127.0.0.1:{other.port}/docs")
        refused = await page.evaluate(f"fetch('{server.base_url}/page/events').then(() => 'read', () => 'refused')")
        assert refused == "refused"
