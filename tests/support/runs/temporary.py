"""A folder of the run's own for all that it and its servers make in the system's: a run that is killed leaves it
behind, and the next one removes it. Who uses one holds a lock in it, as do copies of the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX, LOCK = "actorserve-tests-", "lock"
PYTESTS = "PYTEST_DEBUG_TEMPROOT"  # where pytest has folders of its own, which it removes by itself


def take_folder() -> Path:
    """From now on this process and those that it starts use it."""
    parent = Path(tempfile.gettempdir())
    remove_left(parent)
    os.environ.setdefault(PYTESTS, str(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    hold(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def hold(folder: Path) -> int:
    """The descriptor with which it is let go of."""
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return lock


def remove_left(parent: Path) -> None:
    """All that nobody holds."""
    for file in parent.glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError), file.open() as lock:  # it is held, another user's, or has just been removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(file.parent, ignore_errors=True)
