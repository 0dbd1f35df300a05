"""The layout keeps the standard library's http and everyone's kernels visible from the checkout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "shm", "kernels", "http")
LINKS = ROOT / "tools" / "package" / "actorserve"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_regular_package_at_the_top(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_no_package_below_the_tests() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


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
