"""`actorserve launch` in a process that may have FAKE_DESCRIPTORS open files, and no more."""

from __future__ import annotations

import os
import resource
import runpy
import sys

if __name__ == "__main__":
    most = int(os.environ["FAKE_DESCRIPTORS"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sys.argv[1:1] = ["launch"]
    runpy.run_module("actorserve", run_name="__main__", alter_sys=True)
