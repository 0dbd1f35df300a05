"""The machine's C compiler: which it is, and how it is run. Knows nothing of what is compiled."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPILE_SECONDS = 600.0  # one file takes up to 16 s of a core, on which others may compute, too
COMPILERS = ("cc", "gcc", "clang")
FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))  # how an error says that there is no room


class NativeError(Exception):
    """Why there are no kernels of our own."""


class CompilerMissingError(NativeError):
    """There is none."""


class CompilerError(NativeError):
    """The compiler does not take the sources: it, or its assembler, may be older than what the processor can do."""


def find_compiler() -> list[str]:
    """The words of $CC, or what the machine has."""
    given = os.environ.get("CC", "").strip()
    try:
        commands = [[given], shlex.split(given)] if given else [[name] for name in COMPILERS]
    except ValueError as error:
        raise NativeError(f"CC={given}: {error}") from None
    for name, *words in commands:
        if found := shutil.which(name):
            return [found, *words]
    raise CompilerMissingError(f"there is no C compiler ({given or ', '.join(COMPILERS)})")


def identity(compiler: Sequence[str]) -> list[str]:
    """What is otherwise where another one would compile: its words, and the states of programs among them."""
    found = []
    for word in compiler:
        found.append(word)
        if program := shutil.which(word):  # behind ccache there is another one
            state = Path(program).resolve().stat()
            found += [str(state.st_size), str(state.st_mtime_ns)]
    return found


def run(command: list[str], seconds: float = COMPILE_SECONDS) -> None:
    """Let it compile; NativeError, or OSError where there is no room for what it makes."""
    compiler, setting = command[0], {**os.environ, "LC_ALL": "C"}  # its words are searched
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=seconds, env=setting)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip().splitlines()
        if full := next((line for line in words for sign in FULL if sign in line), ""):
            raise OSError(full) from None
        said = next((line for line in words if "error" in line.lower()), "no word why")
        raise CompilerError(f"{compiler} fails: {said}") from None
    except subprocess.TimeoutExpired:
        raise NativeError(f"{compiler} took more than {seconds:g} s") from None
    except OSError as error:
        raise NativeError(f"{compiler} cannot be run: {error.strerror}") from None
