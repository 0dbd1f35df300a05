"""What each of these tools says to --help, and its status, by forks of one process that has imported what they do."""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import tempfile
import traceback


def ask(tool: str) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+") as said:
        if not (child := os.fork()):
            for standard in (1, 2):
                os.dup2(said.fileno(), standard)
            sys.argv, sys.path[0], status = [tool, "--help"], os.path.dirname(tool), 1
            try:
                runpy.run_path(tool, run_name="__main__")
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                traceback.print_exc()
            print(end="", flush=True)
            os._exit(status)  # to take down what torch has brought takes longer than all else
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return status, said.read()


if __name__ == "__main__":
    gc.freeze()
    sys.stdout.write(json.dumps({tool: ask(tool) for tool in sys.argv[1:]}))
