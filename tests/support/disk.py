"""Where a folder's files are."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ELSEWHERE = ("tmpfs", "ramfs", "nfs", "cifs", "smb2", "fuseblk", "fuse", "v9fs", "ceph")


def need_disk(folder: Path) -> None:
    """Skip a test for which they must be on a disk of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    found = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True)
    if found.stdout.strip() in ELSEWHERE:
        pytest.skip(f"{folder} is in memory, or on another machine")
