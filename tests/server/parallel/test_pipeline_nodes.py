"""Stages on two machines, which here are one: answers are those of one worker, whoever dies on either side."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.support.client import WAIT_S, free_port
from tests.support.server import LAUNCH, Server

from .namespaces import Network, ip
from .test_data_parallel import all_answers

SECRET = "a secret of the two machines"
NODE_PORTS = 3  # from --master-port on
OPTIONS = ("--threads", "1", "--max-restarts", "100")
pytestmark = pytest.mark.slow  # workers of the other side import torch in each life


def node_options(folder: Path, port: int, secret: str = SECRET, host: str = "127.0.0.1") -> tuple[str, ...]:
    file = folder / f"secret-{len(secret)}"
    file.write_text(secret)
    place = ("--master-addr", host, "--master-port", str(port), "--node-secret-file", str(file))
    return (*OPTIONS, "-pp", "2", "--nnodes", "2", *place)


@pytest.fixture(scope="module")
def expected() -> list[list[Any]]:
    with Server(*OPTIONS) as server:
        return asyncio.run(all_answers(server))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """(the server, the other machine)."""
    options = node_options(tmp_path_factory.mktemp("nodes"), free_port(NODE_PORTS))
    with Server(*options, "--headless", "--node-rank", "1", wait=False) as other, Server(*options) as server:
        yield server, other
        server.stop()
        other.wait_for("worker-pp0 waits for node 0")


def remote_worker(other: Server) -> int:
    """The process id of the other machine's worker, once it is ready."""
    other.wait_for("ready, for the server")
    return other.pids()["worker-pp0"]


def test_two_machines_say_what_one_worker_says(nodes: tuple[Server, Server], expected: list[list[Any]]) -> None:
    server, other = nodes
    remote_worker(other)
    assert asyncio.run(all_answers(server)) == expected
    assert {"worker-pp0", "worker-pp1"} <= server.pids().keys()


def test_ctrl_c_on_the_other_machine_is_for_its_supervisor_alone(nodes: tuple[Server, Server]) -> None:
    """The terminal sends it to the whole group, also to the next worker, which is about to import torch."""
    _, other = nodes
    other.wait_for("ready, for the server", since_start=True)
    threads = Path(f"/proc/{other.pid}/task").iterdir()
    children = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
    assert len(children) == 2 and not [pid for pid in children if os.getpgid(pid) == os.getpgid(other.pid)]


@pytest.mark.parametrize("victim", ["worker-pp0", "worker-pp1"])
def test_a_death_on_the_server_changes_no_answer(
    nodes: tuple[Server, Server], expected: list[list[Any]], victim: str
) -> None:
    server, other = nodes
    assert asyncio.run(all_answers(server, (victim,))) == expected
    remote_worker(other)


def test_a_death_on_the_other_machine_changes_no_answer(
    nodes: tuple[Server, Server], expected: list[list[Any]]
) -> None:
    """KV memory is there on both sides: what is computed stays so."""
    server, other = nodes
    assert asyncio.run(all_answers(server, (other.pids()["worker-pp0"],))) == expected
    remote_worker(other)
    taken = re.findall(r"(\d+) of their (\d+) tokens of KV and \d+ cached blocks are taken over", server.output)
    assert 0 < int(taken[-1][0]) <= int(taken[-1][1])


def test_all_machines_sleep_and_wake(tmp_path: Path) -> None:
    """Also where one has gone, and comes back in the sleep. Other weights, and calls of workers, are not for them."""
    options = node_options(tmp_path, free_port(NODE_PORTS))
    with (
        Server(*options, "--headless", "--node-rank", "1", wait=False) as other,
        Server(*options, "--admin-api-key", "key") as server,
        httpx.Client(base_url=server.base_url, timeout=WAIT_S, headers={"Authorization": "Bearer key"}) as client,
    ):

        def complete() -> str:
            body = {"prompt": "What is the capital of France?", "max_tokens": 20, "temperature": 0}
            return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

        before = complete()
        other.stop()
        server.wait_for("waiting for node 1", since_start=True)
        assert client.post("/sleep").status_code == 200
        with Server(*options, "--headless", "--node-rank", "1", wait=False) as back:
            assert client.post("/wake_up").status_code == 200
            assert complete() == before
            assert client.post("/sleep").status_code == 200
            back.wait_for("worker-pp0 waits for node 0", since_start=True)
            assert client.post("/wake_up").status_code == 200
            assert complete() == before
            for path, body in (("/update_weights", {"path": ""}), ("/collective_rpc", {"method": "num_threads"})):
                refused = client.post(path, json=body)
                assert refused.status_code == 400 and "--nnodes" in refused.json()["error"]["message"]
            assert complete() == before
            server.stop()


def test_who_has_another_secret_or_model_is_refused_by_name(nodes: tuple[Server, Server], tmp_path: Path) -> None:
    """And told so on both sides; the server goes on waiting for the right one."""
    port = free_port(NODE_PORTS)
    right = node_options(tmp_path, port)
    with Server(*right, wait=False) as server:
        server.wait_for("waiting for node 1 at 127.0.0.1")
        for options, said in (
            (node_options(tmp_path, port, SECRET + "?"), "the secret of --node-secret-file is another one"),
            ((*right, "--dtype", "bfloat16"), "node 0 differs: --dtype: bfloat16 here, auto there"),
        ):
            with Server(*options, "--headless", "--node-rank", "1", wait=False) as stranger:
                assert said in stranger.wait_for("node 0 refuses it: (.*)")[1]
                assert stranger.wait() == 2
            server.wait_for("127.0.0.1 was refused: it ")
        with Server(*right, "--headless", "--node-rank", "1", wait=False):
            server.wait_ready()
            assert server.stop() == 0


def test_a_link_that_is_cut_changes_no_answer(network: Network, expected: list[list[Any]], tmp_path: Path) -> None:
    """Nothing comes back, not even an end: both sides notice, and go on in their KV memory when it is mended."""
    name, link = network.name, network.link
    options = node_options(tmp_path, free_port(NODE_PORTS), host=network.near)
    command = (*network.inside, *LAUNCH)

    async def cut() -> list[list[Any]]:
        reading = asyncio.create_task(all_answers(server, (), begun))
        await begun.wait()
        ip("-n", name, "link", "set", link, "down")
        await asyncio.to_thread(server.wait_for, "its worker's machine is gone")
        ip("-n", name, "link", "set", link, "up")
        return await reading

    with (
        Server(*options, "--headless", "--node-rank", "1", wait=False, command=command) as other,
        Server(*options) as server,
    ):
        begun = asyncio.Event()
        assert asyncio.run(cut()) == expected
        other.wait_for("ready, for the server")
        taken = re.findall(r"(\d+) of their (\d+) tokens of KV and \d+ cached blocks are taken over", server.output)
        assert 0 < int(taken[-1][0]) <= int(taken[-1][1])
        server.stop()
