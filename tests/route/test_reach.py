"""How the router is reached, and how it reaches replicas: TLS on both sides, and names that stand for many."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from actorserve.actors.route import names
from actorserve.actors.route.fleet import Fleet, within
from tests.support.certificates import OPENSSL, Certificates, make_certificate
from tests.support.routers import Answer, FakeReplica, routed


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if OPENSSL is None:
        pytest.skip("certificates are made by the openssl command")
    return Certificates(tmp_path_factory.mktemp("certificates"))


def serving(files: Certificates) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files.server)
    return context


async def test_tls_on_both_sides(files: Certificates, tmp_path: Path) -> None:
    """A certificate that is renewed counts for the next connection; one that cannot be read leaves the one before."""
    own = [Path(shutil.copy(path, tmp_path)) for path in files.server]
    options = {"ssl_certfile": str(own[0]), "ssl_keyfile": str(own[1]), "replica_ca_certs": str(files.authority[0])}
    async with routed(1, serving(files), files.context(), **options) as made:
        assert str(made.session._base_url).startswith("https://")
        assert await made.ask() == (200, b'{"by": "a"}')

        async def serial() -> str:
            port = made.session._base_url.port if made.session._base_url else None
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=files.context())
            shown = writer.get_extra_info("peercert")
            writer.transport.abort()
            return str(shown["serialNumber"])

        before = await serial()
        own[0].write_text("nothing")
        made.router.read_certificate()
        assert await serial() == before
        for new, place in zip(make_certificate(tmp_path, "renewed", files.authority), own, strict=True):
            shutil.copy(new, place)
        made.router.read_certificate()
        assert await serial() != before


async def test_a_replica_of_another_authority_is_not_asked(
    files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """/ready and the log say that it is the certificate."""
    replica = FakeReplica("a")
    await replica.start(tls=serving(files))
    try:
        async with routed(1, replica_ca_certs=str(files.stranger[0])) as made:
            came, _ = made.router.fleet.name_has("name", [replica.address])
            assert came == [replica.address]
            of_name = made.router.fleet.all[1]
            await made.until(lambda: of_name.state.startswith("refused: its certificate: "))
            assert f"{replica.address}: refused: its certificate: " in caplog.text
            assert await made.ask() == (200, b'{"by": "a"}') and not replica.seen
    finally:
        await replica.stop()


async def test_a_name_with_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """One comes, one goes in the midst of a request, and one is there again; a look-up that fails changes nothing."""
    monkeypatch.setattr(names, "LOOK_S", 0.01)
    replicas = [FakeReplica("a"), FakeReplica("b")]
    await replicas[0].start()
    port = int(replicas[0].address.rpartition(":")[2])
    await replicas[1].start(port, "127.0.0.2")
    hosts: list[str] | OSError = ["127.0.0.1"]
    look = asyncio.get_running_loop().getaddrinfo

    async def looked(host: str, port: int, **more: Any) -> list[Any]:
        if host != "replicas.test":
            return await look(host, port, **more)
        if isinstance(hosts, OSError):
            raise hosts
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in hosts]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", looked)
    try:
        async with routed(0, names=[f"dns+http://replicas.test:{port}"]) as made:
            fleet = made.router.fleet

            def up() -> list[str]:
                return sorted(one.address for one in fleet.replicas if one.takes(""))

            await made.until(lambda: len(up()) == 1)
            assert await made.ask() == (200, b'{"by": "a"}')
            hosts = ["127.0.0.1", "127.0.0.2"]
            await made.until(lambda: len(up()) == 2)
            held = asyncio.Event()

            def waits(answer: Answer) -> Answer:
                async def late(request: web.Request, body: bytes) -> web.StreamResponse:
                    await held.wait()
                    return await answer(request, body)

                return late

            for replica in replicas:
                replica.answer = waits(replica.answer)
            asked = [asyncio.create_task(made.ask(prompt=str(number))) for number in range(6)]
            await made.until(lambda: all(one.seen and one.seen[-1][3] for one in replicas))
            hosts = ["127.0.0.2"]
            await made.until(lambda: up() == [replicas[1].address])
            held.set()
            assert {body for _, body in await asyncio.gather(*asked)} == {b'{"by": "a"}', b'{"by": "b"}'}
            await made.until(lambda: [one.address for one in fleet.replicas] == [replicas[1].address])
            hosts = OSError("no name server")
            looks = made.router._names._said
            await made.until(lambda: bool(looks))
            assert up() == [replicas[1].address]
            hosts = ["127.0.0.1", "127.0.0.2"]
            await made.until(lambda: len(up()) == 2)
            assert len(fleet.all) == 2, "in the place of the one that went"
    finally:
        for replica in replicas:
            await replica.stop()


def test_places_are_taken_again() -> None:
    """What one that is gone was known to have is not taken for what is there."""
    fleet = Fleet(["http://a"])
    assert fleet.name_has("n", ["http://b", "http://c", "http://a"]) == (["http://b", "http://c"], [])
    fleet._remember([b"block"], 1)
    assert fleet.name_has("n", ["http://c"]) == ([], ["http://b"])
    assert [one.address for one in fleet.replicas] == ["http://a", "http://c"]
    assert fleet.name_has("n", ["http://c", "http://d"]) == (["http://d"], [])
    assert [one.address for one in fleet.all] == ["http://a", "http://d", "http://c"]
    assert not fleet._known([b"block"]) and not fleet.all[1].is_gone
    fleet.all[1].in_flight = 1
    fleet.name_has("n", ["http://e"])
    assert [one.address for one in fleet.replicas] == ["http://a", "http://d", "http://e"]


async def test_a_wait_ends_when_it_is_cancelled_though_the_event_has_come() -> None:
    """Of a loop that waits again and again, such as the router's looks at its replicas, this is the end."""
    event = asyncio.Event()

    async def wait_again() -> None:
        while True:
            event.clear()
            await within(event, 60)

    waiting = asyncio.create_task(wait_again())
    await asyncio.sleep(0)
    event.set()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)
