"""A process that has done a worker's imports, and waits to be one: so the next life on a machine without a template
begins at once. Its supervisor (supervisor/nodes/headless.py) sends the connection over the socket that is named on the
command line, and then the Boot on standard input, as every actor gets it. If that socket ends, it was not needed.
"""

from __future__ import annotations

import socket
import sys

from ....runtime.process import live
from ...imports import import_early


def main() -> None:
    """Wait, and become the worker."""
    import_early()
    with socket.socket(fileno=int(sys.argv[1])) as control:
        _, fds, _, _ = socket.recv_fds(control, 1, 1)
    if fds:
        live(channel=fds[0])


if __name__ == "__main__":
    main()
