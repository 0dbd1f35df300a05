"""Listening sockets and their options."""

from __future__ import annotations

import socket

import pytest

from actorserve.actors.options.config import ConfigError
from actorserve.actors.supervisor.listeners import GONE_MS, SEND_BUFFER, ListenError, host_and_port, listen


def test_accepted_sockets_inherit_what_finds_a_vanished_peer() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == GONE_MS
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * SEND_BUFFER  # Linux doubles it


def test_no_frontend_blocks_in_accept() -> None:
    (listener,) = listen("127.0.0.1", 0)
    with listener, pytest.raises(BlockingIOError):
        listener.accept()


def test_all_addresses_of_a_name_share_one_port() -> None:
    listeners = listen("localhost", 0)
    assert listeners and len({listener.getsockname()[1] for listener in listeners}) == 1
    for listener in listeners:
        listener.close()


def test_several_addresses_share_one_port() -> None:
    listeners = listen("127.0.0.1, 127.0.0.2", 0)
    assert [listener.getsockname()[0] for listener in listeners] == ["127.0.0.1", "127.0.0.2"]
    port = listeners[0].getsockname()[1]
    assert listeners[1].getsockname()[1] == port
    for listener in listeners:
        listener.close()
    for host in ("127.0.0.1,192.0.2.1", "127.0.0.1,127.0.0.3"):
        with socket.create_server(("127.0.0.3", port)), pytest.raises(ListenError, match=host.partition(",")[2]):
            listen(host, port)
        listen("127.0.0.1", port)[0].close()  # nothing is left open


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}: Address already in use; `ss -ltnp` says who does"):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine() -> None:
    with pytest.raises(ListenError, match=r"192.0.2.1:0: Cannot assign requested address"):
        listen("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["no such host", "999.1.1.1", "a" * 300])
def test_what_is_no_host(host: str) -> None:
    with pytest.raises(ConfigError, match="--host"):
        listen(host, 0)


def test_urls() -> None:
    assert host_and_port("::1", 80) == "[::1]:80"
    assert host_and_port("localhost", 80) == "localhost:80"
