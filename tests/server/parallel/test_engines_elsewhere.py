"""Engines on other machines, each with a server of its own: the secret alone, what pools, tiers and events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import zmq

from actorserve.actors.engines.encryption import link_context, steward_context
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import make_config
from tests.support.client import http_session
from tests.support.models.embedders import write_model, write_modules
from tests.support.server import Server
from tests.support.streams.elsewhere import SECRET, complete, post

from .cluster import begun


def test_with_the_secret_alone_nobody_stands_between(tmp_path: Path) -> None:
    """All is encrypted by a certificate that the engine has made. Who puts one of his own in its place, and passes on
    what both sides say, is told apart by their proofs.
    """
    (tmp_path / "secret").write_text(SECRET["ACTORSERVE_ENGINE_SECRET"])
    own = ("--worker", "scripted", "--engine-secret-file", str(tmp_path / "secret"))
    with Server("--steward", "127.0.0.1:0", *own, subcommand="engine") as there:
        address = there.base_url.removeprefix("engine://")
        with Server("--engines", address, "--data-parallel-size", "0", *own) as here:
            asyncio.run(_ask_once(here))
        with pytest.raises(AssertionError, match="cannot be used: the secret of --engine-secret-file is another one"):
            asyncio.run(_with_a_stranger_between(address, own))


async def _ask_once(server: Server) -> None:
    async with http_session(server) as session:
        assert await complete(session, 0)


async def _with_a_stranger_between(address: str, own: tuple[str, ...]) -> None:
    host, _, port = address.rpartition(":")
    config = make_config({"steward": "127.0.0.1:0", "engine_secret_file": own[-1]})

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port), ssl=link_context(config), server_hostname="")
        await asyncio.wait(
            [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))],
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    between = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=steward_context(config)[0])
    place = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
    server = await asyncio.to_thread(lambda: Server("--engines", place, "--data-parallel-size", "0", *own, wait=False))
    try:
        found = await asyncio.to_thread(server.wait_for, "the engine at .*|engine 0 at .* is there")
        raise AssertionError(found.string)
    finally:
        await asyncio.to_thread(server.stop)
        server.__exit__(None, None, None)
        between.close()


@pytest.mark.slow
def test_a_model_that_pools_beside_another_is_computed_elsewhere(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its vectors are those of an engine here, also where the worker there dies; a further model is computed here."""
    folder = tmp_path_factory.mktemp("encoder")
    write_model("bert", folder)
    write_modules(folder)
    (tmp_path / "secret").write_text(SECRET["ACTORSERVE_ENGINE_SECRET"])
    own = ("--dtype", "float32", "--device", "cpu", "--threads", "1", "--max-restarts", "100")
    secret = ("--engine-secret-file", str(tmp_path / "secret"))
    texts = [f"{number} of these are read" * (number % 5 + 1) for number in range(40)]

    async def embed(session: aiohttp.ClientSession, to: int) -> list[list[float]]:
        headers, body = {"X-data-parallel-rank": str(to)}, {"model": "embedder", "input": texts}
        async with session.post("/v1/embeddings", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return [one["embedding"] for one in (await response.json())["data"]]

    async def ask(here: Server, there: Server) -> None:
        async with http_session(here) as session:
            wanted = await embed(session, 0)
            assert np.allclose(await embed(session, 1), wanted, atol=1e-5)
            for victim in ("worker", "steward"):
                pid = there.pids()[victim]
                asking = [asyncio.create_task(embed(session, 1)) for _ in range(6)]
                await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                os.kill(pid, signal.SIGKILL)
                for found in await asyncio.gather(*asking):
                    assert np.allclose(found, wanted, atol=1e-5)
            assert await complete(session, None, model="other")

    with Server(str(folder), "--steward", "127.0.0.1:0", *own, *secret, subcommand="engine") as there:
        engines = ("--engines", there.base_url.removeprefix("engine://"), "--served-model-name", "embedder")
        also = ("--also", f"{DEMO_FOLDER},served-model-name=other,threads=1")
        with Server(str(folder), *own, *secret, *engines, *also) as here:
            asyncio.run(ask(here, there))


@pytest.mark.slow
def test_an_engine_has_tiers_and_tells_events_of_its_own(tmp_path: Path) -> None:
    """Its machine is lost with all memory: what it had computed is found in its folder, and listeners are told."""
    (tmp_path / "secret").write_text(SECRET["ACTORSERVE_ENGINE_SECRET"])
    said = {"enable_kv_cache_events": True, "endpoint": f"ipc://{tmp_path}/events", "topic": "kv"}
    own = ("--threads", "1", "--debug", "--engine-secret-file", str(tmp_path / "secret"))
    tiers = ("--kv-offload", f"folder:{tmp_path}/kv:1Gi", "--kv-events-config", json.dumps(said))
    prompt = "A prefix that is long enough for some blocks. " * 20
    listening = zmq.Context()
    events = listening.socket(zmq.SUB)
    events.subscribe(b"kv")
    events.connect(f"ipc://{tmp_path}/events")

    async def cached(here: Server) -> int:
        async with http_session(here) as session:
            body = {"prompt": prompt, "max_tokens": 2}
            async with session.post("/v1/completions", json=body) as response:
                assert response.status == 200, await response.text()
                return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with Server("--steward", address, *own, *tiers, subcommand="engine") as there:
        with Server("--engines", address, "--data-parallel-size", "0", *own) as here:
            here.wait_for("engine 0 at .* is there", since_start=True)
            assert asyncio.run(cached(here)) == 0
            assert events.poll(10_000), "nobody was told of its blocks"
            while not stored(tmp_path / "kv"):
                time.sleep(0.02)  # they are written meanwhile, and nothing tells
            there.stop()
            with Server("--steward", address, *own, *tiers, subcommand="engine"):
                here.wait_for("engine 0 at .* is there")
                assert asyncio.run(cached(here)) > 100
    listening.destroy(linger=0)


def stored(folder: Path) -> bool:
    """Are there at least five blocks?"""
    return len([path for path in folder.rglob("*") if path.is_file()]) > 5


BLIND = """import actorserve.actors.protocol.sockets.engine_facts as facts
facts.unheeded_of = lambda config, on_gpu: ["watermarking_config"]
"""


@pytest.mark.slow
def test_a_watermark_that_an_engine_does_not_make_is_made_here_or_told(tmp_path: Path) -> None:
    """That is said by engines on GPUs; here one says it that would make it. It is not asked, wherever a request is
    wanted; where there is no engine of the server's own the client is told.
    """
    (tmp_path / "sitecustomize.py").write_text(BLIND)
    (tmp_path / "secret").write_text(SECRET["ACTORSERVE_ENGINE_SECRET"])
    own = ("--threads", "1", "--debug", "--engine-secret-file", str(tmp_path / "secret"))
    marked = {"watermarking_config": {"bias": 9.0}, "max_tokens": 40, "ignore_eos": True}

    async def here_and_there(server: Server) -> None:
        async with http_session(server) as session:
            plain = await complete(session, 0, max_tokens=40, ignore_eos=True)
            wanted = await complete(session, 0, **marked)
            assert wanted != plain
            told = [complete(session, to, **marked) for to in (1, 1, None, None)]
            assert await asyncio.gather(*told) == [wanted] * 4
            assert await complete(session, 1, max_tokens=40, ignore_eos=True) == plain

    async def nowhere(server: Server) -> tuple[int, str]:
        async with http_session(server) as session:
            async with session.post("/v1/completions", json={"prompt": "Once", **marked}) as response:
                return response.status, await response.text()

    env = {"PYTHONPATH": str(tmp_path)}
    with Server("--steward", "127.0.0.1:0", *own, subcommand="engine", env=env) as there:
        engines = ("--engines", there.base_url.removeprefix("engine://"))
        with Server(*engines, *own) as server:
            server.wait_for("the engine at .* does nothing of watermarking_config", since_start=True)
            asyncio.run(here_and_there(server))
        with Server(*engines, "--data-parallel-size", "0", *own) as server:
            server.wait_for("the engine at .* does nothing of watermarking_config", since_start=True)
            status, text = asyncio.run(nowhere(server))
            assert status == 400 and "watermark" in text


@pytest.mark.slow
def test_a_pause_that_waits_ends_what_a_lost_machine_had_begun() -> None:
    """Another machine, that had nothing to do, does not hold before."""
    own = ("--threads", "1", "--debug")
    machine = (*own, "--steward", "127.0.0.1:0")

    async def lose(here: Server, idle: Server, lost: Server) -> bool:
        wanted = {"max_tokens": 2400, "ignore_eos": True, "temperature": 1, "seed": 7}  # longer than the lines take
        async with http_session(here) as session:
            alone = await complete(session, 0, **wanted)
            asking = asyncio.create_task(complete(session, 1, **wanted))
            await begun(lost, [asking])
            pausing = asyncio.create_task(post(session, "/pause?mode=wait"))
            await asyncio.to_thread(idle.wait_for, "no more steps are planned")
            await asyncio.to_thread(lost.wait_for, "no more steps are planned")
            assert not asking.done()
            lost.process.kill()
            same = await asyncio.wait_for(asking, 120) == alone
            assert (await pausing)[0] == 200
            return same

    with (
        Server(*machine, subcommand="engine", env=SECRET) as idle,
        Server(*machine, subcommand="engine", env=SECRET) as lost,
    ):
        addresses = [one.base_url.removeprefix("engine://") for one in (idle, lost)]
        engines = ("--engines", *addresses, "--data-parallel-size", "0", "--admin-api-key", "root")
        with Server(*engines, *own, env=SECRET) as here:
            for number in (0, 1):
                here.wait_for(f"engine {number} at .* is there", since_start=True)
            assert asyncio.run(lose(here, idle, lost))
