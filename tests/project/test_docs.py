"""README.md, the maps and tools/docs say what is so: tables are those of the code, and what they name is there."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.command_line import OTHER_NAMES, describe_options
from actorserve.actors.options.other_servers import MEANINGS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "tools" / "docs"
MAPS = [ROOT / folder / "README.md" for folder in ("actors", "http", "shm")]
PAGES = [str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *MAPS)]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCED = re.compile(r"```.*?```", re.DOTALL)
IN_TOOLS = re.compile(r"(?<![\w/.])(?:\./)?(tools/[\w./*-]*[\w*])")
MODULE = re.compile(r"`([\w/]+\.py)(?:: (\w+))?")
SOURCES = ("actors", "http", "shm", "kernels", "tests", "tools")


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate.py"))


@pytest.mark.parametrize("page", ["options.md", "coming-from-vllm.md", "api.md", "features.md"])
def test_tables_are_those_of_the_code(page: str, generator: dict[str, Any]) -> None:
    assert page in generator["TABLES"]
    said = f"run tools/docs/generate.py: {page} is not what the code says"
    assert (DOCS / page).read_text() == generator["written"](page), said


def test_every_option_and_every_other_name_is_listed() -> None:
    options = (DOCS / "options.md").read_text()
    assert [option for option, text in describe_options() if f"| `{option}` | {text} |\n" not in options] == []
    coming = (DOCS / "coming-from-vllm.md").read_text()
    own = {name for names in OTHER_NAMES.values() for name in names}
    assert [name for name in MEANINGS if f"`{name}`" not in coming and name not in own] == []


def _anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _is_there(page: Path, link: str) -> bool:
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    return target.is_relative_to(ROOT) and target.exists() and (not anchor or anchor in _anchors(target))


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / name
    links = [link for link in LINK.findall(FENCED.sub("", page.read_text())) if not link.startswith("https://")]
    assert [link for link in links if not _is_there(page, link)] == []


@pytest.mark.parametrize("name", PAGES)
def test_tools_that_are_named_are_there(name: str) -> None:
    named = set(IN_TOOLS.findall((ROOT / name).read_text()))
    assert [path for path in sorted(named) if not any(ROOT.glob(path))] == []


@pytest.fixture(scope="module")
def modules() -> list[Path]:
    return [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]


@pytest.mark.parametrize("name", PAGES)
def test_modules_and_functions_that_are_named_are_there(name: str, modules: list[Path]) -> None:
    """A module by its path, or the last parts of it: `waiting.py`, `scheduler/waiting.py: add`."""
    missing = []
    for module, function in sorted(set(MODULE.findall((ROOT / name).read_text()))):
        meant = [path for path in modules if str(path).endswith(f"/{module}")]
        if not meant or (function and not any(f"def {function}(" in path.read_text() for path in meant)):
            missing.append((module, function))
    assert missing == []


def test_every_page_is_in_both_lists() -> None:
    front, index = (ROOT / "README.md").read_text(), (DOCS / "README.md").read_text()
    for page in DOCS.glob("*.md"):
        if page.name != "README.md":
            assert f"(tools/docs/{page.name})" in front and f"({page.name})" in index, page.name


def test_the_front_page_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_links_of_the_site_lead_somewhere(tmp_path: Path) -> None:
    subprocess.run([sys.executable, DOCS / "site", tmp_path], check=True, capture_output=True)
    pages = {page.name: page.read_text() for page in tmp_path.glob("*.html")}
    assert len(pages) >= 15 and all(name in pages["index.html"] for name in ("api.html", "routing.html"))
    for name, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            file, _, place = link.partition("#")
            if not link.startswith("https:"):
                assert not file or (tmp_path / file).exists(), (name, link)
                assert not place or f'id="{place}"' in pages[file or name], (name, link)
