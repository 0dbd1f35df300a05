"""The page in a real browser, before an engine that the test plays: keys, thoughts, errors, and hostile text."""

from __future__ import annotations

import json
from typing import Any

from actorserve.actors.messages import Finish
from actorserve.http.errors import overloaded
from tests.http.serving import Served, rendered, say, serving
from tests.page.browser import Page
from tests.page.person import ANSWER, IN_A_BROWSER, TOLD, check_calm, is_status, send

pytestmark = IN_A_BROWSER


async def begin(page: Page, served: Served) -> Any:
    """A question whose answer the test gives."""
    await send(page, "hi")
    job = await served.job()
    rendered(job)
    return job


async def test_a_key(page: Page) -> None:
    """It is asked for, refused in words, kept for this tab, and then everything goes on by itself."""
    async with serving(api_keys=["secret"]) as served:
        await page.go(f"http://127.0.0.1:{served.port}/")
        await page.until("!document.getElementById('key-form').hidden")
        for key in ("wrong", "secret"):
            await page.evaluate("document.getElementById('key').focus()")
            await page.type(key)
            await page.press("Enter", "\r")
            if key == "wrong":
                await page.until("document.getElementById('key-error').textContent.includes('does not know')")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        job = await begin(page, served)
        say(job, 0, "yes", 1, Finish.STOP)
        await page.until(TOLD)
        assert await page.evaluate("document.getElementById('key-form').hidden")
        assert await page.evaluate("JSON.stringify({...localStorage}).includes('secret')") is False
        await page.go(f"http://127.0.0.1:{served.port}/?again")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        assert not [one for one in page.complaints if not is_status(one, 401)]


async def test_thinking_and_errors(page: Page) -> None:
    """Thoughts are folded away; what goes wrong is said in words, and not sent along with the next question."""
    async with serving(reasoning_parser="qwen3") as served:
        await page.go(f"http://127.0.0.1:{served.port}/")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        job = await begin(page, served)
        say(job, 0, "<think>Let me see.</think>")
        fold = "document.querySelector('.thinking')"
        await page.until(f"{fold} && {fold}.lastChild.textContent === 'Let me see.' && !{fold}.open")
        say(job, 0, "It is **so**.", 1, Finish.STOP)
        await page.until(TOLD)
        assert await page.evaluate(f"{ANSWER}.innerHTML") == "<p>It is <strong>so</strong>.</p>"
        job = await begin(page, served)
        say(job, 0, "Half")
        await page.until(f"{ANSWER}.textContent === 'Half'")
        say(job, 0, "", 1, Finish.ERROR)
        await page.until("document.querySelector('.turn:last-child .error')")
        assert "could not compute" in await page.evaluate(
            "document.querySelector('.turn:last-child .error').textContent"
        )
        served.engine.refusal = overloaded("There is no room.")
        await send(page, "too much")
        await page.until("document.querySelector('.turn:last-child .error')")
        said = await page.evaluate("document.querySelector('.turn:last-child .error').textContent")
        assert said == "There is no room."
        assert not [one for one in page.complaints if not is_status(one, 503)]


HOSTILE = """# A <img src=x onerror=alert(1)>

<script>alert(1)</script> **bold <b>x</b>** and *em*, `<i>`, [a](javascript:alert(1)) [b](https://b.example/x?y=1&z)
[c](data:text/html,x) [d](//d.example) https://e.example/path. _under_ snake_case_word 2 * 3 * 4

- one
  - two **x**
- three

3. third

> quoted <u>

```python
print("<script>") # *no*
```

---
`unclosed **strong _em ```"""


LOOK_AT_IT = """(render, source) => {
    const box = document.createElement("div");
    for (let end = 0; end <= source.length; end += 7) render(box, source.slice(0, end)); // as it streams
    render(box, source);
    const all = [...box.querySelectorAll("*")];
    return {
        html: box.innerHTML,
        tags: [...new Set(all.map((one) => one.tagName))],
        links: all.filter((one) => one.href).map((one) => [one.href, one.rel, one.target]),
        attributes: [...new Set(all.flatMap((one) => one.getAttributeNames()))],
        code: box.querySelector("pre").textContent,
        nested: box.querySelectorAll("ul ul li strong").length,
        third: box.querySelector("ol").start,
    };
}"""


async def test_markdown_is_nodes(page: Page) -> None:
    """Whatever a model says, only these elements come of it, and links lead to http and https only."""
    async with serving() as served:
        base_url = f"http://127.0.0.1:{served.port}"
        await page.go(f"{base_url}/")
        await check_markdown(page)
        check_calm(page, base_url)


async def check_markdown(page: Page) -> None:
    source = json.dumps(HOSTILE)
    made = await page.evaluate(f"import('/page/markdown.js').then(({{ render }}) => ({LOOK_AT_IT})(render, {source}))")
    elements = {"H3", "P", "STRONG", "EM", "CODE", "A", "UL", "OL", "LI", "BLOCKQUOTE", "DIV", "BUTTON", "PRE", "HR"}
    assert set(made["tags"]) == elements
    assert made["links"] == [
        ["https://b.example/x?y=1&z", "noopener noreferrer", "_blank"],
        ["https://e.example/path", "noopener noreferrer", "_blank"],
    ]
    assert set(made["attributes"]) <= {"href", "rel", "target", "class", "type", "tabindex", "start"} | {
        "data-language",
        "data-copies",
    }
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in made["html"] and "snake_case_word 2 * 3 * 4" in made["html"]
    assert made["code"] == 'print("<script>") # *no*' and (made["nested"], made["third"]) == (1, 3)
    for pattern in (
        "`",
        "*",
        "**a ",
        "[",
        "_a ",
        "__a ",
        "`a``",
        "\n> ",
        "\n  - ",
        "\n```",
        "\n#",
    ):  # nothing takes a page's life
        await page.evaluate(
            "import('/page/markdown.js').then(({ render }) => render(document.createElement('div'),"
            f"'text ' + {json.dumps(pattern)}.repeat(7000 / {len(pattern)})))"
        )
