"""`actorserve completion bash | zsh | tcsh | man`: what a shell completes, and the manual page, made of the parsers."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = """Print what makes a shell complete commands and options, or the manual page.

    actorserve completion bash > ~/.local/share/bash-completion/completions/actorserve
    actorserve completion zsh > "${fpath[1]}/_actorserve"
    actorserve completion man > ~/.local/share/man/man1/actorserve.1"""
SHELLS = ("bash", "zsh", "tcsh")
MANUAL = "man"
MISSING = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("form", choices=(*SHELLS, MANUAL), help="of a shell, or the manual page")


def run(arguments: argparse.Namespace) -> int:
    """0; 1 if the libraries that write it are not installed."""
    try:
        import shtab
        from build_manpages.manpage import Manpage
    except ImportError as error:
        print(f"actorserve: error: {error.name} is missing: pip install 'actorserve[completion]'", file=sys.stderr)
        return MISSING
    parser: argparse.ArgumentParser = arguments.all_commands()
    print(Manpage(parser) if arguments.form == MANUAL else shtab.complete(parser, shell=arguments.form))
    return 0
