"""The files of a batch's answers: what is held of them."""

from __future__ import annotations

import sys
from pathlib import Path

from actorserve.actors.batcher.output import Output
from actorserve.actors.files.lines import answer_line

MANY, LONG = 100, "é" * 500


def test_long_names_are_not_held(tmp_path: Path) -> None:
    """A batch may have a million, and many run at once."""
    output = Output([tmp_path / "output", tmp_path / "errors"], dict)
    names = [f"{LONG}{number % MANY}" for number in range(2 * MANY)]
    output.add(*(answer_line(name, {"status_code": 200}, None) for name in names))
    assert len(output.done) == MANY and sum(map(sys.getsizeof, output.done)) < MANY * len(LONG) // 4
    output.close()
    again = Output([tmp_path / "output", tmp_path / "errors"], dict)
    again.take_over()
    assert again.done == output.done
    again.close()
