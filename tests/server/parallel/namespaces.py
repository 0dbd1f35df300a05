"""A network namespace as another machine, by a link that can be cut."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest


def ip(*words: str) -> None:
    """Of iproute2."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass(frozen=True)
class Network:
    """The namespace's name, its end of the link, and the addresses of both ends."""

    name: str
    link: str
    near: str = "10.213.77.1"
    far: str = "10.213.77.2"

    @property
    def inside(self) -> tuple[str, ...]:
        """Before a command that runs on that machine."""
        return "ip", "netns", "exec", self.name

    def cut(self) -> None:
        """Nothing passes, and nobody is told."""
        ip("-n", self.name, "link", "set", self.link, "down")

    def mend(self) -> None:
        ip("-n", self.name, "link", "set", self.link, "up")


@contextmanager
def make_network() -> Iterator[Network]:
    """Skips the test where that cannot be."""
    made, near = Network(f"nodes{os.getpid()}", f"b{os.getpid()}"), f"a{os.getpid()}"
    try:
        ip("netns", "add", made.name)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need root and iproute2")
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", made.link)
        ip("link", "set", made.link, "netns", made.name)
        ip("address", "add", f"{made.near}/24", "dev", near)
        ip("link", "set", near, "up")
        ip("-n", made.name, "address", "add", f"{made.far}/24", "dev", made.link)
        ip("-n", made.name, "link", "set", made.link, "up")
        ip("-n", made.name, "link", "set", "lo", "up")
        yield made
    finally:
        ip("netns", "delete", made.name)
