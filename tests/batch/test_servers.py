"""Servers that a batch runs on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from actorserve.actors.batch import servers
from actorserve.actors.batch.servers import OwnServer
from actorserve.actors.bench.client_tls import ClientTls
from actorserve.actors.bench.server import ServerError
from actorserve.actors.files.lines import FIRST_PAUSE_S, LONGEST_PAUSE_S, pause_s


class DyingServer:
    """Its connections break a look before it has ended; the second one stays."""

    made: list[DyingServer] = []

    def __init__(self, words: Sequence[str], ready_s: float, own_group: bool, tls: ClientTls) -> None:
        assert own_group and tls.own
        self.made.append(self)
        self.base_url = f"http://server-{len(self.made)}"
        self.looks = 0
        self.state = ""

    @property
    def ended(self) -> bool:
        self.looks += 1
        return self.looks > 1

    def __enter__(self) -> DyingServer:
        self.state = "started"
        return self

    def __exit__(self, *_: object) -> None:
        self.state = "stopped"


async def test_one_that_ends_behind_its_connections_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(base_url: str, _: float, tls: ClientTls) -> None:
        assert tls.own
        if base_url == "http://server-1":
            raise ServerError("nobody is there")

    monkeypatch.setattr(DyingServer, "made", [])
    monkeypatch.setattr(servers, "StartedServer", DyingServer)
    monkeypatch.setattr(servers, "wait_ready", look)
    own = OwnServer(["MODEL"], 5.0)
    own.start()
    own.lost()
    assert await own.address() == "http://server-2"
    assert [one.state for one in DyingServer.made] == ["stopped", "started"]


@pytest.mark.parametrize(("tries", "pause"), [(0, FIRST_PAUSE_S), (3, 2.0), (2000, LONGEST_PAUSE_S)])
def test_pauses_grow_up_to_the_longest_however_often_it_is_tried(tries: int, pause: float) -> None:
    assert 0.5 * pause <= pause_s("", tries) <= 1.5 * pause
