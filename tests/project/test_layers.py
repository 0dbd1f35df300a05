"""Who may import whom: the contracts of pyproject.toml hold, they catch a planted import, and actors stay light."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from actorserve.actors.protocol.actor_kind import ActorKind
from actorserve.actors.protocol.kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("actors", "shm", "kernels", "http")
LIGHT = sorted((kind for kind in KINDS.values() if kind.prefork), key=lambda kind: kind.has_clients)


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """lint-imports over one tree."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", str(tree / "pyproject.toml")],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "tools" / "package"), "COLUMNS": "400"},
        capture_output=True,
        text=True,
    )


PLANTED = [  # a module, a line for it, and what is said of it
    (
        "actors/scheduler/actor.py",
        "from actorserve.actors.worker import actor as planted",
        "actors.scheduler.actor -> actorserve.actors.worker.actor",
    ),
    ("actors/renderer/actor.py", "import torch", "actors.renderer.actor -> torch"),
    ("actors/scheduler/actor.py", "import aiohttp", "actors.scheduler.actor -> aiohttp"),
    (
        "actors/protocol/topology.py",
        "from ..runtime.process import Boot",
        "actors.protocol.topology -> actorserve.actors.runtime.process",
    ),
    (
        "shm/segment.py",
        "from actorserve.actors.options import config",
        "shm.segment -> actorserve.actors.options.config",
    ),
    (
        "actors/detokenizer/actor.py",
        "from actorserve.http import settings as planted",
        "actors.detokenizer.actor -> actorserve.http.settings",
    ),
    (
        "http/settings.py",
        "from actorserve.actors.runtime import process",
        "http.settings -> actorserve.actors.runtime.process",
    ),
    ("http/planted.py", "WITHOUT = 'a layer'", "http.planted"),
    (
        "http/generation/fields/decoding.py",
        "from ...transport import resume",
        "http.generation.fields.decoding -> actorserve.http.transport.resume",
    ),
    ("http/errors.py", "from aiohttp import web", "http.errors -> aiohttp"),
    (
        "http/output/parsers/base.py",
        "if 0:\n    from ...middleware.context import CLIENT",
        "http.output.parsers.base -> actorserve.http.middleware.context",
    ),
    (
        "actors/supervisor/launch.py",
        "import actorserve.actors.worker.actor",
        "actors.supervisor.launch -> actorserve.actors.worker.actor",
    ),
]


@pytest.fixture(scope="module")
def said_of_all(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is said of the sources with all of that planted in them; each chain of imports begins with a dash."""
    copy = tmp_path_factory.mktemp("sources")
    ignore = shutil.ignore_patterns("__pycache__")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, copy / folder, ignore=ignore)
    shutil.copytree(ROOT / "tools" / "package", copy / "tools" / "package", symlinks=True, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for module, line, _ in PLANTED:
        with (copy / module).open("a") as file:
            file.write(f"\n{line}\n")
    done = lint(copy)
    assert done.returncode == 1 and "BROKEN" in done.stdout, done.stdout + done.stderr
    return done.stdout


def test_every_module_has_a_layer() -> None:
    """import-linter looks for modules in no layer only within one package; here they stand in four."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layered = [name.strip(" ()") for line in contracts[0]["layers"] for name in re.split("[|:]", line)]
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    modules = ["actorserve." + ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    assert len(modules) > 300
    assert [module for module in modules if not any(f"{module}.".startswith(f"{name}.") for name in layered)] == []
    assert [name for name in layered if not any(f"{module}.".startswith(f"{name}.") for module in modules)] == []


@pytest.mark.slow  # .ci/run asks the same in a step of its own
def test_the_layers_hold() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("said", [said for _, _, said in PLANTED])
def test_a_planted_import_is_caught(said_of_all: str, said: str) -> None:
    assert re.search(rf"^-\s+actorserve\.{re.escape(said)}( \(|$)", said_of_all, re.M), said_of_all


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """By actor's name what has been imported when its module is, by whatever way: one after the other in one process,
    those without clients first. What one brings, those behind it have, too.
    """
    code = f"""
import importlib, json
import actorserve.actors.runtime.process
for name, module in {[(kind.name, kind.module) for kind in LIGHT]}:
    importlib.import_module(module)
    print(json.dumps([name, sorted({{'torch', 'transformers', 'triton', 'aiohttp'}} & sys.modules.keys())]))
"""
    done = subprocess.run([sys.executable, "-c", f"import sys{code}"], capture_output=True, text=True, check=True)
    return {name: set(found) for name, found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("kind", LIGHT, ids=lambda kind: kind.name)
def test_only_the_worker_imports_tensors(kind: ActorKind, imported: dict[str, set[str]]) -> None:
    assert not imported[kind.name] - ({"aiohttp"} if kind.has_clients else set())


def test_only_kernels_are_untyped() -> None:
    """mypy lets all functions beside the Triton kernels be without types, because kernels have none."""
    for path in (ROOT / "kernels" / "triton").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or any("jit" in ast.unparse(one) for one in node.decorator_list):
                continue
            own = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            untyped = [one.arg for one in own if one.annotation is None and one.arg not in ("self", "cls")]
            assert node.returns is not None and not untyped, f"{path.name}: {node.name} {untyped}"
