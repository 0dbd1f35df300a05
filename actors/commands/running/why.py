"""`actorserve why`: where a request is, and what it waits for."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from ...observer.options import Place, add_server
from ...options.config import ConfigError

if TYPE_CHECKING:
    from ...observer.why.explanation import Explanation

DESCRIPTION = """Say where a request is, how long it was in each stage, what it waits for, and which deaths it survived.

REQUEST_ID is what the client was given (chatcmpl-…, cmpl-…, resp_…, msg_…, X-Request-Id), or the slot that --list
shows. A request that has ended is found until its slot is used again. Everything is read from the server's shared
memory: it works whoever hangs or is stopped. With --dump FILE: what an actor was doing when a step of it failed."""
UNKNOWN = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which request, in which form."""
    parser.add_argument("request", nargs="?", metavar="REQUEST_ID", help="of the request")
    parser.add_argument("--list", action="store_true", help="all requests that have not ended, one line each")
    parser.add_argument("--dump", metavar="FILE", help="what an actor left there when it failed (--dump-dir)")
    parser.add_argument("--json", action="store_true", help="a list of choices, with all that is known")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print it; 1 if there is no such request, or no server."""
    if arguments.dump is not None:
        return _print_dump(arguments)
    if (arguments.request is None) != arguments.list:
        raise ConfigError("why: name a request, or give --list for all, or --dump FILE")
    from ...observer.attach import AttachError

    try:
        found = _look(arguments.server, arguments.request)
    except AttachError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return UNKNOWN
    if not found and not arguments.list:
        print(f"actorserve: error: no request {arguments.request!r} is known: --list shows those that run; ended ones "
              "are forgotten when their slot is used again", file=sys.stderr)  # fmt: skip
        return UNKNOWN
    _print(found, arguments)
    return 0


def _print_dump(arguments: argparse.Namespace) -> int:
    from ...observer.dump_text import describe_dump, read_dump

    dump = read_dump(arguments.dump)
    if arguments.json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(dump), indent=2) + b"\n")
    else:
        print(describe_dump(dump))
    return 0


def _look(server: Place, name: str | None) -> list[Explanation]:
    """About the request of this name, or about all that have not ended."""
    from ...observer.attach import attach
    from ...observer.requests import Requests
    from ...observer.why.explanation import explain
    from ...observer.why.scene import take_scene

    attached = attach(*server)
    requests = Requests(attached)
    scene = take_scene(attached.system, attached.look(), requests.all())
    chosen = scene.everything if name is None else requests.find(name, scene.everything)
    answers = [explain(scene, facts) for facts in chosen]
    return [answer for answer in answers if name is not None or answer.where != "ended"]


def _print(found: list[Explanation], arguments: argparse.Namespace) -> None:
    from ...observer.why.text import HEAD, describe, one_line

    if arguments.json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    elif arguments.list:
        print("\n".join([HEAD, *map(one_line, found)]))
    else:
        print("\n\n".join(map(describe, found)))
