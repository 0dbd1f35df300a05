"""`actorserve scale N`: a running server gets more engines, or fewer."""

from __future__ import annotations

import argparse
import sys

from ...observer.options import add_server

DESCRIPTION = """Change how many engines a running server has, between 1 and --max-data-parallel-size of its start.

No request fails, no stream breaks. Engines that are added load the model while the others serve, and get requests when
they are ready; one that does not come up stays parked, and the status is 1. Those that are taken away are the ones with
the highest numbers: what runs there goes on in others at once, then their workers end and give their memory back."""
EPILOG = "Interrupting this command does not stop it."
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How many, and of which server."""
    parser.epilog = EPILOG
    parser.add_argument("engines", metavar="N", type=int, help="engines that are to run")
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 if so many serve."""
    from ...observer.ask import ANSWER_S, AskError, ask, follow
    from ...observer.attach import AttachError, choose, find_servers
    from ...protocol.sockets.control_wire import SCALE, SCALE_PROGRESS, ScaleRequest

    try:
        server = choose(find_servers(), *arguments.server)
        begun = ask(server, SCALE, ScaleRequest(arguments.engines), ANSWER_S)
        if failed := follow(server, SCALE_PROGRESS, begun.number):
            print(f"actorserve: error: {failed}", file=sys.stderr)
            return FAILED
    except (AttachError, AskError) as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("actorserve: error: interrupted; it goes on", file=sys.stderr)
        return FAILED
    before = "as before" if begun.before == arguments.engines else f"{begun.before} before"
    print(f"the server on {server} has {arguments.engines} engine{'s' * (arguments.engines > 1)} now, {before}")
    return 0
