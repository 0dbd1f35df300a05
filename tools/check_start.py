"""Start ./tools/serve in a folder, send one chat request, stop it, and see that nothing is left. Standard library only.

python tools/check_start.py FOLDER
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

START_S = 900  # with the installation of everything
STOP_S = 60
QUESTION = "What is the capital of France?"
READY = re.compile(r"ready at (http://\S+)")


def main(folder: str) -> None:
    before = shared_memory()
    command = [str(Path(folder) / "tools" / "serve"), "--port", "0"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it runs from what it installed
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env=env)
    try:
        address = wait_until_ready(server)
        print(f"{QUESTION} {ask(address)}")
        group = actors_of(server.pid)
        assert group, "the server has no actors"
        server.send_signal(signal.SIGTERM)
        status = server.wait(STOP_S)
        assert status == 0, f"exit status {status} after SIGTERM"
    finally:
        server.kill()
    left = [pid for pid in group if alive(pid)]
    assert not left, f"processes left: {left}"
    assert shared_memory() <= before, f"left in /dev/shm: {shared_memory() - before}"


def wait_until_ready(server: subprocess.Popen[str]) -> str:
    """Show what the server says until it says that it is ready; then its address."""
    assert server.stdout is not None
    deadline = threading.Timer(START_S, server.kill)
    deadline.start()
    try:
        for line in server.stdout:
            print(line, end="", flush=True)
            if found := READY.search(line):
                return found[1]
    finally:
        deadline.cancel()
    raise AssertionError(f"the server ended before it was ready, status {server.wait()}")


def ask(address: str) -> str:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 32}
    request = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)["choices"][0]["message"]["content"]
    assert isinstance(answer, str) and answer.strip(), f"an empty answer: {answer!r}"
    return answer.strip()


def actors_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))


if __name__ == "__main__":
    main(*sys.argv[1:])
