"""Servers whose actors are played, for all tests of the supervisor's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorserve.actors.supervisor.recovery import REST_S
from actorserve.actors.supervisor.timeouts import STOP_S
from tests.support.models.checkpoints import write_shape
from tests.support.server import Server

from .launches import COMMAND, Launch


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Start a server whose actors live as `lives` says."""
    model = write_shape(tmp_path)

    def start(
        *arguments: str,
        folder: Path | None = None,
        lives: dict[str, list[str]] | None = None,
        before: tuple[str, ...] = (),
        wait: bool = True,
        stop_s: float = STOP_S,
        rest_s: float = REST_S,
    ) -> Server:
        small = ("--max-num-seqs", "2", "--max-num-queued-reqs", "2")
        env = {
            "FAKE_ACTORS": json.dumps(lives or {}),
            "FAKE_DRAINED": str(tmp_path / "drained"),
            "FAKE_STOP_S": str(stop_s),
            "FAKE_REST_S": str(rest_s),
            "FAKE_MISSING": str(tmp_path / "missing"),
        }
        given = model if folder is None else (str(folder), "--worker", "scripted")
        command = (*before, *COMMAND) if before else None
        return Server(*given, *small, *arguments, command=command, program=COMMAND[1], env=env, wait=wait)

    return start
