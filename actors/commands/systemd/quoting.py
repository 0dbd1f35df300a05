"""How words are written in systemd's unit files (systemd.syntax(7), systemd.service(5)): nothing in them may be read as
a specifier, a variable, a quote or a space.
"""

from __future__ import annotations

import re

PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+-]+")
ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\t": r"\t", "\r": r"\r"}


def word(text: str) -> str:
    """One word of a setting: % is a specifier."""
    doubled = text.replace("%", "%%")
    if PLAIN.fullmatch(text):
        return doubled
    return '"' + "".join(ESCAPES.get(letter, letter) for letter in doubled) + '"'


def line(text: str) -> str:
    """The whole of a setting that is for people."""
    return " ".join(text.split()).replace("%", "%%")


def argument(text: str) -> str:
    """One word of a command line: $ begins a variable there, too."""
    return word(text).replace("$", "$$")


def path(text: str) -> str:
    """A path where a colon would begin another one: within quotes it does not."""
    quoted = word(text)
    return f'"{quoted}"' if ":" in text and not quoted.startswith('"') else quoted
