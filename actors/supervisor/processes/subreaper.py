"""Processes without a parent: the supervisor adopts those of its actors, so that none of them escapes it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Container

PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Descendants whose parent dies become children of this process; OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_orphans(own: Container[int]) -> None:
    """Collect adopted processes that have ended; those in `own` are waited for by others."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or ended.si_pid in own:
            return  # the next look comes by; an own one that is first in line is collected before that
        os.waitpid(ended.si_pid, 0)
