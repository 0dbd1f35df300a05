"""The wires to the process that forks actors and to the control socket: each end reads what the other writes.

Their bytes are pinned, since the ends may be of different code.
"""

from __future__ import annotations

import msgspec
import pytest

from actorserve.actors.protocol.sockets import prefork_wire
from actorserve.actors.protocol.sockets.control_wire import (
    DRAIN,
    RESTART,
    ControlAnswer,
    DrainBegun,
    DrainRequest,
    RestartRequest,
    encode_answer,
    encode_request,
    read_answer,
    read_request,
)
from actorserve.actors.protocol.sockets.prefork_wire import Forked


@pytest.mark.parametrize("channel", [None, 9])
def test_descriptors_of_an_actor(channel: int | None) -> None:
    wanted = Forked(7, 8, channel)
    descriptors = prefork_wire.fork_descriptors(wanted)
    assert descriptors == [7, 8] + ([] if channel is None else [9])
    assert len(descriptors) <= prefork_wire.MOST_DESCRIPTORS
    assert prefork_wire.read_fork_descriptors(descriptors) == wanted


def test_requests_of_a_prefork_process_are_told_apart() -> None:
    request = prefork_wire.ask_check("0" * 64)
    assert request == b"?" + b"0" * 64 and len(request) <= prefork_wire.REQUEST_BYTES
    assert prefork_wire.read_check(request) == "0" * 64
    assert (prefork_wire.FORK, prefork_wire.PING, prefork_wire.LAYOUT) == (b".", b"!", b"#")
    branch = prefork_wire.ask_branch("worker")
    assert branch == b"+worker" and prefork_wire.read_branch(branch) == ["worker"]
    more = prefork_wire.ask_branch("worker", ["adapter.load", "pooling.load", "encoder_decoder.load", "vision.start"])
    assert prefork_wire.read_branch(more) == more[1:].decode().split() and len(more) <= prefork_wire.REQUEST_BYTES
    for other in (prefork_wire.FORK, prefork_wire.PING, prefork_wire.LAYOUT):
        assert prefork_wire.read_check(other) is None and prefork_wire.read_branch(other) is None
    assert prefork_wire.read_check(branch) is None and prefork_wire.read_branch(request) is None


@pytest.mark.parametrize("number", [0, 1, -11, 2**22])
def test_answers_of_a_prefork_process(number: int) -> None:
    message = prefork_wire.answer(number)
    assert message == b"%d" % number and len(message) <= prefork_wire.ANSWER_BYTES
    assert prefork_wire.read_answer(message) == number


def test_a_request_on_the_control_socket() -> None:
    wanted = RestartRequest("worker", {"log_level": "debug"})
    line = encode_request(RESTART.name, wanted)
    assert line == b'{"verb":"restart","arguments":{"what":"worker","options":{"log_level":"debug"}}}\n'
    assert msgspec.convert(read_request(line).arguments, RESTART.arguments) == wanted
    assert encode_request(DRAIN.name, DrainRequest()) == b'{"verb":"drain","arguments":{"timeout":null}}\n'


def test_answers_on_the_control_socket() -> None:
    line = encode_answer(ControlAnswer(DrainBegun(2.5, 7)))
    assert line == b'{"result":{"seconds":2.5,"requests":7}}\n'
    assert msgspec.convert(read_answer(line).result, DRAIN.result) == DrainBegun(2.5, 7)
    newer = read_answer(b'{"result":{"seconds":3,"reason":"SIGTERM"},"more":1}\n')
    assert msgspec.convert(newer.result, DRAIN.result) == DrainBegun(3.0), "a newer server may say more"
    refused = encode_answer(ControlAnswer(error="why not"))
    assert refused == b'{"error":"why not"}\n' and read_answer(refused).error == "why not"
