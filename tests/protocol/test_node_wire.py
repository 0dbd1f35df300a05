"""What machines of a pipeline show each other before a step is sent, and the options for them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.sockets import node_wire
from actorserve.actors.protocol.sockets.node_wire import (
    Greeting,
    Planned,
    Unproven,
    Welcome,
    differences,
    facts_of,
    is_proven,
    proof_of,
    read_secret,
    receive,
    send,
)
from actorserve.actors.protocol.step import NewRow, Step

SECRET = b"sixteen letters!"


def options(**more: object) -> dict[str, Any]:
    given = {"pipeline_parallel_size": 4, "nnodes": 2, "master_addr": "10.0.0.1", "node_secret_file": "/secret"}
    return {**given, **more}


def test_which_worker_is_where() -> None:
    """The server's own stages are the last: they draw, and what that needs is on its machine."""
    config = make_config(options(tensor_parallel_size=2))
    assert [config.node_of(worker) for worker in range(config.workers)] == [1, 1, 1, 1, 0, 0, 0, 0]
    three = make_config(options(pipeline_parallel_size=3, nnodes=3))
    assert [three.node_of(worker) for worker in range(3)] == [1, 2, 0] and three.local_workers == 1
    assert [Config().node_of(0), make_config({"tensor_parallel_size": 2}).node_of(1)] == [0, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            options(pipeline_parallel_size=3),
            "--nnodes 2: each machine has as many stages; --pipeline-parallel-size is 3",
        ),
        (options(node_rank=2, headless=True), "--node-rank 2: there are 0 to 1"),
        (options(node_rank=1), "--headless goes with --node-rank 1 and above"),
        (options(headless=True), "--headless goes with --node-rank 1 and above"),
        (options(master_addr=None), "--master-addr has to be set"),
        (options(node_secret_file=None), "--node-secret-file has to be set"),
        (options(data_parallel_size=2), "--nnodes: machines share one engine"),
        (options(worker="scripted"), "--nnodes: machines share one engine"),
        ({"headless": True}, "--headless goes with --nnodes above 1"),
        ({"master_addr": "10.0.0.1"}, "--master-addr goes with --nnodes above 1"),
    ],
)
def test_options_that_contradict_each_other(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(given)
    assert said in str(caught.value)


def test_a_secret_is_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    config = make_config(options(node_secret_file=str(file)))
    with pytest.raises(ConfigError, match=r"--node-secret-file: .*secret cannot be read: No such file"):
        read_secret(config)
    file.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="has less than 16 characters"):
        read_secret(config)
    file.write_bytes(SECRET + b"\n")
    assert read_secret(config) == SECRET


def test_a_proof_is_of_one_side_and_one_nonce() -> None:
    """So that none can be sent back, or used again."""
    nonce = bytes(32)
    given = proof_of(SECRET, nonce, node_wire.WORKER)
    assert is_proven(given, SECRET, nonce, node_wire.WORKER)
    for secret, other, side in (
        (b"another secret!!", nonce, node_wire.WORKER),
        (SECRET, b"1" * 32, node_wire.WORKER),
        (SECRET, nonce, node_wire.PROXY),
    ):
        assert not is_proven(given, secret, other, side)
    assert not is_proven(b"", SECRET, nonce, node_wire.WORKER)


def test_what_differs_is_told_by_name() -> None:
    config = make_config({})
    model = resolve_model(config)
    own = facts_of(config, model, (1, 2))
    assert not differences(own, dict(own))
    other = facts_of(make_config({"dtype": "bfloat16", "block_size": 64}), model, (1, 3))
    told = differences(own, other)
    assert "--dtype: auto here, bfloat16 there" in told and "--block-size: 32 here, 64 there" in told
    assert "size of the request table" in told and "version" not in told
    assert "--seed: 0 here, not told there" in differences(own, {})


def test_messages_come_as_they_were_sent() -> None:
    one, other = socket.socketpair()
    step = Step.make(7, 3, [NewRow.make(0, 1 << 32, 5, 5, 2, [4, 5], Sampling(1))], [0], [3])
    with one, other:
        for message in (Greeting(b"proof", b"nonce", {"a": "b"}), Welcome(refused="no"), Planned(step, [b"1234"])):
            send(one, message)
            assert receive(other, type(message)) == message
        send(one, {"not": "that"})
        with pytest.raises(Unproven, match="no Welcome"):
            receive(other, Welcome)
        send(one, Welcome(refused="no"))
        assert receive(other, Welcome).refused == "no"
        one.sendall(struct.pack("<I", 7) + b"\x93\xc4\0\0\xa2\xff\xfe")
        with pytest.raises(Unproven, match="no Welcome"):
            receive(other, Welcome)
        one.sendall(struct.pack("<I", 1 << 31))
        with pytest.raises(Unproven, match="a message of 2147483648 bytes"):
            receive(other, Welcome)
        one.sendall(b"12")
        one.close()
        with pytest.raises(EOFError):
            receive(other, Welcome)
