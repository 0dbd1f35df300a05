"""Who may import whom: the contracts of pyproject.toml hold, they catch a planted import, and actors stay light."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from actorserve.actors.protocol.kinds import KINDS, ActorKind

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "shm", "kernels", "http")
LIGHT = [kind for kind in KINDS.values() if kind.prefork]


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """lint-imports over one tree."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", str(tree / "pyproject.toml")],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "tools" / "package")},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources once more, to plant something in."""
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    shutil.copytree(ROOT / "tools" / "package", tmp_path / "tools" / "package", symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_module_has_a_layer() -> None:
    """import-linter looks for modules in no layer only within one package; here they stand in four."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = [name.strip(" ()") for line in contracts[0]["layers"] for name in re.split("[|:]", line)]
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    modules = ["actorserve." + ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert len(modules) > 300
    assert [module for module in modules if not any(f"{module}.".startswith(f"{name}.") for name in layered)] == []
    assert [name for name in layered if not any(f"{module}.".startswith(f"{name}.") for module in modules)] == []


def test_the_layers_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("actors/scheduler/actor.py", "from actorserve.actors.worker import actor as planted"),
        ("actors/renderer/actor.py", "import torch"),
        ("actors/scheduler/actor.py", "import aiohttp"),
        ("actors/protocol/topology.py", "from ..runtime.process import Boot"),
        ("shm/segment.py", "from actorserve.actors.options import config"),
        ("actors/detokenizer/actor.py", "from actorserve.http import settings as planted"),
        ("http/settings.py", "from actorserve.actors.runtime import process"),
        ("http/planted.py", "WITHOUT = 'a layer'"),
        ("http/generation/fields/decoding.py", "from ...transport import resume"),
        ("http/errors.py", "from aiohttp import web"),
        ("http/output/parsers/base.py", "if 0:\n    from ...middleware.context import CLIENT"),
        ("actors/supervisor/launch.py", "import actorserve.actors.worker.actor"),
    ],
)
def test_a_planted_import_is_caught(copy: Path, module: str, line: str) -> None:
    with (copy / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("kind", LIGHT, ids=lambda kind: kind.name)
def test_only_the_worker_imports_tensors(kind: ActorKind) -> None:
    """What the actor's module imports when it starts, by whatever way."""
    code = f"import {kind.module}, actorserve.actors.runtime.process, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "triton"} | (set() if kind.has_clients else {"aiohttp"})
    assert not heavy & set(done.stdout.split())


def test_only_kernels_are_untyped() -> None:
    """mypy lets all functions beside the Triton kernels be without types, because kernels have none."""
    for path in (ROOT / "kernels" / "triton").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or any("jit" in ast.unparse(one) for one in node.decorator_list):
                continue
            own = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            untyped = [one.arg for one in own if one.annotation is None and one.arg not in ("self", "cls")]
            assert node.returns is not None and not untyped, f"{path.name}: {node.name} {untyped}"
