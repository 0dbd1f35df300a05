"""The layout keeps the standard library's http and everyone's kernels visible from the checkout, and what code names is
there.
"""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "shm", "kernels", "http")
LINKS = ROOT / "tools" / "package" / "actorserve"
FILES = re.compile(r"(?<![\w./{}<>-])((?:[\w-]+/)+\w+\.(?:py|md|c|h|sh))\b")
IN_TOOLS = re.compile(r"(?<![\w./{}-])((?:tools|tests)/(?:[\w-]+/)*[\w-]*\w)(?![\w/*{.-])")
MODULES = re.compile(r"(?<![\w.-])((?:tools|tests)(?:\.[a-z_]+){2,})(?![\w.(])")
ELSEWHERE = {  # of others, or of tests that make them
    *("integrations/moe.py", "some_package/__init__.py", "http/planted.py", "actors/short_lived.py"),
    *("actors/gone/module.py", "tools/package/actorserve/actors/cli.py", "actorserve/actors/cli.py", "linux/tcp.h"),
    *("tests.support.x", "tests.support.nothing.there", "tools/results/h100.md", "published/of_NAME.py"),
}
MADE = {"rules.tsv"}  # for a while, by a script
MOST_MODULES = 14  # of a folder: more are not found any more


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_regular_package_at_the_top(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_package_below_the_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_folder_has_too_many_modules() -> None:
    counts = Counter(path.parent for folder in (*FOLDERS, "tests", "tools") for path in (ROOT / folder).rglob("*.py"))
    assert len(counts) > 100
    assert not {str(folder): count for folder, count in counts.items() if count > MOST_MODULES}


@pytest.mark.parametrize("folder", FOLDERS)
def test_link(folder: str) -> None:
    link = LINKS / folder
    assert link.is_symlink()
    assert link.resolve() == ROOT / folder


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_module_named_like_the_standard_library(folder: str) -> None:
    names = {p.stem for p in (ROOT / folder).glob("*.py")} | {p.name for p in (ROOT / folder).iterdir() if p.is_dir()}
    # `mailbox` of the standard library reads mail files; nobody here needs it, and ours is a mailbox if anything is
    assert not names & (sys.stdlib_module_names - {"__main__", "mailbox"})


@pytest.mark.parametrize("argv", [["-c", "CODE"], ["-m", "probe"]])
def test_standard_http_wins_in_the_checkout(argv: list[str], tmp_path: Path) -> None:
    code = "import http, http.client, aiohttp, actorserve.http; print(http.__file__)"
    (tmp_path / "probe.py").write_text(code)
    out = subprocess.run(
        [sys.executable, *(code if a == "CODE" else a for a in argv)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(LINKS.parent)])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert not Path(out.strip()).is_relative_to(ROOT)


def _python() -> Iterator[tuple[Path, str]]:
    """All files in Python, by their names or their first lines, and what is in them."""
    for path in (path for folder in (*FOLDERS, "tests", "tools") for path in (ROOT / folder).rglob("*")):
        if LINKS in path.parents or not path.is_file() or path.suffix not in (".py", ""):
            continue
        text = path.read_text(errors="replace")
        if path.suffix or text.startswith("#!/usr/bin/env python3"):
            yield path, text


def test_files_that_are_named_are_there() -> None:
    """In code, docstrings and comments: a file by its path or the last parts of it, a tool, a module of tests."""
    there = {ROOT / folder for folder in FOLDERS}
    there |= {path for folder in (*FOLDERS, "tests", "tools", ".ci") for path in (ROOT / folder).rglob("*")}
    parts = [path.relative_to(ROOT).parts for path in there]
    ends = {"/".join(each[first:]) for each in parts for first in range(len(each))}
    whole = {"/".join(each) for each in parts}
    missing = []
    for path, text in _python():
        named = {name: name in ends for name in FILES.findall(text)}
        named |= {name: name in whole for name in IN_TOOLS.findall(text)}
        for name in MODULES.findall(text):  # the last part may be what is in a module
            place = name.replace(".", "/")
            named[name] = not {f"{place}.py", place, f"{place.rpartition('/')[0]}.py"}.isdisjoint(whole)
        missing += [(str(path.relative_to(ROOT)), name) for name, found in named.items() if not found]
    assert [one for one in missing if one[1] not in ELSEWHERE] == []


def _place(node: ast.AST, names: dict[str, Path], file: Path) -> Path | None:
    """What an expression of a file's own place, folders above it and names below these is; None: something else."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Call(func=ast.Name(id="Path"), args=[ast.Name(id="__file__")]):
            return file
        case ast.Call(func=ast.Attribute(value=of, attr="resolve" | "absolute")):
            return _place(of, names, file)
        case ast.Attribute(value=of, attr="parent"):
            found = _place(of, names, file)
            return found.parent if found else None
        case ast.Subscript(value=ast.Attribute(value=of, attr="parents"), slice=ast.Constant(value=int(above))):
            found = _place(of, names, file)
            return found.parents[above] if found else None
        case ast.BinOp(left=of, op=ast.Div(), right=ast.Constant(value=str(name))):
            found = _place(of, names, file)
            return found / name if found else None
    return None


def _places(path: Path, text: str) -> Iterator[Path]:
    """What a file reaches by ROOT / "a" / "b", or from its own place."""
    tree, names = ast.parse(text), {"ROOT": ROOT}
    for line in tree.body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            if (found := _place(line.value, names, path)) is not None:
                names[line.targets[0].id] = found
            else:
                names.pop(line.targets[0].id, None)
    inner = {id(node.left) for node in ast.walk(tree) if isinstance(node, ast.BinOp)}
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and id(node) not in inner and (found := _place(node, names, path)) is not None:
            yield found


def test_places_that_are_reached_are_there() -> None:
    """A test that reads a file which was moved fails here, too, if it is a slow one."""
    missing = []
    for path, text in _python():
        if "ROOT" in text or "__file__" in text:
            found = (place for place in _places(path, text) if not place.exists() and place.name not in MADE)
            missing += [(str(path.relative_to(ROOT)), str(place)) for place in found]
    assert missing == []
