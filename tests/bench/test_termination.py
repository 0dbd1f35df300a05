"""SIGTERM ends the bench also where Python discards what a handler raises."""

from __future__ import annotations

import signal
import sys
import threading
import weakref

import pytest

from actorserve.actors.bench.termination import Terminated, heard


class Thing:
    pass


class Finalized:
    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_termination_is_an_exit() -> None:
    with pytest.raises(Terminated) as found, heard():
        signal.raise_signal(signal.SIGTERM)
    assert found.value.code == 128 + signal.SIGTERM


def test_a_termination_inside_a_finalizer_is_raised_again() -> None:
    def finalize() -> None:
        with heard():
            one = Finalized()
            del one
            threading.Event().wait(60)

    with pytest.raises(Terminated):
        finalize()


def test_a_termination_inside_a_callback_is_raised_again() -> None:
    def call_back() -> None:
        with heard():
            thing = Thing()
            reference = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
            del thing
            assert reference() is None
            threading.Event().wait(60)

    with pytest.raises(Terminated):
        call_back()


def test_what_was_there_is_there_again() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM), sys.unraisablehook
    with heard():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM), sys.unraisablehook) == before
