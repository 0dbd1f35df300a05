"""The key by which the batcher asks for a batch's owner."""

from __future__ import annotations

from actorserve.actors.files.owner import Owner, read_key, write_key

SECRET, OWNER = b"s" * 32, Owner("client", "ann")


def test_it_says_for_whom_it_asks() -> None:
    key = write_key(OWNER, SECRET)
    assert key == write_key(OWNER, SECRET) and read_key(key.encode(), SECRET) == OWNER
    assert SECRET.decode() not in key


def test_another_servers_is_none() -> None:
    key = write_key(OWNER, SECRET).encode()
    assert read_key(key, b"t" * 32) is None and read_key(key, b"") is None
    assert read_key(write_key(Owner("other"), SECRET).encode()[:40] + key[40:], SECRET) is None


def test_what_is_no_key_is_none() -> None:
    for given in (b"", b"batch_", b"batch_!", b"batch_" + b"A" * 60, b"sk-x"):
        assert read_key(given, SECRET) is None
