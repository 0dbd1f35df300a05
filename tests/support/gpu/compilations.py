"""What a compiler for GPUs says of our kernels, kept on disk: to compile them takes twenty CPU seconds of a run of the
tests, and what is said follows from the kernels, the compiler and the question alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

import pytest

from actorserve.kernels.cpu.native.cache import cache_folder

ROOT = Path(__file__).parents[3]
COMPILED = (  # what kernels are, with all that they import of ours, and what they are launched with
    "kernels/*.py",
    "kernels/triton/**/*.py",
    "tests/kernels/triton/launches.py",
)
MOST = 256  # answers that are kept
INSTALLED = ""  # Triton's version that is imported here; any other is a folder (`pip install --target`)
TRITONS = [INSTALLED, *filter(None, os.environ.get("OTHER_TRITON", "").split(os.pathsep))]
LONGEST_S = 3600  # for all variants: on a busy machine more than the 300 s that other tests have


def say(program: str, arguments: list[str], environment: Mapping[str, str], triton: str = INSTALLED) -> Any:
    """The JSON that this program, by its file, prints in a process of its own, with one of TRITONS; or has printed, if
    all was the same."""
    folder = cache_folder()
    assert folder is not None, "tests/conftest.py sees to one"
    kept = folder.parent / "compilations" / f"{_digest(program, arguments, triton)}.json"
    if kept.exists():
        return json.loads(kept.read_bytes())
    command = [sys.executable, program, *arguments]
    path = os.pathsep.join(filter(None, [str(ROOT), triton, environment.get("PYTHONPATH", "")]))
    given = {**environment, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr[-3000:]
    _keep(kept, done.stdout)
    return json.loads(done.stdout)


def version_of(triton: str) -> str:
    """Of one of TRITONS."""
    if triton == INSTALLED:
        return version("triton")
    found = [one.version for one in distributions(name="triton", path=[triton])]
    assert found, f"OTHER_TRITON: {triton} has no Triton: pip install --target {triton} triton==VERSION"
    return found[0]


by_each_triton = pytest.mark.parametrize("triton", TRITONS, ids=version_of)


def _digest(program: str, arguments: list[str], triton: str) -> str:
    files = [Path(program), *(file for pattern in COMPILED for file in sorted(ROOT.glob(pattern)))]
    digest = hashlib.blake2b(json.dumps([arguments, version_of(triton), version("torch"), sys.version]).encode())
    for file in files:
        content = file.read_bytes()
        digest.update(f"\n{file.relative_to(ROOT)} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:32]


def _keep(file: Path, text: str) -> None:
    """Whole or not at all; of too many the oldest go."""
    file.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, made = tempfile.mkstemp(dir=file.parent)
    with os.fdopen(descriptor, "w") as written:
        written.write(text)
    os.replace(made, file)
    for old in sorted(file.parent.glob("*.json"), key=lambda one: one.stat().st_mtime)[:-MOST]:
        old.unlink(missing_ok=True)
