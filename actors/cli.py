"""The command line: `actorserve COMMAND …`. Each command is a module of `commands/`, imported only if asked for.

Such a module has a DESCRIPTION, `add_arguments(parser)` and `run(arguments)`, which returns the exit status. A
ConfigError from it is a mistake in the command line.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import select
import sys
from collections.abc import Sequence
from functools import partial

import actorserve

from .options.config import ConfigError
from .options.parser import Parser

COMMANDS = {  # name: what `actorserve --help` says of it
    "launch": "serve a model",
    "engine": "compute on this machine for servers on others",
    "run": "start a server and chat with it in the terminal",
    "chat": "chat in the terminal with a running server",
    "complete": "let a running server write on where a text ends",
    "route": "send requests to several servers, and go on elsewhere when one dies",
    "run-batch": "answer a file of requests in OpenAI's batch format",
    "systemd-unit": "print a unit that runs the server under systemd",
    "check": "say what would be loaded and how much fits, without starting",
    "ps": "list the actors of a running server",
    "top": "show what a running server does, live",
    "why": "say where a request is, and what it waits for",
    "trace": "write what the actors did last, for a trace viewer",
    "restart": "replace actors of a running server by new ones, and fail no request",
    "scale": "change how many engines a running server has, and fail no request",
    "drain": "let running requests end, then end the server",
    "replay": "run the scheduler again on what --record has kept, or another policy on it",
    "bench": "measure a server",
    "models": "list, download and remove models in the hub's cache",
    "collect-env": "say what a report of a fault should say of this machine",
    "completion": "print what makes a shell complete commands, or the manual page",
}
EVERY = "*"
FOLDERS = {  # of those modules of commands that have one
    "running": ("ps", "top", "why", "trace", "restart", "scale", "drain"),  # what is asked of a running server
    "clients": ("run", "chat", "complete", "run-batch"),  # what sends requests to one
}
UNREAD_STATUS = 1
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of a disk, or a terminal that has gone
INTERRUPTED_STATUS = 130  # as of who dies by SIGINT
SERVERS = ("launch", "serve", "engine", "route")  # which write more than what they print
OTHER_NAMES = {"serve": "launch"}  # as other servers have them


def make_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser of all commands, of which only the one named `command` knows its arguments; all, if that is EVERY."""
    parser = Parser("actorserve", description="A large-language-model server over the OpenAI API.")
    parser.add_argument("--version", action="version", version=f"actorserve {actorserve.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        others = [other for other, named in OTHER_NAMES.items() if named == name]
        own = commands.add_parser(name, help=help_text, allow_abbrev=False, aliases=others)
        if command == EVERY or name == OTHER_NAMES.get(command or "", command):
            module = importlib.import_module(_module_of(name), __package__)
            own.description = module.DESCRIPTION
            own.formatter_class = argparse.RawDescriptionHelpFormatter
            own.set_defaults(run=module.run)
            module.add_arguments(own)
            if name == "completion":
                own.set_defaults(all_commands=partial(make_parser, EVERY))
    return parser


def _module_of(command: str) -> str:
    folder = next((f"{folder}." for folder, commands in FOLDERS.items() if command in commands), "")
    return f".commands.{folder}{command.replace('-', '_')}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    _open_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if not word.startswith("-")), None)
    try:
        arguments = make_parser(command).parse_args(words)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:  # where a command does not hear it itself, it has nothing to say
        return INTERRUPTED_STATUS
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        _write_nowhere()
        return UNREAD_STATUS
    except OSError as error:
        if error.errno not in FULL or error.filename is not None or command in SERVERS:
            raise
        _write_nowhere()
        print(f"actorserve: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        return UNREAD_STATUS
    return status


def _open_streams() -> None:
    """Those that whoever started this has closed (`>&-`): files that are opened later would take their numbers, and
    get what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _write_nowhere() -> None:
    """What is still to be written at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nobody_reads() -> bool:
    """Is standard output a pipe whose reader has gone, as under `| head`?"""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
