"""One engine on a machine of a Ray cluster: a Ray actor that has `actorserve engine` for a child.

Ray starts it, also again on another machine, and carries nothing else. Three things that Ray does not do:
    an actor outlives its raylet      the kernel ends it with that (PR_SET_PDEATHSIG), and the child with it
    two may live at once              each life has an id and a port of its own, by which it is known
    nobody ends a detached one        if its caretaker has not asked for LEASE_S, it ends itself and gives its place
                                      back
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import IO

from ..runtime.signals import die_with_parent

READY = re.compile(rb"ready at engine://\S*:(\d+)")
LEASE_S = 60.0
STOP_S = 20.0
MOST_LINES = 20  # of its output, for who asks why it is not there


class Engine:
    """What the caretaker asks is how it is."""

    def __init__(self, words: list[str], secret: str, options: str) -> None:
        """`words` of the command line; `options`: by what they are told from others."""
        import ray

        die_with_parent()
        self._host = ray.util.get_node_ip_address()
        self._id, self._options = secrets.token_hex(8), options
        self._asked = time.monotonic()
        self._port = 0
        self._lines: list[str] = []
        env = os.environ | ({"ACTORSERVE_ENGINE_SECRET": secret} if secret else {})
        command = [sys.executable, "-P", "-m", "actorserve", "engine", *words, "--steward", "0.0.0.0:0"]
        # the thread that starts it lives as long as this process does, so that the child ends with it and not before
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=self._live, args=(command, env, started), daemon=True).start()
        self._child = started.result()

    def _live(self, command: list[str], env: dict[str, str], started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            child = subprocess.Popen(
                command,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            started.set_exception(error)  # Ray tells it, and tries again
            return
        started.set_result(child)
        assert child.stdout is not None
        self._read(child.stdout)
        child.wait()

    def _read(self, lines: IO[bytes]) -> None:
        threading.Thread(target=self._look, daemon=True).start()
        for line in lines:
            if found := READY.search(line):
                self._port = int(found[1])
            self._lines = [*self._lines[1 - MOST_LINES :], line.decode(errors="replace").rstrip()]

    def state(self) -> dict[str, str | int]:
        """Which life it is, where it listens once it computes, and what it said last."""
        self._asked = time.monotonic()
        if self._child.poll() is not None:
            os._exit(1)  # Ray starts another one
        return {
            "id": self._id,
            "options": self._options,
            "host": self._host,
            "port": self._port,
            "pid": self._child.pid,
            "said": self._lines[-1] if self._lines else "",
        }

    def end(self) -> None:
        """In order."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(STOP_S)

    def retire(self) -> None:
        """End for good, and give the place back."""
        import ray

        self._asked = math.inf
        self.end()
        if (place := ray.util.get_current_placement_group()) is not None:
            ray.util.remove_placement_group(place)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _look(self) -> None:
        """Is there anybody who wants it?"""
        while time.monotonic() < self._asked + LEASE_S:
            time.sleep(1.0)  # nobody tells that he is gone
        self.retire()
