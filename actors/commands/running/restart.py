"""`actorserve restart frontend|renderer|…|all`: a rolling restart of a running server."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import Any

from ...observer.options import add_server
from ...options.config import ConfigError
from ...protocol.kinds import KINDS, restart_order

WIDTH, INDENT = 114, 12  # columns of what is said of each kind
_TEXT = """Replace actors of a running server one by one, by new ones that run the code as it is on disk now.

No request fails, no stream breaks: what an actor had in hand its successor goes on with, and the next actor's turn
comes when that one is ready. First the new code is imported and compared with the server's memory; if it does not fit,
nothing is touched. A successor that does not come up is replaced by one of the code and options from before (a worker:
of the options), and the restart ends there with status 1; those that were replaced before it stay.

{kinds}

What lays out memory cannot change, nor can the supervisor itself: those need a new start."""
EPILOG = "Interrupting this command does not stop the restart."
FAILED = 1


def _several(name: str) -> str:
    """Actors of a kind; media is several already."""
    return name if name.endswith("a") else f"{name}s"


def _describe_kinds() -> str:
    """What a restart of each kind means, where that is more than of others, and in which order all are replaced."""
    help_texts = {kind.name: kind.restart_help for kind in KINDS.values() if kind.restart_help}
    *first, last_but_one, last = (_several(kind.name) if kind.count else f"the {kind.name}" for kind in restart_order())
    help_texts["all"] = f"{', '.join(first)}, then {last_but_one} and {last}"
    return "\n".join(
        textwrap.fill(text, WIDTH, initial_indent=f"{name:{INDENT}}", subsequent_indent=" " * INDENT)
        for name, text in help_texts.items()
    )


DESCRIPTION = _TEXT.format(kinds=_describe_kinds())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom, and with which options."""
    parser.epilog = EPILOG
    parser.add_argument(
        "what", metavar="KIND|NAME|all", help="a kind of actors, or one actor as `actorserve ps` has it"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of `actorserve launch` that the new ones have otherwise, such as log_level=debug; nothing "
        "behind = is the default. May be given again; a list takes one VALUE from each",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="a YAML file of such options")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 if all are replaced."""
    from ...observer.ask import ANSWER_S, AskError, ask, follow
    from ...observer.attach import AttachError, choose, find_servers
    from ...protocol.sockets.control_wire import RESTART, RESTART_PROGRESS, RestartRequest

    options = _options(arguments)
    try:
        server = choose(find_servers(), *arguments.server)
        begun = ask(server, RESTART, RestartRequest(arguments.what, options), ANSWER_S)
        failed = follow(server, RESTART_PROGRESS, begun.number)
    except (AttachError, AskError) as error:
        failed = str(error)
    except KeyboardInterrupt:
        failed = "interrupted; the restart goes on"
    if failed:
        print(f"actorserve: error: {failed}", file=sys.stderr)
    return FAILED if failed else 0


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    """By field name, as the supervisor takes them; files are named as seen from here."""
    from ...options.sources import read_yaml
    from ..places import Paths

    given = read_yaml(arguments.config) if arguments.config is not None else {}
    texts: dict[str, list[str]] = {}
    for word in arguments.set:
        name, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set: {word} is not of the form OPTION=VALUE")
        texts.setdefault(name.lstrip("-").replace("-", "_"), []).append(text)
    given |= {name: _value(name, values) for name, values in texts.items()}
    paths = Paths()
    return {name: paths.placed(name, value) for name, value in given.items()}


def _value(name: str, texts: list[str]) -> Any:
    """As the environment has it, with its types; ConfigError names the option."""
    from msgspec import inspect

    from ...options.fields import default, option_fields, plain_type
    from ...options.parser import nearest
    from ...options.sources import value_of

    fields = option_fields()
    if name not in fields:
        raise ConfigError(f"--set {name}: there is no such option{nearest(name, fields)}")
    if texts == [""]:
        return default(fields[name])
    values = [value_of(f"--set {name}", fields[name], text) for text in texts if text]
    if isinstance(plain_type(fields[name].type), inspect.ListType):
        return [item for value in values if isinstance(value, list) for item in value]
    return values[-1]
