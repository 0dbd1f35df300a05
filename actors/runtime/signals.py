"""Signals of a process that another has started: the death of that one ends it; what comes to all is not for it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
UNUSED = (  # signals that mean nothing here, and would end a process that does not say so
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT),
)


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """From now on the kernel sends this when its parent dies, also by kill -9. May be called between fork and exec."""
    if _libc.prctl(PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def die_with_supervisor(pid: int) -> None:
    """The kernel kills this process when its supervisor dies; a death before this line counts too."""
    die_with_parent()
    if os.getppid() != pid:
        sys.exit("the supervisor is gone")


def leave_signals_to_supervisor() -> None:
    """What may reach all processes at once, as Ctrl-C does, is for the supervisor, which ends actors by SIGTERM."""
    for number in (signal.SIGINT, signal.SIGHUP, *UNUSED):
        signal.signal(number, signal.SIG_IGN)


class InjectedFault(BaseException):
    """No handler of an error in one request may take it for one."""


def fail_on_purpose(number: int, frame: object) -> None:
    """With --debug: an exception at whatever line the actor is, for those who test what happens then."""
    raise InjectedFault("an exception was injected (SIGUSR1)")
