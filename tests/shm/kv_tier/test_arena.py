"""The arena of KV blocks: what is full is found, by a successor, too; what a fetch has stays until it is settled."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from actorserve.actors.porter.host import HostTier
from actorserve.shm.kv_tier.arena import TierArena
from actorserve.shm.kv_tier.layout import TierSizes, create_tier

SIZES = TierSizes(2, 4 * 4096)
PRINT = bytes(range(32))
SIZE = 4000


@pytest.fixture
def fd() -> Iterator[int]:
    made = create_tier(SIZES)
    yield made
    os.close(made)


def key(number: int) -> bytes:
    return bytes([number]) * 16


def filled(fd: int, *numbers: int) -> HostTier:
    host = HostTier(TierArena(fd, SIZES))
    assert host.format(PRINT, SIZE)
    for number in numbers:
        put(host, number)
    return host


def put(host: HostTier, number: int) -> int:
    slot = host.take()
    assert slot is not None
    host.arena.empty(slot)[:] = bytes([number]) * SIZE
    host.put(slot, key(number))
    return slot


def test_a_successor_finds_what_is_whole(fd: int) -> None:
    host = filled(fd, 1, 2)
    torn = host.take()
    assert torn is not None
    host.arena.empty(torn)[:9] = b"x" * 9  # and the porter dies
    after = HostTier(TierArena(fd, SIZES))
    assert key(1) in after and key(2) in after and len(after) == 2
    slot = after.find(key(1))
    assert slot is not None and bytes(after.arena.data(slot)) == b"\1" * SIZE


def test_the_least_lately_used_makes_room(fd: int) -> None:
    host = filled(fd, 1, 2, 3, 4)
    host.find(key(1))
    put(host, 5)
    assert key(2) not in host and all(key(number) in host for number in (1, 3, 4, 5))


def test_what_a_fetch_has_stays(fd: int) -> None:
    host = filled(fd, 1, 2, 3, 4)
    for number in (1, 2, 3, 4):
        slot = host.find(key(number))
        assert slot is not None
        host.arena.lease(slot, 0, 70 + number)
    host.arena.lease(0, 1, 5)
    assert host.take() is None and HostTier(TierArena(fd, SIZES)).take() is None, "nor for a successor"
    TierArena(fd, SIZES).settle(0, 72)  # its scheduler has copied the first
    slot = host.take()
    assert slot is None, "the other engine has it still"
    TierArena(fd, SIZES).settle(1, 6)
    assert host.take() is not None and key(1) not in host


def test_other_contents_wait_for_leases(fd: int) -> None:
    host = filled(fd, 1)
    slot = host.find(key(1))
    assert slot is not None
    host.arena.lease(slot, 0, 3)
    assert not host.format(bytes(32), SIZE)
    host.arena.settle(0, 4)
    assert host.format(bytes(32), 3000) and not len(host) and host.arena.slot_bytes == 3000


def test_what_is_forgotten_is_not_found(fd: int) -> None:
    host = filled(fd, 1, 2)
    slot = host.find(key(1))
    assert slot is not None
    host.arena.lease(slot, 0, 3)
    host.forget()
    assert key(1) not in host and not len(HostTier(TierArena(fd, SIZES)))
    assert slot not in [host.take() for _ in range(3)] and host.take() is None
    assert bytes(host.arena.data(slot)) == b"\1" * SIZE, "who copies it may go on"
    host.arena.ask_to_forget()
    assert TierArena(fd, SIZES).to_forget == 1
    host.arena.has_forgotten(1)
    assert not host.arena.to_forget
