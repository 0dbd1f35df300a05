"""What a server says of itself to observers: no keys, and nobody can change it."""

from __future__ import annotations

import mmap
import os
import re
from typing import Any

import msgspec
import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.protocol.fingerprint import fingerprint
from actorserve.actors.protocol.sockets import connection_handover as handover
from actorserve.actors.protocol.topology import System
from actorserve.actors.telemetry.discovery import SECRETS, SOCKET, Description, publish, socket_name, without_secrets

from .test_shared_memory import MODEL

SECRET = re.compile(r"(^|_)(api_key|token|key|secret|password|headers)$")
HARMLESS = {"allowed_headers", "enable_request_id_headers"}


def description(config: Config) -> Description:
    place: dict[str, Any] = {"pid": 1, "url": "http://h:1", "port": 1, "started_ns": 1}
    return Description(**place, config=config, model=MODEL, segment_fd=3, segment_bytes=4096, files={})


def test_keys_are_left_out_and_all_else_stays() -> None:
    config = Config(api_key=["one", "two"], admin_api_key="three", max_num_seqs=7, host="0.0.0.0")
    assert without_secrets(config) == Config(max_num_seqs=7, host="0.0.0.0")


def test_every_option_that_sounds_like_a_secret_is_one() -> None:
    names = {name for name in Config.__struct_fields__ if SECRET.search(name)} - HARMLESS
    assert names == set(SECRETS)


def test_it_survives_the_way_to_an_observer_and_is_sealed() -> None:
    fd = publish(description(Config(max_num_seqs=7)))
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        assert msgspec.json.decode(file.read(), type=Description) == description(Config(max_num_seqs=7))
    for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0), lambda: os.ftruncate(fd, 1 << 20)):
        with pytest.raises(PermissionError):
            change()
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 0)
    os.close(fd)


def test_the_name_of_the_socket_says_whose_it_is() -> None:
    match = SOCKET.fullmatch(socket_name(1000, 8000, 42))
    assert match and match.groupdict() == {"uid": "1000", "port": "8000", "pid": "42"}
    assert socket_name(1000, 8000, 42) != match[0], "nobody can take it before"
    assert SOCKET.fullmatch("actorserve-1000-8000-42"), "a server from before names had a random part"
    assert len(socket_name(2**32 - 1, 65535, 2**22)) < 107, "a socket's address has room for so many bytes"


def test_who_speaks_otherwise_on_channels_cannot_serve_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version's frontend would take a flag for something else."""
    system = System(Config(), MODEL)
    before = fingerprint(system)
    assert fingerprint(system) == before
    monkeypatch.setattr(handover, "RESERVED", 8)
    assert fingerprint(system) != before
