"""The limit of open files of a process that holds many connections: the soft one, often 1,024, is not meant for it."""

from __future__ import annotations

import resource

DESCRIPTORS = 1 << 16  # open files that each process may have: connections and lanes


def raise_limit() -> None:
    """The soft limit, as far as the hard one allows; processes that are started inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
