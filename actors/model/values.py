"""JSON files of a model's folder, and their values with the types that are needed. ConfigError names file and field.

Leaf module: such files come from strangers, so that nothing in them is taken for what it should be.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..options.config import ConfigError

LARGEST = 64 << 20  # bytes of a file; an index of a large model has some 10 MB
MOST = (1 << 31) - 1  # of a number for which no other bound is known
SHOWN = 60  # characters of a wrong value


def read_json(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object from a file. ConfigError names the file that is missing or broken."""
    try:
        if not path.exists():
            if missing_ok:
                return {}
            raise ConfigError(f"{path} is missing")
        if not path.is_file():
            raise ConfigError(f"{path} is no file")
        if (size := path.stat().st_size) > LARGEST:
            raise ConfigError(f"{path} has {size:,} bytes; at most {LARGEST:,} are read")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be read: its lists and objects are nested too deeply") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return values


class Unsupported(ConfigError):
    """The layers of this server cannot be made to compute a model: those of transformers may."""


class Values:
    """An object of a JSON file; null is as if the key was not there."""

    def __init__(self, file: Path | str, values: dict[str, Any], hint: str = "") -> None:
        """`hint` is added to what is said of a wrong value."""
        self.file = file
        self.values = values
        self.hint = hint

    def __getitem__(self, key: str) -> Any:
        return self.values.get(key)

    def wrong(self, key: str, needed: str) -> ConfigError:
        """What is said of a value that cannot be."""
        shown = repr(self[key])
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        return ConfigError(f"model: {self.file} says {key} = {shown}; {needed} is needed{self.hint}")

    def whole(self, key: str, least: int = 1, most: int = MOST) -> int | None:
        """A whole number, None if there is none."""
        given = self[key]
        value: int | None = int(given) if isinstance(given, float) and given.is_integer() else given
        if value is not None and not (_is_number(value, int) and least <= value <= most):
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def needed(self, key: str, most: int = MOST) -> int:
        """A whole number above 0 that must be there."""
        value = self.whole(key, 1, most)
        if value is None:
            raise self.wrong(key, f"a whole number from 1 to {most}")
        return value

    def real(self, key: str, least: float, most: float, above: bool = False) -> float | None:
        """A finite number in [least, most], or with `above` in (least, most]; None if there is none."""
        value = self[key]
        if value is None:
            return None
        inside = _is_number(value, int | float) and least <= value <= most  # NaN is not
        if not inside or (above and value == least):
            bounds = f"above {least:g} and up to {most:g}" if above else f"from {least:g} to {most:g}"
            raise self.wrong(key, f"a number {bounds}")
        return float(value)

    def reals(self, key: str, count: int, most: float) -> tuple[float, ...]:
        """A list of so many numbers above 0, which must be there."""
        value = self[key]
        fits = isinstance(value, list) and len(value) == count
        if not fits or not all(_is_number(number, int | float) and 0 < number <= most for number in value):
            raise self.wrong(key, f"a list of {count} numbers above 0 and up to {most:g}")
        return tuple(float(number) for number in value)

    def flag(self, key: str, absent: bool = False) -> bool:
        """true or false."""
        value = self[key]
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return absent if value is None else value

    def text(self, key: str) -> str | None:
        """A text, None if there is none."""
        value = self[key]
        if value is not None and not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, or of lists of them; empty if there is none."""
        value = self[key] if self[key] is not None else []
        parts = value if isinstance(value, list) else [value]
        flat = [text for part in parts for text in (part if isinstance(part, list) else [part])]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in flat):
            raise self.wrong(key, "a list of texts")
        return tuple(flat)

    def object(self, key: str) -> Values | None:
        """An object in this one, None if there is none or it is empty."""
        value = self[key]
        if value is not None and not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return Values(f"{self.file}, {key}", value) if value else None


def _is_number(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
