"""Where a server says that others find it."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from actorserve.actors.frontend import settings


def test_what_listens_everywhere_is_told_by_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """`peer` of others may be a network, in which a machine's name is not."""
    assert settings.reached_at("node-a") == "node-a"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as away:
        try:
            away.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no route to others")
    assert ipaddress.ip_address(settings.reached_at("0.0.0.0")).version == 4
    ipaddress.ip_address(settings.reached_at("::"))

    def unreachable(*_: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    assert settings.reached_at("0.0.0.0") == socket.gethostname()
