"""The page's files: how they are served, and what may not stand in them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from actorserve.http.dashboard.files import FOLDER, TYPES
from actorserve.http.handlers.page import POLICY
from actorserve.http.routes import PAGE_PATHS
from tests.http.serving import Served, serving

MOST_LINES = 300
VENDORED = {  # as they are in the package of their authors, by their hash
    "markdown-it.js": "40ee4f75f35a4c8d24f1d7a902f4c56a26da8bd9eec5bb02ad4a672d6ba05525",
    "markdown-it.LICENSE.txt": "43c8fc9f216253c3a3dc6db583f22e017cc826128894bd55d2abc3b75feb6627",
}
SOURCES = {name: (FOLDER / name).read_text() for name in TYPES if name not in VENDORED}
IDS = re.compile(r"""\$\("([\w-]+)"\)""")


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(api_keys=["k"]) as running:
        yield running


def test_every_file_is_served() -> None:
    assert {path.name for path in FOLDER.iterdir() if not path.name.startswith(("__", "."))} == set(TYPES)
    assert {"/", "/page/main.js", "/page/page.css"} < PAGE_PATHS and "/page/events" not in PAGE_PATHS


@pytest.mark.parametrize("path", sorted(PAGE_PATHS))
async def test_a_file(served: Served, path: str) -> None:
    """Without a key, though there are keys; with headers that let it do nothing but what it is there for."""
    answer = await served.ask("GET", path)
    name = {"/": "index.html", "/docs": "docs.html"}.get(path) or path.removeprefix("/page/")
    assert answer.status == 200 and answer.body == (FOLDER / name).read_bytes()
    assert answer.headers["content-type"] == f"{TYPES[name]}; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-cache"
    head = await served.ask("HEAD", path)
    assert head.status == 200 and head.headers["content-length"] == str(len(answer.body))


def test_the_policy() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    nothing = {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert {name for name, value in rules.items() if value == "'none'"} == nothing
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert "unsafe" not in POLICY and set(rules) == nothing | {"script-src", "style-src", "connect-src", "img-src"}


async def test_who_has_it_is_told_so(served: Served) -> None:
    first = await served.ask("GET", "/page/main.js")
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', "*", f"W/{tag}"):
        client = await served.client()
        client.send("GET", "/page/main.js", If_None_Match=known)
        again = await client.head()
        assert (again.status, again.headers["etag"]) == (304, tag)
        assert again.headers["content-security-policy"] == POLICY
    other = await served.ask("GET", "/page/main.js", If_None_Match='"other"')
    assert (other.status, other.body) == (200, first.body)
    assert (await served.ask("GET", "/page/chat.js")).headers["etag"] != tag


@pytest.mark.parametrize("name", ["nothing.js", "..%2fapp.py", "%2e%2e", "__init__.py", ""])
async def test_no_other_file(served: Served, name: str) -> None:
    answer = await served.ask("GET", f"/page/{name}", Authorization="Bearer k")
    assert answer.status == 404 and answer.error["message"]
    assert (await served.ask("GET", f"/page/{name}")).status == 401


@pytest.mark.parametrize("path", ["/docs", "/page/main.js", "/page/events"])
async def test_it_is_only_read(served: Served, path: str) -> None:
    answer = await served.ask("POST", path, {}, Authorization="Bearer k")
    assert answer.status == 405 and "GET" in answer.headers["allow"] and answer.error


# --- what stands in them --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(VENDORED))
def test_what_others_wrote_is_as_they_wrote_it(name: str) -> None:
    assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == VENDORED[name]


def test_what_others_wrote_makes_no_elements() -> None:
    """markdown-it reads; it is markdown.js that makes elements, of tokens."""
    text = (FOLDER / "markdown-it.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.|eval\(|Function\(|fetch\(|import\(", text)


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_nothing_comes_from_elsewhere(name: str) -> None:
    """No address of another host but the name space of SVG; nothing that makes elements or code of a text."""
    text = SOURCES[name].replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"(?:https?:|wss?:)?//[\w-]+\.\w", text), name
    assert not re.search(
        r"@import|url\(|innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|srcdoc", text
    )
    assert "EventSource" not in text.replace("EventSource could send no key", "")
    assert len(text.splitlines()) <= MOST_LINES


def test_nothing_is_inline() -> None:
    """The policy forbids it: scripts, styles and handlers stand in files."""
    for name, script in (("index.html", "main.js"), ("docs.html", "docs.js")):
        page = SOURCES[name]
        assert re.findall(r"<script[^>]*>", page) == [f'<script type="module" src="page/{script}">']
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    for name, text in SOURCES.items():
        assert not name.endswith(".js") or not re.search(r"""setAttribute\("(?:style|on\w+)""", text)


def test_what_the_files_name_is_there() -> None:
    """Assets that the page asks for, modules that are imported, and elements that scripts look for."""
    ids: dict[str, set[str]] = {}
    for name in ("index.html", "docs.html"):
        page = SOURCES[name]
        named = set(re.findall(r'(?:src|href)="page/([^"]+)"', page))
        assert {"icon.svg", "page.css"} < named <= set(TYPES)
        found = re.findall(r'\sid="([\w-]+)"', page)
        assert len(found) == len(set(found))
        ids[name] = set(found)
    assert set(IDS.findall(SOURCES["key.js"])) <= ids["index.html"] & ids["docs.html"]
    for name, text in SOURCES.items():
        if not name.endswith(".js"):
            continue
        assert {Path(module).name for module in re.findall(r'(?:from|import) "\./([^"]+)"', text)} <= set(TYPES)
        assert set(IDS.findall(text)) <= ids["docs.html" if name == "docs.js" else "index.html"], name


def test_everything_has_a_name() -> None:
    """For those who hear the page: fields have labels, pictures say what they are."""
    page = SOURCES["index.html"]
    for tag in re.findall(r"<(?:input|textarea|canvas|svg)\b[^>]*>", page):
        labelled = re.search(r'aria-label="[^"]{3,}"|aria-hidden="true"', tag)
        inside = f"<label{page.split(tag)[0].rpartition('<label')[2]}"
        own_id = re.search(r'id="([\w-]+)"', tag)
        assert labelled or "</label>" not in inside or (own_id and f'for="{own_id[1]}"' in page), tag
    assert '<html lang="en">' in page and 'name="viewport"' in page


def test_colours_and_motion() -> None:
    """Both ways to be dark give the same colours, and who wants no motion gets none."""
    style = SOURCES["page.css"]
    blocks = re.findall(r"--paper: #15181b;.*?color-scheme: dark;", style, re.DOTALL)
    assert len(blocks) == 2 and " ".join(blocks[0].split()) == " ".join(blocks[1].split())
    light = set(re.findall(r"(--[\w-]+):", style.partition("}")[0]))
    assert light - set(re.findall(r"(--[\w-]+):", blocks[1])) == {"--mono"}
    used = {name for text in SOURCES.values() for name in re.findall(r"var\((--[\w-]+)\)", text)}
    assert used - light <= {"--kind", "--mark"}
    assert "prefers-reduced-motion" in style and "prefers-reduced-motion" in SOURCES["map.js"]
