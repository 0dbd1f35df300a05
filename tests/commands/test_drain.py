"""`actorserve drain` where it asks nobody."""

from __future__ import annotations

import pytest

from actorserve.actors.cli import main


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_times_that_are_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They would be told as no time at all, and the server's own taken."""
    assert main(["drain", f"--timeout={seconds}"]) == 2
    assert "--timeout: a number of seconds, 0 or more" in capsys.readouterr().err
