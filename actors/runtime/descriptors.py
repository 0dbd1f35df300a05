"""How many files a process that holds many connections may have open: the soft limit, often 1,024, is not meant for it;
and bytes of any length as one of them.
"""

from __future__ import annotations

import os
import resource

DESCRIPTORS = 1 << 16  # open files that each process may have: connections and lanes


def raise_limit() -> None:
    """The soft limit, as far as the hard one allows; processes that are started inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def memory_file(content: bytes) -> int:
    """A descriptor to read `content` from: unlike a pipe it takes any length at once, and unlike argv it is private."""
    fd = os.memfd_create("boot", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
    except OSError:
        os.close(fd)
        raise
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
