"""--files-dir: may this server write there, and is there anybody who asks for files?"""

from __future__ import annotations

import os
from pathlib import Path

from ..config import Config, ConfigError


def check_files(config: Config) -> None:
    """ConfigError if it cannot be."""
    if config.files_dir is None:
        if config.max_batch_lines is not None:
            raise ConfigError("--max-batch-lines goes with --files-dir, where batches are kept")
        return
    if config.steward is not None or config.headless:
        raise ConfigError("--files-dir: a machine that computes for others serves no clients")
    folder = Path(config.files_dir).expanduser()
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir():
        raise ConfigError(f"--files-dir: {there} is no folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--files-dir: {folder} cannot be written to")
