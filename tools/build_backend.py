"""setuptools' backend, which builds in a folder of its own each time.

By itself it builds in `build/`, leaves it there, and packs all of it the next time: a module that was deleted meanwhile
would be installed again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.egg_info import manifest_maker

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
manifest_maker.template = "tools/MANIFEST.in"  # the top level is the sources' alone
EXTRA = "DIST_EXTRA_CONFIG"  # a file of settings that setuptools reads beside setup.cfg


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """A wheel of what is in the tree now."""
    with _own_build_folder():
        return build_meta.build_wheel(folder, settings, metadata)


def build_editable(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """A wheel that links to the tree."""
    with _own_build_folder():
        return build_meta.build_editable(folder, settings, metadata)


@contextlib.contextmanager
def _own_build_folder() -> Iterator[None]:
    before = os.environ.get(EXTRA)
    with tempfile.TemporaryDirectory(prefix="actorserve-build-") as folder:
        file = Path(folder) / "build.cfg"
        said = Path(before).read_text(encoding="utf-8") if before else ""
        file.write_text(f"{said}\n[build]\nbuild_base = {folder}\n", encoding="utf-8")
        os.environ[EXTRA] = str(file)
        try:
            yield
        finally:
            if before is None:
                del os.environ[EXTRA]
            else:
                os.environ[EXTRA] = before
