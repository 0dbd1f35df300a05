"""What a test shows that fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs.original import Imports
from tests.support.server import LAST_LINES, Server


def fail(program: Path, message: str) -> None:
    with Server(program=str(program), wait=False, imports=Imports.PLAIN) as server:
        server.wait()
        raise AssertionError(message)


def test_the_last_that_a_server_has_said(tmp_path: Path) -> None:
    """Where the test has started it; an error that tells it by itself is as it was."""
    program = tmp_path / "says.py"
    program.write_text(f"for number in range({2 * LAST_LINES}):\n    print('line', number, flush=True)\n")
    said = [f"line {number}" for number in range(LAST_LINES, 2 * LAST_LINES)]
    for message, notes in (("wrong", ["\n".join(("The server said:", *said))]), ("\n".join(said), [])):
        with pytest.raises(AssertionError) as failed:
            fail(program, message)
        assert getattr(failed.value, "__notes__", []) == notes
