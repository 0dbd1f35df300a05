"""--grpc-port says what is missing, and takes no port that is taken."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_the_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "grpc_reflection" else real(name, package)

    monkeypatch.setattr("actorserve.actors.options.serving.grpc.find_spec", without)
    with pytest.raises(ConfigError, match=r"--grpc-port: .*pip install 'actorserve\[grpc\]'"):
        make_config({"grpc_port": 9000})


@pytest.mark.parametrize("port", [8000, 0, 70_000])
def test_ports_that_cannot_be(port: int) -> None:
    with pytest.raises(ConfigError, match="--grpc-port"):
        make_config({"grpc_port": port, "port": 8000})
