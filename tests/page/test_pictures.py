"""Pictures that a person drops on the page or pastes into it, in a real browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pytest

from tests.page.browser import Page
from tests.page.person import ANSWER, IN_A_BROWSER, TOLD, check_calm, open_page, send
from tests.support.models.vision.folders import picture, vision_folder
from tests.support.runs.original import Imports
from tests.support.server import Server

pytestmark = IN_A_BROWSER
GIVE = """(async () => {
    const data = new DataTransfer();
    for (const [name, type, text] of %s) {
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        data.items.add(new File([bytes], name, { type }));
    }
    const fields = { bubbles: true, cancelable: true };
    const event = "%s" === "drop" ? new DragEvent("drop", { ...fields, dataTransfer: data })
        : new ClipboardEvent("paste", { ...fields, clipboardData: data });
    document.getElementById("message").dispatchEvent(event);
})()"""
CHOSEN = "document.querySelectorAll('#pictures img').length"
SAID = "document.getElementById('picture-error').textContent"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = vision_folder("qwen2_5_vl", tmp_path_factory.mktemp("vision"))
    with Server(
        str(model), "--worker", "scripted", "--max-num-seqs", "4", "--max-model-len", "200", imports=Imports.PLAIN
    ) as running:
        yield running


async def give(page: Page, how: str, *files: tuple[str, str, bytes]) -> None:
    """As a person does with the mouse, or by Ctrl-V."""
    told = [(name, kind, base64.b64encode(data).decode()) for name, kind, data in files]
    await page.evaluate(GIVE % (json.dumps(told), how))


async def test_a_picture_is_pasted_another_dropped_and_both_are_asked_about(page: Page, server: Server) -> None:
    await open_page(page, server)
    await give(page, "paste", ("one.png", "image/png", picture(60, 40)))
    await page.until(f"{CHOSEN} === 1")
    await give(page, "drop", ("two.png", "image/png", picture(60, 40, 1)), ("x.svg", "image/svg+xml", b"<svg/>"))
    await page.until(f"{CHOSEN} === 2 && {SAID}.startsWith('x.svg is image/svg+xml')")
    await page.evaluate("document.querySelector('#pictures button').click()")
    assert await page.evaluate(CHOSEN) == 1
    await send(page, "What?")
    await page.until(f"{TOLD} && {ANSWER}.textContent.length > 0")
    assert await page.evaluate("document.querySelectorAll('.turn.user img').length") == 1
    assert await page.evaluate(CHOSEN) == 0
    await page.evaluate("document.querySelector('.turn.user button').click()")
    assert await page.evaluate(CHOSEN) == 1, "a message that is edited has its picture again"
    check_calm(page, server.base_url)


async def test_what_the_server_says_of_a_picture_is_shown(page: Page, server: Server) -> None:
    await open_page(page, server)
    await give(page, "drop", ("bad.png", "image/png", b"no picture"))
    await page.until(f"{CHOSEN} === 1")
    await send(page, "What?")
    await page.until("document.querySelector('.turn.assistant .error')")
    said = await page.evaluate("document.querySelector('.turn.assistant .error').textContent")
    assert "messages[0].content[0].image_url" in said
