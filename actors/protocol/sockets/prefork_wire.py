"""What the supervisor asks the process that forks actors, and what that answers: both ends of that wire.

A sequenced-packet socket; each request is one packet, and so is its answer; answers come in the order of requests.
Who is asked for answers by itself before it lets go of the socket, so that the socket's end means that there is nobody.
Requests are written and answers read by supervisor/processes/spawn.py, the others by supervisor/processes/prefork.py.
    FORK              an actor, with the descriptors of `fork_descriptors`; the answer is its process id
    BRANCH and kind   another such process, which does the early imports of that kind, and of modules that are named
                      behind it; beside it come the socket that it serves and its output; the answer is its process id
    CHECK and text    does the process's code fit a server of this fingerprint? A Boot comes beside it as a descriptor;
                      the answer is an exit status, 0 if it does
    LAYOUT            the fingerprint of the process's code is written to the second of two descriptors; the first is of
                      a Boot; the answer is an exit status, 0 if it was written
    PING              is it there? The answer is 0
After a rolling restart the process is of newer code than the supervisor: what stands here never changes its meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FORK, CHECK, PING, BRANCH, LAYOUT = b".", b"?", b"!", b"+", b"#"
REQUEST_BYTES = 256  # of the longest
MOST_DESCRIPTORS = 3
ANSWER_BYTES = 32


class Forked(NamedTuple):
    """What an actor is given as descriptors; a frontend has a channel, too."""

    boot: int
    output: int
    channel: int | None


def fork_descriptors(wanted: Forked) -> list[int]:
    """Those that go with FORK."""
    return [wanted.boot, wanted.output, *([] if wanted.channel is None else [wanted.channel])]


def read_fork_descriptors(descriptors: Sequence[int]) -> Forked:
    """Those that came with FORK."""
    boot, output, *channel = descriptors
    return Forked(boot, output, channel[0] if channel else None)


def ask_check(fingerprint: str) -> bytes:
    """The request of a check."""
    return CHECK + fingerprint.encode()


def read_check(request: bytes) -> str | None:
    """The fingerprint that is asked about; None for another request."""
    return request.removeprefix(CHECK).decode() if request.startswith(CHECK) else None


def ask_branch(kind: str, modules: Sequence[str] = ()) -> bytes:
    """The request of another such process for actors of this kind, which will import these, too."""
    return BRANCH + " ".join((kind, *modules)).encode()


def read_branch(request: bytes) -> list[str] | None:
    """The kind whose process is asked for, and the modules behind it; None for another request."""
    return request.removeprefix(BRANCH).decode().split() if request.startswith(BRANCH) else None


def answer(number: int) -> bytes:
    """A process id or an exit status."""
    return str(number).encode()


def read_answer(message: bytes) -> int:
    return int(message)
