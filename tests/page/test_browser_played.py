"""The page in a real browser, before an engine that the test plays: keys, thoughts, errors, and hostile text."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import overloaded
from actorserve.http.settings import Catalog
from tests.http.fakes import rendered, say
from tests.http.serving import SETTINGS, Served, serving
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


async def test_a_model_is_chosen(page: Page) -> None:
    """Where there are several; other names of one are not shown."""
    catalog = Catalog()
    catalog.models = [replace(SETTINGS, served=["tiny", "alias"], catalog=catalog)]
    catalog.models.append(replace(SETTINGS, served=["second"], model=1, catalog=catalog))
    async with serving(served=["tiny", "alias"], catalog=catalog) as served:
        await page.go(f"http://127.0.0.1:{served.port}/")
        choice = "document.querySelector('#model select')"
        await page.until(f"{choice} && [...{choice}.options].map((one) => one.value).join() === 'tiny,second'")
        await page.evaluate(f"{choice}.value = 'second'; {choice}.dispatchEvent(new Event('change'))")
        await send(page, "hi")
        job = await asyncio.wait_for(served.engine.of_model(1).jobs.get(), 30)
        rendered(job)
        say(job, 0, "yes", 1, Finish.STOP)
        await page.until(TOLD)
        assert not page.complaints


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


async def test_a_conversation_is_kept(page: Page) -> None:
    """It is there after a reload, can be said otherwise, exported, left for another, and deleted."""
    async with serving() as served:
        base_url = f"http://127.0.0.1:{served.port}"
        await page.go(f"{base_url}/")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        job = await begin(page, served)
        say(job, 0, "It is **so**.", 1, Finish.STOP)
        await page.until(TOLD)
        await page.go(f"{base_url}/?again")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        said = "[...document.querySelectorAll('.turn .text')].map((one) => one.textContent)"
        assert await page.evaluate(said) == ["hi", "It is so."]
        assert await page.evaluate(f"{ANSWER}.innerHTML") == "<p>It is <strong>so</strong>.</p>"
        exported = await page.evaluate(EXPORT)
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It is **so**."}]
        assert json.loads(exported) == {"model": "tiny", "messages": messages}

        await page.evaluate("document.querySelector('[data-copies=edit]').click()")
        assert await page.evaluate("document.getElementById('message').value") == "hi"
        await send(page, " again")  # behind what stands there
        job = await served.job()
        rendered(job)
        say(job, 0, "Other.", 1, Finish.STOP)
        await page.until(f"{TOLD} && {ANSWER}.textContent === 'Other.'")
        assert await page.evaluate(said) == ["hi again", "Other."]

        await page.evaluate("document.getElementById('clear').click()")
        assert await page.evaluate(said) == []
        names = "[...document.getElementById('conversations').options].map((one) => one.textContent)"
        assert await page.evaluate(names) == ["New conversation", "hi again"]
        await page.evaluate(CHOOSE)
        assert await page.evaluate(said) == ["hi again", "Other."]
        await page.evaluate("document.getElementById('delete').click()")
        assert await page.evaluate(said) == [] and await page.evaluate(names) == ["New conversation"]
        await page.go(f"{base_url}/?anew")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        assert await page.evaluate(said) == []
        check_calm(page, base_url)


EXPORT = """new Promise((done) => {
    URL.createObjectURL = (blob) => { blob.text().then(done); return "data:,"; };
    document.getElementById("export").click();
})"""
CHOOSE = """(() => {
    const list = document.getElementById("conversations");
    list.selectedIndex = 1;
    list.dispatchEvent(new Event("change"));
})()"""


async def test_an_answer_that_was_left(page: Page) -> None:
    """What had come of it is there after a reload, and can be asked for again."""
    async with serving() as served:
        await page.go(f"http://127.0.0.1:{served.port}/")
        await page.until("document.getElementById('model').textContent === 'tiny'")
        say(await begin(page, served), 0, "Half of it")
        await page.until(f"{ANSWER}.textContent === 'Half of it'")
        await page.go(f"http://127.0.0.1:{served.port}/?again")
        await page.until(f"{TOLD} && {TOLD}.textContent.startsWith('Broken off')")
        assert await page.evaluate(f"{ANSWER}.textContent") == "Half of it"
        await page.until("document.getElementById('model').textContent === 'tiny'")
        await page.evaluate("document.querySelector('.turn.assistant:last-child [data-copies=again]').click()")
        job = await served.job()
        rendered(job)
        say(job, 0, "All", 1, Finish.STOP)
        await page.until(f"{TOLD} && {ANSWER}.textContent === 'All'")


async def test_the_list_of_paths(page: Page) -> None:
    """/docs asks for the key like the page, and shows what paths take and answer."""
    async with serving(api_keys=["secret"]) as served:
        base_url = f"http://127.0.0.1:{served.port}"
        await page.go(f"{base_url}/docs")
        await page.until("!document.getElementById('key-form').hidden")
        await page.evaluate("document.getElementById('key').focus()")
        await page.type("secret")
        await page.press("Enter", "\r")
        await page.until("document.querySelectorAll('details').length > 20")
        paths = await page.evaluate("[...document.querySelectorAll('summary code')].map((one) => one.textContent)")
        assert {"/v1/chat/completions", "/health", "/openapi.json"} <= set(paths)
        await page.evaluate("document.querySelector('details').open = true")
        await page.until("document.querySelector('details pre')?.textContent.includes('\"messages\"')")
        assert not [one for one in page.complaints if not is_status(one, 401)]


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

1. in a list:

   ```sh
   ls
   ```
- [ ] open
- [x] done

| a | b |
|:--|--:|
| 1 | *2* |

![no](https://e.example/picture.png) <img src=y> ~~gone~~

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
        fenced: box.querySelector("ol li .code[data-language=sh] pre").textContent,
        tasks: [...box.querySelectorAll("li.task > input")].map((one) => [one.disabled, one.checked]),
        table: [...box.querySelectorAll("table tr")].map((row) => [...row.children].map((one) => one.textContent)),
    };
}"""


async def test_markdown_is_nodes(page: Page) -> None:
    """Whatever a model says, only these elements come of it, and links lead to http and https only."""
    async with serving() as served:
        base_url = f"http://127.0.0.1:{served.port}"
        await page.go(f"{base_url}/")
        await check_markdown(page)
        await check_table(page)
        check_calm(page, base_url)


async def check_table(page: Page) -> None:
    """A column of an answer stands as it says, and left where it says nothing, whatever the table of actors does."""
    cells = """import('/page/markdown.js').then(({ render }) => {
        const box = document.createElement("div");
        box.className = "turn";
        document.body.append(box);
        render(box, "|a|b|c|d|\\n|-|:-:|-|--:|\\n|1|2|3|4|");
        const found = [...box.querySelectorAll("th, td")].map((one) => getComputedStyle(one).textAlign);
        box.remove();
        return found;
    })"""
    assert await page.evaluate(cells) == ["left", "center", "left", "right"] * 2


async def check_markdown(page: Page) -> None:
    source = json.dumps(HOSTILE)
    made = await page.evaluate(f"import('/page/markdown.js').then(({{ render }}) => ({LOOK_AT_IT})(render, {source}))")
    elements = {"H3", "P", "STRONG", "EM", "CODE", "A", "UL", "OL", "LI", "BLOCKQUOTE", "DIV", "BUTTON", "PRE", "HR"}
    assert set(made["tags"]) == elements | {"TABLE", "THEAD", "TBODY", "TR", "TH", "TD", "INPUT", "S"}
    assert made["links"] == [
        ["https://b.example/x?y=1&z", "noopener noreferrer", "_blank"],
        ["https://e.example/path", "noopener noreferrer", "_blank"],
        ["https://e.example/picture.png", "noopener noreferrer", "_blank"],
    ]
    assert set(made["attributes"]) <= {"href", "rel", "target", "class", "type", "tabindex", "start"} | {
        "data-language",
        "data-copies",
        "data-align",
        "disabled",
    }
    assert made["fenced"] == "ls" and made["tasks"] == [[True, False], [True, True]]
    assert made["table"] == [["a", "b"], ["1", "2"]]
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
