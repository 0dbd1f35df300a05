"""tokenizer.json and chat templates: whether they are there and can be read. What they mean others know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...options.config import ConfigError

LARGEST_TEMPLATE = 4 << 20  # bytes


def check_tokenizer(folder: Path) -> Path:
    """tokenizer.json, which is there and whole as far as its two ends tell: it may have tens of megabytes."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"--tokenizer: {path} is missing")
    try:
        with path.open("rb") as file:
            begin = file.read(64).lstrip()
            file.seek(max(0, path.stat().st_size - 64), os.SEEK_SET)
            end = file.read().rstrip()
    except OSError as error:
        raise ConfigError(f"--tokenizer: {path} cannot be read: {error.strerror}") from None
    if not begin.startswith(b"{") or not end.endswith(b"}"):
        raise ConfigError(f"--tokenizer: {path} is no JSON object, or cut off")
    return path


def read_template(path: Path, option: str = "model") -> str:
    """The text of a template."""
    try:
        if path.stat().st_size > LARGEST_TEMPLATE:
            raise ConfigError(f"{option}: {path} has more than {LARGEST_TEMPLATE:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error}") from None


def named_templates(given: Any, file: Path) -> dict[str, str]:
    """`chat_template` of tokenizer_config.json: a text, or a list of names and texts."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, list):
        pairs = [(entry.get("name"), entry.get("template")) for entry in given if isinstance(entry, dict)]
        texts = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
        if len(texts) == len(given):
            return texts
    raise ConfigError(f"model: {file}: chat_template is neither a text nor a list of objects with name and template")
