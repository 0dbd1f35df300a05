"""./tools/serve and ./tools/test: they install when something changed, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# In place of a virtual environment's python: it writes down how it was called.
PYTHON = '#!/bin/sh\necho "$*" >>"$CALLS"\n'


class Tree:
    """A copy of what the two commands read, with a python that only takes notes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls_file = root / "calls"
        (root / "tools").mkdir()
        for file in ("setup.cfg", "pyproject.toml", "tools/constraints.txt", "tools/install.sh"):
            shutil.copy(ROOT / file, root / file)
        for command in ("serve", "test"):
            shutil.copy(ROOT / "tools" / command, root / "tools" / command)
        python = root / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON)
        python.chmod(0o755)

    def run(self, command: str, *arguments: str) -> list[str]:
        """How the command called python, without the question whether there is pip."""
        self.calls_file.write_text("")
        env = {**os.environ, "CALLS": str(self.calls_file)}
        subprocess.run([self.root / "tools" / command, *arguments], check=True, env=env, cwd="/", capture_output=True)
        return [line for line in self.calls_file.read_text().splitlines() if line != "-m pip --version"]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def installs(calls: list[str]) -> list[str]:
    return [call.split()[-1] for call in calls if "pip install" in call and "-c tools/constraints.txt" in call]


def test_serve_installs_once(tree: Tree) -> None:
    assert installs(tree.run("serve")) == ["."]
    assert tree.run("serve", "--port", "9000", "a model") == ["-P -m actorserve launch --port 9000 a model"]


def test_the_tests_need_more_than_serving(tree: Tree) -> None:
    tree.run("serve")
    assert installs(tree.run("test")) == [".[test]"]
    assert tree.run("test", "-k", "rings") == ["-m pytest --durations=40 -k rings"]
    (every,) = tree.run("test")
    cores = int(subprocess.run(["nproc"], capture_output=True, check=True).stdout)
    assert every.endswith(f" --forks {min(cores + 1, 4)}")
    assert not installs(tree.run("serve"))


@pytest.mark.parametrize("file", ["setup.cfg", "pyproject.toml", "tools/constraints.txt"])
def test_a_change_of_what_is_needed_installs_again(tree: Tree, file: str) -> None:
    tree.run("test")
    with (tree.root / file).open("a") as changed:
        changed.write("# changed\n")
    assert installs(tree.run("serve")) == ["."]
    assert installs(tree.run("test")) == [".[test]"]


def test_a_failed_installation_is_tried_again(tree: Tree) -> None:
    python = tree.root / ".venv" / "bin" / "python"
    python.write_text(PYTHON + 'case "$*" in *install*) exit 1 ;; esac\n')
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            tree.run("serve")
        assert installs(tree.calls_file.read_text().splitlines()) == ["."]


def test_without_python_it_says_what_is_missing(tree: Tree, tmp_path: Path) -> None:
    shutil.rmtree(tree.root / ".venv")
    few = tmp_path / "bin"
    few.mkdir()
    for program in ("bash", "dirname", "sha256sum", "cut", "cat", "tee"):
        found = shutil.which(program)
        assert found is not None
        (few / program).symlink_to(found)
    command = [str(few / "bash"), str(tree.root / "tools" / "serve")]
    done = subprocess.run(command, env={"PATH": str(few)}, capture_output=True, text=True)
    assert done.returncode == 1 and "needs Python 3.11" in done.stderr
