"""--http2-port says what is missing, and takes no port that is taken."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest

from actorserve.actors.options.config import ConfigError, make_config


def test_the_packages_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "h2" else real(name, package)

    monkeypatch.setattr("actorserve.actors.options.serving.http2.find_spec", without)
    with pytest.raises(ConfigError, match=r"--http2-port: .*pip install 'actorserve\[http2\]'"):
        make_config({"http2_port": 9000})


@pytest.mark.parametrize("port", [8000, 9000, 0, 70_000])
def test_ports_that_cannot_be(port: int) -> None:
    with pytest.raises(ConfigError, match="--http2-port"):
        make_config({"http2_port": port, "port": 8000, "grpc_port": 9000})


def test_who_serves_no_clients_has_no_such_port() -> None:
    computes = {"nnodes": 2, "node_rank": 1, "headless": True, "master_addr": "10.0.0.1", "node_secret_file": "secret"}
    with pytest.raises(ConfigError, match="--http2-port: a machine that computes for others"):
        make_config({"http2_port": 9000, "pipeline_parallel_size": 2, **computes})
