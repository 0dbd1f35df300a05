"""Blocks between servers: pulled by name, held while they are read and no longer, and a miss whatever goes wrong."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from actorserve.actors.porter.carrier import Kind, Reading
from actorserve.actors.porter.files import checksum
from actorserve.actors.porter.host import HostTier
from actorserve.actors.porter.peers import pulling
from actorserve.actors.porter.peers.nixl import Agent
from actorserve.actors.porter.peers.pulling import Counts, Peer, Peers
from actorserve.actors.porter.peers.serving import Serving
from actorserve.actors.protocol.sockets import kv_wire as wire
from actorserve.shm.kv_tier.arena import TierArena
from actorserve.shm.kv_tier.layout import TierSizes, create_tier
from tests.support.until import until

from .blocks import KIND, PRINT, SIZE, WAIT_S, contents, keys

KEYS = keys(8)
SECRET = b"a secret of some length"
LOG = logging.getLogger("porter")


class Giver:
    """A server with some of the blocks."""

    def __init__(self, agent: Agent | None = None, arena: TierArena | None = None) -> None:
        sizes = TierSizes(1, 1 << 20)
        self.host = HostTier(arena or TierArena(create_tier(sizes), sizes))
        self.host.format(PRINT, SIZE)
        for key in KEYS[:5]:
            slot = self.host.take()
            assert slot is not None
            self.host.arena.empty(slot)[:] = contents(key)
            self.host.put(slot, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.serving = Serving(self.listener.fileno(), wire.Proofs(SECRET), agent, self.host, self.woken, LOG)
        self.asked, self.is_stopped = threading.Event(), False
        self.serving.start()
        self.thread = threading.Thread(target=self.turns)
        self.thread.start()

    def woken(self) -> None:
        self.asked.set()

    def find(self, kind: Kind, keys: list[bytes]) -> list[int]:
        found = [self.host.find(key) for key in keys] if kind == KIND else []
        return [slot for slot in found if slot is not None]

    def turns(self) -> None:
        """The actor's."""
        while not self.is_stopped:
            self.asked.wait(WAIT_S)
            self.asked.clear()
            self.serving.turn(self.find)

    def end(self) -> None:
        self.is_stopped = True
        self.asked.set()
        self.thread.join()
        self.listener.close()


@pytest.fixture
def giver() -> Iterator[Giver]:
    one = Giver()
    yield one
    one.end()


@pytest.fixture
def counts() -> Counts:
    return Counts()


def peer(address: str, counts: Counts, secret: bytes = SECRET) -> Peer:
    return Peer(address, wire.Proofs(secret), None, counts, lambda: None, LOG)


def read(one: Peer, keys: list[bytes], kind: Kind = KIND) -> Reading:
    reading = one.read(kind, keys)
    until(lambda: reading.done)
    return reading


def test_blocks_come_by_their_names(giver: Giver, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several windows, up to the first that is not there; then nothing is held."""
    monkeypatch.setattr(wire, "WINDOW_BYTES", 2 * SIZE)
    one = peer(giver.address, counts)
    assert read(one, KEYS).blocks == [contents(key) for key in KEYS[:5]]
    assert read(one, KEYS[5:]).blocks == [] and read(one, KEYS[2:4]).blocks == [contents(key) for key in KEYS[2:4]]
    assert read(one, KEYS, Kind(bytes(32), SIZE)).blocks == [] and one.answers and not counts.errors
    until(lambda: not giver.host.held)
    assert giver.serving.given == 7


def test_a_connection_that_has_ended_is_made_anew(giver: Giver, counts: Counts) -> None:
    one = peer(giver.address, counts)
    assert len(read(one, KEYS).blocks) == 5
    assert one._line is not None
    one._line.connection.shutdown(socket.SHUT_RDWR)
    assert len(read(one, KEYS).blocks) == 5 and not counts.errors


def test_who_does_not_know_the_secret_is_given_nothing(
    giver: Giver, counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    one = peer(giver.address, counts, b"another secret, as long")
    assert read(one, KEYS).blocks == [] and counts.errors == 1 and not one.answers
    assert "does not know the secret" in caplog.text and giver.serving.given == 0


def test_nobody_there_is_a_miss(counts: Counts) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    one = peer(f"127.0.0.1:{port}", counts)
    assert read(one, KEYS).blocks == [] and counts.errors == 1 and not one.answers


def connected(giver: Giver) -> wire.Line:
    """As a peer that has shown who it is."""
    host, _, port = giver.address.partition(":")
    line = wire.Line(socket.create_connection((host, int(port))))
    challenge = line.within(WAIT_S).receive(wire.Challenge)
    proof = wire.proof_of(SECRET, challenge.nonce, wire.PULLER)
    line.send(wire.Greeting(proof, bytes(32), wire.VERSION))
    assert not line.receive(wire.Welcome).refused
    return line


@pytest.mark.parametrize("how", ["dies", "stands still"])
def test_blocks_are_held_until_the_other_side_is_done_or_gone(
    giver: Giver, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are held nobody else gets their slots; a lease ends by time, too."""
    monkeypatch.setattr(wire, "LEASE_S", 0.5 if how == "stands still" else WAIT_S)
    line = connected(giver)
    line.send(wire.Want(PRINT, SIZE, b"".join(KEYS[:3])))
    have = line.receive(wire.Have)
    assert [checksum(PRINT, key, contents(key)) for key in KEYS[:3]] == have.sums and giver.host.held == 3
    assert not giver.host.format(bytes(32), SIZE), "what is being read is not formatted anew"
    if how == "dies":
        line.close()
    until(lambda: not giver.host.held)
    line.close()


class Liar(threading.Thread):
    """Somebody who knows the secret, and sends what it likes."""

    def __init__(self, answers: Callable[[wire.Line, wire.Want], None]) -> None:
        super().__init__(daemon=True)
        self.listener, self.answers = socket.create_server(("127.0.0.1", 0)), answers
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def run(self) -> None:
        connection, _ = self.listener.accept()
        line = wire.Line(connection).within(WAIT_S)
        line.send(wire.Challenge(bytes(32)))
        greeting = line.receive(wire.Greeting)
        line.send(wire.Welcome(wire.proof_of(SECRET, greeting.nonce, wire.GIVER)))
        self.answers(line, line.receive(wire.Want))
        line.close()


SUMS = [checksum(PRINT, key, contents(key)) for key in KEYS]


def torn(line: wire.Line, want: wire.Want) -> None:
    line.send(wire.Have(SUMS[:2]))
    line.send_bytes(contents(KEYS[0]) + contents(KEYS[1])[:100])


def garbled(line: wire.Line, want: wire.Want) -> None:
    line.send(wire.Have(SUMS[:2]))
    line.send_bytes(contents(KEYS[0]) + contents(KEYS[0]))


def too_many(line: wire.Line, want: wire.Want) -> None:
    line.send(wire.Have(SUMS + SUMS))


def silent(line: wire.Line, want: wire.Want) -> None:
    line.connection.settimeout(WAIT_S)
    assert not line.connection.recv(1), "the other side hangs up"


def nonsense(line: wire.Line, want: wire.Want) -> None:
    line.send(wire.Done())
    line.send_bytes(b"\xff" * 100)


@pytest.mark.parametrize(
    ("answers", "came"), [(torn, 1), (garbled, 1), (too_many, 0), (silent, 0), (nonsense, 0)],
    ids=["torn", "garbled", "too_many", "silent", "nonsense"],
)  # fmt: skip
def test_what_is_not_whole_is_not_there(
    answers: Callable[[wire.Line, wire.Want], None], came: int, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "STEP_S", 0.3 if answers is silent else WAIT_S)
    one = peer(Liar(answers).address, counts)
    assert read(one, KEYS).blocks == [contents(key) for key in KEYS[:came]]
    assert counts.errors == 1 and not one.answers


def test_strangers_say_little_before_they_are_known(giver: Giver) -> None:
    host, _, port = giver.address.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        line = wire.Line(connection).within(WAIT_S)
        line.receive(wire.Challenge)
        line.send_bytes((1 << 30).to_bytes(4, "little"))
        with pytest.raises((EOFError, ConnectionError)):
            line.read(1)


def test_named_peers_are_bounded(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulling, "MOST_NAMED", 2)
    peers = Peers(("a:1",), lambda address: peer(address, counts), counts)
    assert [one.address for one in peers.named("b:1")] == ["b:1", "a:1"]
    assert [one.address for one in peers.named("a:1")] == [one.address for one in peers.named("")] == ["a:1"]
    first = peers.named("b:1")[0]
    assert peers.named("c:1")[0].address == "c:1" and peers.named("b:1")[0] is first
    assert peers.named("d:1")[0].address == "d:1" and peers.named("b:1")[0] is not first


def test_nixl_carries_them(counts: Counts, caplog: pytest.LogCaptureFixture) -> None:
    """Between two agents; nothing but what is said about the blocks goes over TCP."""
    pytest.importorskip("nixl")
    sizes = TierSizes(1, 1 << 20)
    arena = TierArena(create_tier(sizes), sizes)
    giver = Giver(agent=Agent(arena.map, LOG), arena=arena)
    one = Peer(giver.address, wire.Proofs(SECRET), Agent(None, LOG), counts, lambda: None, LOG)
    try:
        assert read(one, KEYS).blocks == [contents(key) for key in KEYS[:5]], caplog.text
        assert one._staging is not None and not counts.errors
        assert read(one, KEYS[1:3]).blocks == [contents(key) for key in KEYS[1:3]]
        until(lambda: not giver.host.held)
    finally:
        giver.end()
