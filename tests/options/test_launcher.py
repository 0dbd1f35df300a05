"""--distributed-executor-backend: what a launcher's environment says of machines, and what cannot be."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config

TORCHRUN = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
STAGES: dict[str, object] = {"pipeline_parallel_size": 4, "node_secret_file": "/secret"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", *TORCHRUN):
        monkeypatch.delenv(name, raising=False)


def started(monkeypatch: pytest.MonkeyPatch, rank: int, **more: str) -> None:
    for name, value in {**TORCHRUN, "RANK": str(rank), **more}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(("rank", "node"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_machines_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch, rank: int, node: int) -> None:
    started(monkeypatch, rank)
    config = make_config({"distributed_executor_backend": "external_launcher", **STAGES})
    found = (config.nnodes, config.node_rank, config.headless, config.master_addr, config.master_port)
    assert found == (2, node, node > 0, "10.0.0.1", 29501)
    given = make_config({"distributed_executor_backend": "external_launcher", "master_port": 31000, **STAGES})
    assert given.master_port == 31000


def test_one_machine_is_as_without_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 1, WORLD_SIZE="2")
    config = make_config({"distributed_executor_backend": "external_launcher", "tensor_parallel_size": 2})
    assert (config.nnodes, config.headless, config.master_addr) == (1, False, None)


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        ({"tensor_parallel_size": 2}, {}, "WORLD_SIZE is 4, and there are 2 workers"),
        ({}, {"RANK": ""}, "RANK is not set; torchrun sets it"),
        ({}, {"RANK": "first"}, "RANK is 'first', no number"),
        ({}, {"RANK": "4"}, "RANK is 4; of WORLD_SIZE 4 there are 0 to 3"),
        ({}, {"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE 3 does not divide WORLD_SIZE 4"),
        ({}, {"MASTER_ADDR": ""}, "MASTER_ADDR is not set"),
        ({"tensor_parallel_size": 4}, {}, "--pipeline-parallel-size is 1"),
        ({"distributed_executor_backend": "uni", "tensor_parallel_size": 2}, {}, "one worker, and there are 2"),
        ({"distributed_executor_backend": "ray"}, {}, "--engines ray://"),
        ({"distributed_executor_backend": "threads"}, {}, "--distributed-executor-backend"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], environment: dict[str, str], words: str
) -> None:
    started(monkeypatch, 0, **environment)
    with pytest.raises(ConfigError) as refused:
        make_config({"distributed_executor_backend": "external_launcher", **options})
    assert words in str(refused.value)


@pytest.mark.parametrize("backend", ["mp", "uni", None])
def test_how_it_always_is_changes_nothing(backend: str | None) -> None:
    assert make_config({"distributed_executor_backend": backend}).workers == 1
