"""Two engines of a server, one of them a machine of its own: answers are those of one, whoever dies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.observer.attach import attach
from tests.support.certificates import OPENSSL
from tests.support.client import http_session
from tests.support.models.adapters import write_adapters
from tests.support.plugins import logits_processors
from tests.support.selection import slow
from tests.support.server import WAIT_S, Server
from tests.support.streams.elsewhere import LONG, SECRET, STREAMS, all_answers, complete, post, read
from tests.support.until import until

from .cluster import begun, is_there, loaded, make_proofs, profiled, refused, write_weights

LORA = ("--enable-lora", "--max-loras", "2")
PROCESSORS = (*LORA, "--logits-processors", f"{logits_processors.__file__}:Only")


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """Options of certificates: those of one authority, and of a stranger."""
    if OPENSSL is None:
        pytest.skip("there is no openssl here")
    return make_proofs(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders with other numbers than the model's, of which one is on the server's machine alone."""
    root = tmp_path_factory.mktemp("weights")
    write_weights(root)
    return root


@pytest.fixture(scope="module")
def engine(proofs: dict[str, tuple[str, ...]], weights: Path) -> Iterator[Server]:
    options = ("--steward", "127.0.0.1:0", "--threads", "1", "--debug", "--max-restarts", "100", *proofs["known"])
    own = ("--weights-folder", str(weights / "both"), "--profile-dir", str(weights / "there"))
    with Server(*options, *PROCESSORS, *own, subcommand="engine", env=SECRET) as made:
        yield made


@pytest.fixture(scope="module")
def server(engine: Server, proofs: dict[str, tuple[str, ...]], weights: Path) -> Iterator[Server]:
    """One engine here, and one there, with certificates and a secret between them."""
    address = engine.base_url.removeprefix("engine://")
    options = ("--engines", address, "--threads", "1", "--debug", "--max-restarts", "100", *proofs["known"])
    own = ("--admin-api-key", "root", "--weights-folder", str(weights), "--profile-dir", str(weights / "profiles"))
    with Server(*options, *PROCESSORS, *own, env=SECRET) as made:
        made.wait_for("engine 1 at .* is there", since_start=True)
        yield made


@pytest.fixture(scope="module")
def undisturbed(server: Server) -> list[list[Any]]:
    """By the engine here."""
    return asyncio.run(all_answers(server, to=0))


def test_an_engine_elsewhere_gives_the_same_answers(server: Server, undisturbed: list[list[Any]]) -> None:
    assert asyncio.run(all_answers(server, to=1)) == undisturbed


@pytest.mark.parametrize("victim", ["steward", *slow("worker", "scheduler")])
def test_a_death_elsewhere_changes_no_answer(
    server: Server, engine: Server, undisturbed: list[list[Any]], victim: str
) -> None:
    """Of its worker sequences go to the engine here, of the steward they are begun anew, of its scheduler they stay."""
    assert asyncio.run(all_answers(server, 1, (engine.pids()[victim],))) == undisturbed


def test_a_link_has_a_successor(server: Server, engine: Server, undisturbed: list[list[Any]]) -> None:
    assert asyncio.run(all_answers(server, 1, (server.pids()["link@1"],))) == undisturbed


def test_a_machine_that_is_lost_is_given_away_and_comes_back(
    server: Server, engine: Server, undisturbed: list[list[Any]]
) -> None:
    """All of its processes stand still, as behind a link that is cut: silence is what tells. Behind it they go on, and
    what they still have is dropped.
    """
    processes = [process for process in engine.processes() if process.is_running()]

    async def stand_still() -> list[list[Any]]:
        begun = asyncio.Barrier(len(STREAMS) + 1)
        async with http_session(server) as session:
            reading = [asyncio.create_task(read(session, number, begun, 1)) for number in range(len(STREAMS))]
            await begun.wait()
            for process in processes:
                process.suspend()
            return await asyncio.gather(*reading)

    try:
        assert asyncio.run(stand_still()) == undisturbed
        server.wait_for("engine 1 at .* is gone: nothing was heard for 1.5 s")
        with urllib.request.urlopen(f"{server.base_url}/ready") as response:
            said = json.loads(response.read())
        assert said["status"] == "degraded"
        assert "link@1" in json.dumps(said)
    finally:
        for process in processes:
            try:
                process.resume()
            except psutil.NoSuchProcess:
                continue
    server.wait_for("engine 1 at .* is there")
    assert asyncio.run(all_answers(server, to=1)) == undisturbed
    with urllib.request.urlopen(f"{server.base_url}/metrics") as response:
        lines = response.read().decode().splitlines()
    (losses,) = (line for line in lines if line.startswith("actorserve:engine_losses_total{") and 'engine="1"' in line)
    assert float(losses.rpartition(" ")[2]) >= 1


def test_a_request_on_which_workers_die_is_given_up(server: Server, engine: Server) -> None:
    """Wherever they are: suspicion goes with it, and who is suspect of two deaths is tried alone. The worker dies of
    the request itself, at its third token, each time; one beside it goes on.
    """
    body = {"prompt": "Once upon", "max_tokens": 30, "temperature": 1, "seed": 3, "vllm_xargs": {"fails": "dies"}}

    async def ask() -> tuple[int, str, bool]:
        async with http_session(server) as session:
            alone = await complete(session, 0, max_tokens=200, ignore_eos=True)
            beside = asyncio.create_task(complete(session, 1, max_tokens=200, ignore_eos=True))
            headers = {"X-data-parallel-rank": "1"}
            async with session.post("/v1/completions", json=body, headers=headers) as response:
                return response.status, await response.text(), await beside == alone

    is_there(server)
    status, text, same = asyncio.run(ask())
    assert (status, same) == (500, True), text
    until(lambda: "is given up: workers died on it" in server.output + engine.output)  # said by either, and not at once


def test_a_cache_elsewhere_is_known_here(server: Server) -> None:
    """What one engine has cached is asked of it again, and reset in both."""
    body = {"prompt": "A prefix that is long enough for some blocks. " * 12, "max_tokens": 4}

    async def cached(to: int | None) -> int:
        headers = {} if to is None else {"X-data-parallel-rank": str(to)}
        async with http_session(server) as session:
            response = await session.post("/v1/completions", json=body, headers=headers)
            return int((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert asyncio.run(cached(1)) == 0
    found = 0
    while not found:  # its KV map comes in differences, every 50 ms
        found = asyncio.run(cached(None))
    assert found >= 64


async def told(server: Server, to: int) -> Any:
    """All that there is of logprobs, of a prompt that both cut into blocks."""
    body = {"prompt": "One and two and three. " * 9, "max_tokens": 6, "temperature": 0, "seed": 1}
    choices = []
    for asked in ({"logprobs": 3, "prompt_logprobs": 2}, {"logprobs": 1, "logprob_token_ids": [5, 9, 300]}):
        async with http_session(server) as session:
            response = await session.post(
                "/v1/completions", json=body | asked, headers={"X-data-parallel-rank": str(to)}
            )
            assert response.status == 200, await response.text()
            choices.append((await response.json())["choices"])
    return json.loads(json.dumps(choices), parse_float=lambda text: round(float(text), 3))


def test_all_logprobs_cross_the_way(server: Server) -> None:
    assert asyncio.run(told(server, 1)) == asyncio.run(told(server, 0))


def test_a_pause_holds_engines_elsewhere_too(server: Server) -> None:
    async def tried() -> tuple[list[int], bool]:
        async with http_session(server) as session:
            statuses = [(await post(session, "/pause?mode=keep"))[0]]
            body, to = {"prompt": "Hello", "max_tokens": 3}, {"X-data-parallel-rank": "1"}
            asking = asyncio.create_task(session.post("/v1/completions", json=body, headers=to))
            done, _ = await asyncio.wait([asking], timeout=0.3)
            statuses.append((await post(session, "/resume"))[0])
            statuses.append((await asking).status)
            statuses.append((await post(session, "/reset_prefix_cache"))[0])
            return statuses, bool(done)

    assert asyncio.run(tried()) == ([200, 200, 200, 200], False)


def test_a_profile_has_the_actors_of_engines_elsewhere(server: Server, engine: Server) -> None:
    async def profile() -> Any:
        async with http_session(server) as session:
            assert (await post(session, "/start_profile?seconds=60"))[0] == 200
            await profiled(engine)
            await complete(session, 1, max_tokens=5)  # what is profiled takes many times as long
            return (await post(session, "/stop_profile"))[1]

    is_there(server)
    found = asyncio.run(profile())
    events = json.loads(Path(found["path"]).read_bytes())["traceEvents"]
    names = {one["args"]["name"]: one["pid"] for one in events if one["name"] == "process_name"}
    assert found["missing"] == {}
    assert {"worker@0", "link@1", "worker of engine 1", "steward of engine 1"} <= names.keys()
    seen = {one["name"] for one in events if one["ph"] == "X" and one["pid"] == names["worker of engine 1"]}
    assert {"run", "CpuRunner.run"} & seen


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_engines_elsewhere_sleep_and_wake_with_the_server(server: Server, engine: Server, mode: str) -> None:
    """What runs there waits for that, as here, or has ended before; its memory is given back."""
    is_there(server)

    async def sleep() -> tuple[str, bool, list[int], str, list[Any]]:
        async with http_session(server) as session:
            before = await complete(session, 1, max_tokens=60, ignore_eos=True)
            worker = engine.pids()["worker"]
            running = asyncio.create_task(complete(session, 1, max_tokens=60, ignore_eos=True))
            statuses = [(await post(session, f"/sleep?level=1&mode={mode}"))[0]]
            asking = asyncio.create_task(complete(session, 1, max_tokens=60, ignore_eos=True))
            done, _ = await asyncio.wait([asking], timeout=0.3)
            others = engine.pids()["worker"] != worker
            statuses.append((await post(session, "/wake_up"))[0])
            same = await asking == await running == before and not done
            return ("same" if same else "other"), others, statuses, "", await rpc(session)

    async def rpc(session: aiohttp.ClientSession) -> list[Any]:
        status, found = await post(session, "/collective_rpc", {"method": "num_threads"})
        assert status == 200, found
        return list(found["results"])

    told, others, statuses, _, threads = asyncio.run(sleep())
    assert (told, others, statuses, threads) == ("same", True, [200, 200], [1, 1])


def test_other_weights_are_loaded_there_too_or_nowhere(server: Server, weights: Path) -> None:
    async def change() -> None:
        async with http_session(server) as session:
            before = [await complete(session, to) for to in (0, 1)]
            status, found = await post(session, "/update_weights", {"path": str(weights / "here" / "newer")})
            assert status == 400
            assert "path: on the engine's machine" in found["error"]["message"]
            assert [await complete(session, to) for to in (0, 1)] == before  # nobody has slept
            for path in (weights / "both" / "new", DEMO_FOLDER):
                status, found = await post(session, "/update_weights", {"path": str(path), "mode": "keep"})
                assert status == 200, found
                after = [await complete(session, to) for to in (0, 1)]
                assert after[0] == after[1]
                assert (after == before) is (path == DEMO_FOLDER)

    is_there(server)
    asyncio.run(change())


@pytest.fixture(scope="module")
def adapters(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Paths: on both machines, and (by the folder in which its processes work) on the server's alone."""
    folder = tmp_path_factory.mktemp("adapters")
    first, second = (one.partition("=")[2] for one in write_adapters(folder, 2))
    shutil.copytree(second, Path(f"/proc/{server.pid}/cwd") / "here")
    return [first, "here"]


def test_adapters_are_loaded_there_and_go_on_through_deaths(
    server: Server, engine: Server, adapters: list[str]
) -> None:
    """One whose files are not there makes no request fail: it goes where they are."""
    is_there(server)

    async def ask() -> None:
        async with http_session(server) as session:
            for name, path in zip(("both", "here"), adapters, strict=True):
                assert (await post(session, "/v1/load_lora_adapter", {"lora_name": name, "lora_path": path}))[0] == 200
            wanted = {name: await complete(session, 0, model=name, **LONG) for name in ("both", "here")}
            assert len({await complete(session, 0, **LONG), *wanted.values()}) == 3
            for name in ("both", "here"):
                assert await complete(session, 1, model=name, **LONG) == wanted[name]
            for victim in ("worker", "steward", "scheduler"):
                await asyncio.to_thread(is_there, server)  # else the requests go elsewhere, and none runs there
                asking = [asyncio.create_task(complete(session, 1, model="both", **LONG)) for _ in range(3)]
                await begun(engine, asking)
                os.kill(engine.pids()[victim], signal.SIGKILL)
                assert await asyncio.gather(*asking) == [wanted["both"]] * 3, victim
            assert (await post(session, "/v1/unload_lora_adapter", {"lora_name": "both"}))[0] == 200
            missing = {"model": "both", "prompt": "Hello", "max_tokens": 3}
            assert (await post(session, "/v1/completions", missing))[0] == 404

    asyncio.run(ask())
    server.wait_for("the adapter here cannot be used: engine 1 at .*: here cannot be read there", since_start=True)
    while loaded(engine):
        time.sleep(0.02)  # likewise: once nothing has it


def test_an_adapter_whose_files_change_is_the_one_that_was_loaded_in_every_engine(
    server: Server, engine: Server, tmp_path: Path
) -> None:
    """Its requests go where that is still in memory, when a worker elsewhere would have to read it again."""
    is_there(server)
    first, second = (Path(one.partition("=")[2]) for one in write_adapters(tmp_path, 2))

    async def ask() -> None:
        async with http_session(server) as session:
            load = {"lora_name": "changing", "lora_path": str(first)}
            assert (await post(session, "/v1/load_lora_adapter", load))[0] == 200
            wanted = [await complete(session, to, model="changing", **LONG) for to in (0, 1)]
            await asyncio.to_thread(is_there, server)
            asking = [asyncio.create_task(complete(session, 1, model="changing", **LONG)) for _ in range(3)]
            await begun(engine, asking)
            for file in second.iterdir():
                shutil.copyfile(file, first / file.name)
            os.kill(engine.pids()["worker"], signal.SIGKILL)
            assert [*wanted, *await asyncio.gather(*asking)] == [wanted[0]] * 5
            assert await complete(session, 1, model="changing", **LONG) == wanted[0]
            assert (await post(session, "/v1/unload_lora_adapter", {"lora_name": "changing"}))[0] == 200

    asyncio.run(ask())
    told = "the adapter changing cannot be used: engine 1 at .*: its files there have changed since it was loaded"
    server.wait_for(told, since_start=True)


def test_a_wrong_secret_is_refused_and_logged(
    engine: Server, proofs: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("something else, but long")
    secret = ("--engine-secret-file", str(tmp_path / "secret"))
    with refused(engine, *secret, *proofs["known"]) as other:
        other.wait_for("cannot be used: the secret of --engine-secret-file is another one")
        engine.wait_for("a server at 127.0.0.1 is refused: the secret of --engine-secret-file is another one")


def test_one_that_differs_is_refused_by_name(engine: Server, proofs: dict[str, tuple[str, ...]]) -> None:
    with refused(engine, "--block-size", "16", *proofs["known"], env=SECRET) as other:
        processors = r"--logits-processors: {}logits_processors.py:Only \(\w+\){}, --block-size: {} here, {} there"
        other.wait_for("cannot be used: it differs: " + processors.format("none here, ", " there", 16, 32))
        url = "http://" + other.wait_for(r"listening on (\S+),", since_start=True)[1]
        with pytest.raises(urllib.error.HTTPError) as ready:
            urllib.request.urlopen(f"{url}/ready")
        assert "link: its engine at" in (why := ready.value.read().decode())
        assert "it differs: --logits-processors: none here" in why
        with urllib.request.urlopen(f"{url}/metrics") as response:
            assert "actorserve:engine_trouble{" in response.read().decode()
        attached = attach(pid=other.pid)
        held = attached.look().held[0]
        attached.close()
        assert "it differs: --logits-processors: none here" in held
        engine.wait_for("is refused: it differs: " + processors.format("", " here, none there", 32, 16))


def test_strangers_do_not_get_in_and_harm_nobody(engine: Server, proofs: dict[str, tuple[str, ...]]) -> None:
    """Neither with a certificate of another authority nor with what is no TLS at all."""
    steward = engine.pids()["steward"]
    host, _, port = engine.base_url.removeprefix("engine://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as own:
        own.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while own.recv(4096):
            pass
    with refused(engine, *proofs["stranger"], env=SECRET) as other:
        other.wait_for("engine 0 at .* cannot be reached: ")
    assert engine.pids()["steward"] == steward
