"""--uds: streams at a Unix socket go on as those of the port do, whoever dies; it is there while the server is."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from actorserve.actors.supervisor.connections.unix_socket import UnixSocket, listen_unix
from actorserve.actors.supervisor.listeners import ListenError
from tests.support.selection import slow
from tests.support.server import Server
from tests.support.warm import run_command

from .relays import BODY, check_successor, relay, whole


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("uds") / "server.sock"


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    """Where the socket of a server that was killed lies."""
    listen_unix(str(path), 0o600).close()
    with Server("--threads", "1", "--hang-timeout", "4", "--uds", str(path), "--uds-mode", "606") as made:
        yield made
        made.stop()
        assert not path.exists()


@pytest.fixture
def client(server: Server, path: Path) -> Iterator[httpx.Client]:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any", timeout=60) as made:
        yield made


def test_a_stream_goes_on_with_another_frontend(server: Server, client: httpx.Client, path: Path) -> None:
    expected = whole(client)
    assert stat.S_IMODE(path.stat().st_mode) == 0o606
    parts: list[str] = []
    with client.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            said: Any = json.loads(line[6:])
            parts.append(said["choices"][0]["text"])
            if len(parts) in (3, 20):
                os.kill(server.actors()["frontend-0" if len(parts) == 3 else "worker"], signal.SIGKILL)
    assert "".join(parts) == expected


@pytest.mark.parametrize("number", [*slow(signal.SIGKILL), signal.SIGSTOP])
def test_the_death_of_the_relay_costs_its_connections_alone(
    server: Server, client: httpx.Client, path: Path, number: signal.Signals
) -> None:
    """Or that it hangs; `ps` and `/metrics` have seen it."""
    assert whole(client)
    before = relay(server, "relay")
    assert before.pid == server.actors()["relay"] and before.state == "ready"
    with httpx.Client(base_url=server.base_url, timeout=60) as other:
        with other.stream("POST", "/v1/completions", json=BODY | {"stream": True}) as answer:
            server.replace("relay", number)
            assert answer.read().endswith(b"data: [DONE]\n\n")
        figures = other.get("/metrics").text
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any", timeout=60) as again:
        assert whole(again)
    check_successor(server, before, figures)


def test_another_server_is_not_driven_out(server: Server, path: Path) -> None:
    run = run_command("launch", "--port", "0", "--uds", str(path))
    assert run.returncode == 1 and f"cannot listen on --uds {path}: somebody listens there" in run.stderr


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(ListenError, match="no socket"):
        listen_unix(str(file), 0o600)
    with pytest.raises(ListenError, match="at most 107 bytes"):
        listen_unix(str(tmp_path / ("x" * 120)), 0o600)
    with pytest.raises(ListenError, match="No such file or directory"):
        listen_unix(str(tmp_path / "no" / "folder"), 0o600)
    assert file.read_text() == "mine"


def test_a_successor_s_socket_is_not_removed(tmp_path: Path) -> None:
    """By a server that ends later than another has begun at the same path."""
    path = tmp_path / "own"
    first = UnixSocket(str(path), 0o600)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(path))
        first.close()
        assert path.exists()
