"""Addresses that one process writes and others read."""

from __future__ import annotations

import os

import pytest

from actorserve.shm.engine_places import PLACE_BYTES, EnginePlaces


def test_addresses_are_read_as_they_were_written() -> None:
    fd = EnginePlaces.create(3)
    writer, reader = EnginePlaces(fd, 3), EnginePlaces(fd, 3)
    assert [reader.read(engine) for engine in range(3)] == ["", "", ""]
    writer.write(1, "10.0.0.2:8100")
    writer.write(2, "[fe80::1]:40000")
    writer.write(1, "10.0.0.3:81")
    assert [reader.read(engine) for engine in range(3)] == ["", "10.0.0.3:81", "[fe80::1]:40000"]
    os.close(fd)


def test_half_an_address_is_none() -> None:
    """Its writer dies between two bytes of it."""
    fd = EnginePlaces.create(1)
    writer = EnginePlaces(fd, 1)
    writer.write(0, "10.0.0.2:8100")
    os.pwrite(fd, b"9", 8)
    assert EnginePlaces(fd, 1).read(0) == ""
    os.pwrite(fd, b"\xff" * PLACE_BYTES, 0)
    assert EnginePlaces(fd, 1).read(0) == ""
    with pytest.raises(ValueError, match="an address of 300 bytes"):
        writer.write(0, "x" * 300)
    os.close(fd)
