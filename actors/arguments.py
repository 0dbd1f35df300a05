"""argparse as all commands use it: mistakes are said in one line, and a wrong name with the right one beside it.

Leaf module: it knows no command and no option.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

USAGE_STATUS = 2


def nearest(name: str, names: Iterable[str], prefix: str = "") -> str:
    """`; did you mean …?` to put behind a message, or nothing where no name is near. All names begin with `prefix`."""
    short = [one.removeprefix(prefix) for one in names]
    found = difflib.get_close_matches(name.removeprefix(prefix), short, n=1, cutoff=0.7)
    return f"; did you mean {prefix}{found[0]}?" if found else ""


class Parser(argparse.ArgumentParser):
    """A command's parser."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """Nothing may be left over: whatever is not known is refused here, by the parser that knows the names."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = next((one for one in unknown if one.startswith("-")), unknown[0]).partition("=")[0]
            if word.startswith("-"):
                self.error(f"{word}: no such option{nearest(word, self._option_string_actions, '--')}")
            self.error(f"{word}: one argument too many")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """One line: the usage of a command with many options would hide it."""
        self.exit(USAGE_STATUS, f"{self.prog}: error: {message} (see {self.prog} --help)\n")
