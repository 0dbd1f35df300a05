"""What there is before any actor is started."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.supervisor.launch import Opened, _serve
from actorserve.actors.supervisor.systemd.notify import Manager


class Described(Exception):
    """All that the test is about has been done."""


def test_of_a_steward_whose_name_has_several_addresses_only_the_one_that_is_accepted_from_is_open() -> None:
    first, second = (socket.create_server((f"127.0.0.{last}", 0)) for last in (1, 2))
    port = second.getsockname()[1]
    system = SimpleNamespace(config=Config(steward="localhost:0"))

    def describe(url: str, port: int) -> None:
        raise Described

    memory: Any = SimpleNamespace(system=system, files={}, describe=describe)
    output: Any = SimpleNamespace()
    with pytest.raises(Described):
        _serve(Opened([first, second], False, memory, 8, []), Manager(), output, ())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port))
    os.close(memory.files["steward"])
