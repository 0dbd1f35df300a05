"""The workers of a machine without a server: their lives, where there is no room for one more process."""

from __future__ import annotations

import errno
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.supervisor.nodes import headless
from actorserve.actors.supervisor.nodes.headless import Keeper
from actorserve.shm.segment import SegmentError


def keeper_of(said: list[str], ended: list[int]) -> Any:
    """One whose server is always there."""
    keeper: Any = Keeper.__new__(Keeper)

    def end(status: int, reason: str) -> None:
        ended.append(status)
        keeper._headless.ended.set()

    system = SimpleNamespace(of_kind=lambda kind: [])
    keeper._headless = SimpleNamespace(
        say=lambda text, level="info": said.append(text),
        end=end,
        ended=threading.Event(),
        system=system,
    )
    keeper.worker = SimpleNamespace(name="worker-1")
    keeper._memory = SimpleNamespace(inherited=[], boot=lambda worker, fd: None)
    keeper._standby = None
    keeper._join = lambda: (socket.socketpair()[0], 1)
    keeper._watch = lambda process, connection: keeper._headless.ended.set()
    return keeper


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "no room"), RuntimeError("no thread")])
def test_a_life_for_which_there_is_no_room_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    said, ended, made, lives = list[str](), list[int](), list[Any](), list[Any]()

    class Standby:
        """There is room for the fourth."""

        process = None

        def __init__(self, *_: object) -> None:
            made.append(self)
            if len(made) < 4:
                raise error

        def become(self, *_: object) -> None:
            lives.append(self)

        def end(self) -> int:
            made.remove(self)
            return 0

    monkeypatch.setattr(headless, "Standby", Standby)
    monkeypatch.setattr(headless, "AGAIN_S", 0.001)
    keeper_of(said, ended).run()
    assert len(lives) == 1 and ended == [] and len(made) == 3, "those that there are, are ended"
    assert sum("cannot be started" in text for text in said) == 2


def test_no_room_in_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    output: Any = SimpleNamespace(say=lambda text, level: said.append(text))

    def no_room(*_: object) -> None:
        raise SegmentError("/dev/shm is full")

    for name in ("find_model", "System", "read_secret"):
        monkeypatch.setattr(headless, name, lambda *_: None)
    monkeypatch.setattr(headless, "Memory", no_room)
    assert headless.launch_headless(Config(), output) == 1
    assert said == ["/dev/shm is full; a smaller --max-num-queued-reqs, --max-num-seqs or --max-model-len needs less"]


def test_one_that_cannot_go_on_ends_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not missed in silence."""
    said, ended = list[str](), list[int]()
    monkeypatch.setattr(headless, "Standby", lambda *_: SimpleNamespace(end=lambda: 0))
    keeper = keeper_of(said, ended)

    def join() -> None:
        raise KeyError("a mistake")

    keeper._join = join
    with pytest.raises(KeyError):
        keeper.run()
    assert ended == [1]
