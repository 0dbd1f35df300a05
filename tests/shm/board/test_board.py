"""The board: what anyone may read about an actor, and whose words count."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from actorserve.shm.board import board as module
from actorserve.shm.board.board import GAUGES, ActorState, Board, BoardWriter, Order, board_bytes
from actorserve.shm.segment import Segment

from ..aborting import every_state

ACTORS = 3


def new_board() -> Board:
    return Board(Segment.create(64 + board_bytes(ACTORS), "test"), 64, ACTORS)


def test_nobody_has_said_anything() -> None:
    board = new_board()
    snapshot = board.snapshot(0)
    assert snapshot.state is ActorState.STARTING and snapshot.incarnation == snapshot.pid == snapshot.heartbeat_ns == 0
    assert not board.is_ready(0) and board.gauges(0) == [0] * GAUGES


def test_an_actor_speaks() -> None:
    board = new_board()
    before = time.monotonic_ns()
    board.set_incarnation(1, 5)
    writer = BoardWriter(board, 1)
    for state in ActorState:
        writer.set_state(state)
        snapshot = board.snapshot(1)
        assert snapshot.state is state and board.is_ready(1) == (state is ActorState.READY)
    assert snapshot.incarnation == board.incarnation(1) == 5 and snapshot.pid == os.getpid()
    assert before <= snapshot.started_ns <= snapshot.heartbeat_ns <= time.monotonic_ns()
    writer.beat()
    assert board.snapshot(1).heartbeat_ns > snapshot.heartbeat_ns
    assert [board.snapshot(other).pid for other in (0, 2)] == [0, 0]


def test_an_order_says_how_many_requests_are_left() -> None:
    board = new_board()
    board.set_order(1, Order.GIVE_UP, 3)
    assert board.order(1) is Order.GIVE_UP and board.left(1) == 3
    assert board.order(0) is Order.NONE and board.left(0) == 0


def test_gauges() -> None:
    board = new_board()
    writers = [BoardWriter(board, index) for index in range(ACTORS)]
    for index, writer in enumerate(writers):
        for number in range(GAUGES):
            writer.set_gauge(number, 100 * index + number)
    writers[1].add(3, 7)
    writers[1].add(3, -2)
    for index in range(ACTORS):
        expected = [100 * index + number + (5 if (index, number) == (1, 3) else 0) for number in range(GAUGES)]
        assert board.gauges(index) == expected == [board.gauge(index, number) for number in range(GAUGES)]


def test_the_dead_do_not_speak() -> None:
    board = new_board()
    board.set_incarnation(0, 1)
    writer = BoardWriter(board, 0, 1)
    writer.set_state(ActorState.READY)
    writer.set_gauge(0, 9)
    board.set_incarnation(0, 2)
    assert board.snapshot(0).state is ActorState.STARTING and board.snapshot(0).pid == 0
    writer.set_state(ActorState.READY)
    assert not board.is_ready(0), "a late word of the dead"
    successor = BoardWriter(board, 0, 2)
    assert board.snapshot(0).state is ActorState.STARTING and board.gauges(0) == [0] * GAUGES
    successor.set_state(ActorState.READY)
    assert board.is_ready(0)


def test_a_successor_that_dies_while_it_takes_over_is_not_ready() -> None:
    def replaced() -> Board:
        board = new_board()
        board.set_incarnation(0, 1)
        BoardWriter(board, 0).set_state(ActorState.READY)
        board.set_incarnation(0, 2)
        return board

    def taking_over(board: Board) -> Callable[[], object]:
        return lambda: BoardWriter(board, 0)

    def survives(board: Board) -> list[int]:
        return list(board.words)

    for board, was_aborted in every_state(replaced, taking_over, (module,), survives, 2):
        assert not board.is_ready(0) and board.snapshot(0).pid in ((0, os.getpid()) if was_aborted else (os.getpid(),))


@pytest.mark.parametrize("index", [-1, ACTORS])
def test_actors_that_are_not_there(index: int) -> None:
    board = new_board()
    for use in (board.snapshot, board.gauges, board.incarnation, lambda i: BoardWriter(board, i)):
        with pytest.raises(IndexError):
            use(index)


@pytest.mark.parametrize("number", [-1, GAUGES])
def test_gauges_that_are_not_there(number: int) -> None:
    board = new_board()
    writer = BoardWriter(board, 0)
    for use in (lambda: board.gauge(0, number), lambda: writer.set_gauge(number, 1), lambda: writer.add(number, 1)):
        with pytest.raises(IndexError):
            use()


def test_places_that_cannot_be() -> None:
    segment = Segment.create(64 + board_bytes(ACTORS), "test")
    for offset, actors in ((8, 1), (64, 100), (-64, 1)):
        with pytest.raises(ValueError, match=f"no board of {actors} actors can lie at {offset} "):
            Board(segment, offset, actors)


def test_a_successor_goes_on_counting() -> None:
    board = new_board()
    for number, value in enumerate((5, 6, 7)):
        BoardWriter(board, 0, 1, kept={0, 1, 2}).set_gauge(number, value)
    BoardWriter(board, 0, 2, kept={0, 2})
    assert board.gauges(0) == [5, 0, 7] + [0] * (GAUGES - 3)


def test_a_life_that_ended_to_be_replaced_is_no_death() -> None:
    board = new_board()
    lives = [(1, False), (2, True), (3, False), (4, True)]
    for life, renewed in lives:
        board.set_renewals(0, life, board.renewals(0, life - 1) + renewed)
        assert board.snapshot(0).restarts == max(0, life - 2 - sum(one for _, one in lives[: life - 1])), "not yet"
        board.set_incarnation(0, life)
    seen = board.snapshot(0)
    assert (seen.incarnation, seen.renewals, seen.restarts) == (4, 2, 1)
    assert board.snapshot(1).restarts == 0
