"""What an actor leaves of an error: its variables are told by their types and shapes, whatever they are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from actorserve.actors.runtime import dump


class Unanswered:
    """A question of it is another error."""

    dtype = "float32"

    @property
    def shape(self) -> tuple[int, ...]:
        raise RuntimeError("closed")


def fails(values: object, count: int, text: str) -> None:
    model = SimpleNamespace(dtype="bfloat16", shape=SimpleNamespace(layers=4))  # as models have it
    empty, unanswered = np.zeros(()), Unanswered()
    raise ValueError(f"{values} {count} {text} {model} {empty} {unanswered}")


def test_what_has_another_shape_than_arrays_is_left_out() -> None:
    """A group's member, whose fellow had died, failed of telling this, and not of that."""
    try:
        fails(np.zeros((2, 3), np.int32), 7, "a prompt")
    except ValueError as error:
        *_, last = dump._frames(error)
    assert last.function == "fails"
    assert last.variables == {"values": "int32[2, 3]", "count": "7", "empty": "float64[]"}
