"""The wire between supervisor and frontend: its bytes, and that each end reads what the other writes."""

from __future__ import annotations

import socket

import pytest

from actorserve.actors.protocol.sockets.connection_handover import (
    CLOSED,
    GIVEN_BYTES,
    HANDED_BYTES,
    MOST_ASKED,
    MOST_GIVEN,
    NOT_TAKEN,
    RESERVED,
    RESUMED,
    CloseIdle,
    Handed,
    close_idle,
    give_back,
    hand_over,
    moved_to,
    owner,
    read_given,
    read_handed,
    reset_when_closed,
)


def test_a_connection() -> None:
    message = hand_over(0x01020304, RESUMED | RESERVED)
    assert message == bytes.fromhex("04030201 03000000")
    assert read_handed(message) == Handed(0x01020304, RESUMED | RESERVED)


def test_numbers_of_which_some_are_to_be_closed() -> None:
    message = close_idle(2, [5, 6, 7])
    assert message == bytes.fromhex("02000000 04000000 05000000 06000000 07000000")
    asked = read_handed(message)
    assert isinstance(asked, CloseIdle) and (asked.most, list(asked.numbers)) == (2, [5, 6, 7])


def test_more_numbers_than_a_message_has_room_for() -> None:
    message = close_idle(1, range(MOST_ASKED + 10))
    asked = read_handed(message)
    assert isinstance(asked, CloseIdle) and list(asked.numbers) == list(range(MOST_ASKED))
    assert len(message) == HANDED_BYTES, "the receiver takes all of the longest one"


def test_what_became_of_connections() -> None:
    pairs = [(1, CLOSED), (2, moved_to(0)), (3, NOT_TAKEN | RESUMED)]
    message = give_back(pairs)
    assert message == bytes.fromhex("01000000 00000000 02000000 01000000 03000000 01000080")
    assert list(read_given(message)) == pairs
    assert len(give_back([(0, 0)] * MOST_GIVEN)) == GIVEN_BYTES


@pytest.mark.parametrize(
    ("where", "frontend"), [(CLOSED, None), (moved_to(0), 0), (moved_to(2), 2), (moved_to(3), None)]
)
def test_whose_a_connection_is(where: int, frontend: int | None) -> None:
    assert owner(where, 3) == frontend


def test_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        reset_when_closed(accepted)
        accepted.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)
