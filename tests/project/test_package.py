"""A wheel of the tree holds everything, and the server runs from it, far from the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.server import Server

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "shm", "kernels", "http")
SHORT_LIVED = ("actors/short_lived.py", "actors/gone/module.py", "http/dashboard/page/short_lived.js")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, so that the tree itself stays clean."""
    copy = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*FOLDERS, "tools"):
        shutil.copytree(ROOT / folder, copy / folder, symlinks=True, ignore=ignore)
    for file in ("setup.cfg", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    """Built a second time in one tree, when some files of the first are gone."""
    short_lived = [tree / name for name in SHORT_LIVED]
    for path in short_lived:
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    first = _built(tree, "first")
    assert set(SHORT_LIVED) <= {name.removeprefix("actorserve/") for name in zipfile.ZipFile(first).namelist()}
    for path in short_lived:
        path.unlink()
    return _built(tree, "second")


def _built(tree: Path, folder: str) -> Path:
    """As pip has it built."""
    ask_backend(tree, f"build_wheel({folder!r})")
    (built,) = (tree / folder).glob("actorserve-*.whl")
    return built


def ask_backend(tree: Path, what: str) -> None:
    code = f"import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend.{what}"
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the wheel's contents and its command, to be put before everything else on the path."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--no-compile", "--no-deps", "--no-index"]
    command += ["--target", str(site), str(wheel)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return site


def test_the_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"actorserve/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".md", ".pyc")
    }
    assert not expected - names
    assert not {f"actorserve/{name}" for name in SHORT_LIVED} & names
    assert {"actorserve/__init__.py", "actorserve/__main__.py", "actorserve/py.typed"} <= names
    assert not {name for name in names if name.startswith(("tests/", "tools/", *(f"{f}/" for f in FOLDERS)))}


@pytest.mark.parametrize("cwd", ["/", str(ROOT)])
def test_the_command_runs_from_the_wheel(installed: Path, cwd: str) -> None:
    command = [str(installed / "bin" / "actorserve"), "--version"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=True)
    code = "import actorserve; print(actorserve.__file__); print('actorserve', actorserve.__version__)"
    seen = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    file, version = seen.stdout.splitlines()
    assert Path(file).is_relative_to(installed) and version == done.stdout.strip()


def test_the_server_runs_from_the_wheel(installed: Path) -> None:
    with Server(env={"PYTHONPATH": str(installed)}) as server:
        assert f"from {installed}" in server.output
        assert server.stop() == 0


def test_the_source_distribution_can_be_built(tree: Path) -> None:
    ask_backend(tree, "build_sdist('.')")
    (file,) = tree.glob("actorserve-*.tar.gz")
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tools/build_backend.py", "pyproject.toml", "tools/package/actorserve/actors/cli.py"} <= names
