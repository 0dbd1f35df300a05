"""The command line: `actorserve launch [MODEL] [options]`.

It reads options and hands a Config on; nothing heavy is imported before a command is known.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import actorserve

from .config import ConfigError
from .options import add_options, read_config

USAGE_STATUS = 2  # as argparse has it: the command line or a file that it names cannot be


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("actorserve", description="A large-language-model server over the OpenAI API.")
    parser.add_argument("--version", action="version", version=f"actorserve {actorserve.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    launch = commands.add_parser(
        "launch",
        help="serve a model",
        description="Serve a model over the OpenAI API; without MODEL, the small one that is packaged.",
        allow_abbrev=False,
    )
    add_options(launch)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    parser = make_parser()
    arguments = parser.parse_args(argv)
    try:
        config = read_config(arguments)
    except ConfigError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return USAGE_STATUS
    from .supervisor.launch import launch

    return launch(config)
