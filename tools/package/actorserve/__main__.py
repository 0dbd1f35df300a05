"""`actorserve`, and `python -m actorserve`: the command line."""

import sys

INTERRUPTED_STATUS = 130  # as of who dies by SIGINT


def start() -> int:
    """The exit status. A Ctrl-C is also heard while the command line is imported."""
    try:
        from actorserve.actors.cli import main

        return main()
    except KeyboardInterrupt:
        return INTERRUPTED_STATUS


if __name__ == "__main__":
    sys.exit(start())
