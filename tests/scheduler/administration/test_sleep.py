"""The word of a sleep, and who of those that wait for it is answered when."""

from __future__ import annotations

import mmap

import pytest

from actorserve.actors.scheduler.administration.sleep import SleepControl
from actorserve.shm.kv_map.layout import HEADER_BYTES
from actorserve.shm.kv_map.sleep import Part, SleepState, SleepWord


def new_word() -> SleepWord:
    return SleepWord(mmap.mmap(-1, HEADER_BYTES), 0)


@pytest.mark.parametrize(
    "state",
    [
        SleepState(),
        SleepState(1, Part.ALL, False, True, 86_400),
        SleepState(2, Part.KV, False, False, 300),
        SleepState(2, Part.NONE, True, True, 1),
        SleepState(1, Part.ALL, False, False, (1 << 32) - 1, True),
    ],
)
def test_a_state_is_one_word(state: SleepState) -> None:
    word = new_word()
    assert word.state == SleepState() and not word.state.is_on
    word.state = state
    assert word.state == state and (word.since_ns > 0) == state.is_on


def test_when_it_began_stays() -> None:
    word = new_word()
    word.state = SleepState(1, draining=True)
    began = word.since_ns
    word.state = SleepState(1, Part.ALL)
    word.state = SleepState(1, Part.KV)
    assert word.since_ns == began


def test_a_sleep_is_answered_once_all_members_are_parked_and_a_waking_once_there_is_a_worker() -> None:
    control = SleepControl(new_word())
    control.fall_asleep(SleepState(1), [11])
    assert control.is_asleep and control.answers(2, has_worker=True) == []
    control.parked.add(0)
    assert control.answers(2, has_worker=False) == []
    control.parked.add(1)
    assert control.answers(2, has_worker=False) == [11] and not control.answers(2, has_worker=False)
    control.fall_asleep(SleepState(1), [12])
    assert control.answers(2, has_worker=False) == [12], "they are parked already"
    control.fall_asleep(SleepState(2), [13])
    assert control.answers(2, has_worker=False) == [], "more is to be given back"
    control.wake(Part.KV, 21)
    assert control.answers(2, has_worker=False) == [21] and control.state.is_parked
    control.wake(Part.WEIGHTS, 22)
    assert control.state == SleepState()
    assert control.answers(2, has_worker=False) == [13], "it is woken before it slept"
    assert control.answers(2, has_worker=True) == [22]


def test_a_successor_drains_on_and_a_call_that_comes_again_is_answered_once() -> None:
    word = new_word()
    first = SleepControl(word)
    first.drain(11, SleepState(2, refuses=True))
    second = SleepControl(word)
    assert second.state == SleepState(2, Part.NONE, True, True)
    second.drain(11, SleepState(2, refuses=True))
    second.drain(11, SleepState(2, refuses=True))
    assert not second.drained(lambda: False) and second.drained(lambda: True)
    second.fall_asleep(second.state)
    second.parked.add(0)
    assert second.state == SleepState(2, Part.ALL, False, True) and second.answers(1, has_worker=False) == [11]
