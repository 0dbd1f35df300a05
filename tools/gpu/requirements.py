"""What parts of gpu_check will miss here, a line each: packages that setup.cfg requires, and modules of most parts.

python -m tools.gpu.requirements
"""

from __future__ import annotations

import configparser
import importlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
OF_TESTS = {"triton", "pytest", "pytest-xdist", "pytest-timeout", "hypothesis", "peft"}  # of what those require
MODULES = (
    "tests.conftest",
    "tests.support.models.checkpoints",
    "tools.gpu.shapes",
)  # the first is to come before torch


def required() -> list[Requirement]:
    stated = configparser.ConfigParser()
    stated.read(ROOT / "setup.cfg")
    always, of_tests = (
        [Requirement(line) for line in stated[section][name].splitlines() if line]
        for section, name in (("options", "install_requires"), ("options.extras_require", "test"))
    )
    return [*always, *(one for one in of_tests if one.name in OF_TESTS)]


def unmet(wanted: list[Requirement]) -> Iterator[str]:
    for one in wanted:
        try:
            found = metadata.version(one.name)
        except metadata.PackageNotFoundError:
            yield f"{one.name}{one.specifier} is missing"
            continue
        if not one.specifier.contains(found, prereleases=True):  # builds of NVIDIA's are named as such
            yield f"{one.name}{one.specifier} is wanted, and {found} is there"


def not_imported(modules: tuple[str, ...]) -> Iterator[str]:
    """Not from here, or not at all."""
    for name in modules:
        try:
            file = importlib.import_module(name).__file__
        except Exception as error:  # whatever it is, all parts will meet it
            yield f"{name} cannot be imported: {type(error).__name__}: {error}"
            continue
        if file is None or ROOT not in Path(file).resolve().parents:
            yield f"{name} is that of {file}"


if __name__ == "__main__":
    for line in (*unmet(required()), *not_imported(MODULES)):
        print(line, flush=True)
