"""Adapters are loaded and unloaded while requests run: who may, what is refused, and what goes on without them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.observer.attach import attach
from actorserve.shm.adapters.registry import AdapterRegistry
from tests.observer.commands import port_of
from tests.support.client import http_client, http_session
from tests.support.models.adapters import change_config
from tests.support.server import Server

from .scene import ADMIN, FOUND, PROMPT, Scene, body, stream, until

DIES = """
import asyncio, os, pathlib, signal
from aiohttp import web

folder = pathlib.Path(os.environ["DIES_IN"])

@web.middleware
async def late(request, handler):
    response = await handler(request)
    if request.path == "/v1/completions" and (folder / "armed").exists():
        (folder / "armed").unlink()
        while not (folder / "unloaded").exists():
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return response
"""


BAD: list[tuple[dict[str, Any], str]] = [
    ({"r": 3}, "in place of [3, "),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported"),
]


@pytest.mark.parametrize(("config", "reason"), BAD)
def test_a_bad_adapter_is_refused_with_the_reason(
    config: dict[str, Any], reason: str, scene: Scene, tmp_path: Path
) -> None:
    shutil.copytree(scene.root / "adapters" / "plain", tmp_path / "bad")
    change_config(tmp_path / "bad", **config)
    given = {"lora_name": "bad", "lora_path": str(tmp_path / "bad")}
    for path in ("/v1/load_lora_adapter", "/v1/lora/load"):
        answer = scene.post(path, given, **ADMIN)
        assert answer.status_code == 400 and reason in answer.json()["error"]["message"]
    assert scene.post("/v1/completions", body("bad")).status_code == 404
    assert scene.ask("dora")["choices"][0]["token_ids"] == scene.wanted("dora")


def test_loading_and_unloading_is_the_administrators(scene: Scene, tmp_path: Path) -> None:
    given = {"lora_name": "own", "lora_path": str(scene.paths["plain"])}
    assert scene.post("/v1/load_lora_adapter", given).status_code == 401
    for name, reason in (("base", "the name of the model itself"), ("", "is no name of an adapter")):
        answer = scene.post("/v1/load_lora_adapter", given | {"lora_name": name}, **ADMIN)
        assert answer.status_code == 400 and reason in answer.json()["error"]["message"]
    answer = scene.post("/v1/load_lora_adapter", given | {"lora_path": str(tmp_path / "none")}, **ADMIN)
    assert answer.status_code == 400 and "there is no folder" in answer.json()["error"]["message"]
    for _ in range(2):  # a client that asks again changes nothing
        assert "added successfully" in scene.post("/v1/load_lora_adapter", given, **ADMIN).text
    other = scene.post("/v1/load_lora_adapter", given | {"lora_path": str(scene.paths["dora"])}, **ADMIN)
    assert other.status_code == 400 and "load_inplace" in other.json()["error"]["message"]
    assert scene.ask("own")["choices"][0]["token_ids"] == scene.wanted("plain")
    assert "removed successfully" in scene.post("/v1/lora/unload", {"lora_name": "own"}, **ADMIN).text
    assert scene.post("/v1/completions", body("own")).status_code == 404
    assert scene.post("/v1/lora/unload", {"lora_name": "never"}, **ADMIN).status_code == 404


HI = {"messages": [{"role": "user", "content": "Who?"}]}
OLLAMA = {"stream": False, "options": {"temperature": 0, "num_predict": 9}}
FIRST_REQUESTS: list[tuple[str, dict[str, Any], str]] = [  # (path, body, where the text stands)
    ("/api/chat", HI | OLLAMA, "message"),
    ("/api/generate", {"prompt": "Who?", "raw": True} | OLLAMA, "response"),
    ("/v2/chat", HI | {"temperature": 0, "max_tokens": 9}, "message"),
    ("/completion", {"prompt": PROMPT, "temperature": 0, "n_predict": 9}, "content"),
    ("/v1/chat/completions/batch", {"messages": [HI["messages"]], "temperature": 0, "max_tokens": 9}, "choices"),
]


@pytest.mark.parametrize(("path", "sent", "field"), FIRST_REQUESTS)
def test_one_of_the_folder_is_loaded_by_whatever_api_names_it_first(
    scene: Scene, path: str, sent: dict[str, Any], field: str
) -> None:
    scene.post("/v1/lora/unload", {"lora_name": FOUND}, **ADMIN)
    first = scene.post(path, sent | {"model": FOUND})
    assert first.status_code == 200, first.text
    base = scene.post(path, sent | {"model": "base"})
    assert first.json()[field] != base.json()[field]
    assert scene.post(path, sent | {"model": "nobody"}).status_code == 404


def test_ollama_loads_one_by_a_request_for_nothing(scene: Scene) -> None:
    scene.post("/v1/lora/unload", {"lora_name": FOUND}, **ADMIN)
    requests: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/api/chat", {"messages": []}),
        ("/api/generate", {"prompt": ""}),
    )
    for path, sent in requests:
        assert scene.post(path, sent | {"model": f"{FOUND}:latest"}).json()["done_reason"] == "load"
        assert FOUND in scene.post("/v1/lora/unload", {"lora_name": FOUND}, **ADMIN).text


async def test_unloading_waits_for_who_has_it(scene: Scene) -> None:
    """A stream goes on to its end, and then the adapter is gone; a frontend's death does not change that."""
    given = {"lora_name": "going", "lora_path": str(scene.paths["dora"])}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    wanted = scene.ask("dora", max_tokens=150)["choices"][0]["token_ids"]
    begun: list[str] = []
    async with http_session(scene.server) as session:
        task = asyncio.create_task(stream(session, "going", begun, 150))
        await until(begun, 3)
        unloaded = await asyncio.to_thread(scene.post, "/v1/unload_lora_adapter", {"lora_name": "going"}, **ADMIN)
        assert unloaded.status_code == 200
        refused = await asyncio.to_thread(scene.post, "/v1/completions", body("going"))
        assert refused.status_code == 404
        await asyncio.to_thread(scene.server.replace, "frontend-0")
        assert await task == wanted


def test_a_repeat_is_answered_whose_adapter_is_gone_by_then(scene: Scene) -> None:
    """From the slots of the first time; another request of that name is refused, and so is one without them."""
    given = {"lora_name": "asked-twice", "lora_path": str(scene.paths["dora"])}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    key, asked = {"Idempotency-Key": "of an adapter"}, body("asked-twice") | {"temperature": 1, "seed": None}
    first = scene.post("/v1/completions", asked, **key)
    unloaded = scene.post("/v1/unload_lora_adapter", {"lora_name": "asked-twice"}, **ADMIN)
    assert first.status_code == unloaded.status_code == 200
    again = scene.post("/v1/completions", asked, **key)
    assert (again.status_code, again.json()) == (200, first.json())
    assert scene.post("/v1/completions", asked | {"max_tokens": 3}, **key).status_code == 404
    assert scene.post("/v1/completions", asked, **{"Idempotency-Key": "another"}).status_code == 404
    assert scene.post("/v1/completions", asked).status_code == 404


@pytest.mark.slow
def test_an_answer_is_handed_over_whose_adapter_is_gone_by_then(scene: Scene, tmp_path: Path) -> None:
    """Its frontend dies between the end of the text and the first byte of the answer."""
    (tmp_path / "dies.py").write_text(DIES)
    options = (*scene.options, "--middleware", "dies:late", "--max-restarts", "100")
    given = {"lora_name": "late", "lora_path": str(scene.paths["dora"])}
    asked = body("late") | {"temperature": 1, "seed": 7}
    with (
        Server(*options, env={"DIES_IN": str(tmp_path), "PYTHONPATH": str(tmp_path)}) as server,
        http_client(server) as client,
    ):

        def post(path: str, sent: dict[str, Any], **headers: str) -> Any:
            return client.post(path, json=sent, headers=headers)

        assert post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
        wanted = post("/v1/completions", asked).json()["choices"]
        (tmp_path / "armed").touch()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(http_client_post, server, asked)
            while (tmp_path / "armed").exists():
                time.sleep(0.01)
            assert post("/v1/unload_lora_adapter", {"lora_name": "late"}, **ADMIN).status_code == 200
            (tmp_path / "unloaded").touch()
            found = answer.result()
        assert found.status_code == 200 and found.json()["choices"] == wanted
        assert post("/v1/completions", asked).status_code == 404


def http_client_post(server: Server, sent: dict[str, Any]) -> Any:
    with http_client(server) as client:
        return client.post("/v1/completions", json=sent)


async def test_a_stream_goes_on_whose_adapter_is_gone_by_then(scene: Scene) -> None:
    """All of its tokens are there, and the unload is over, before the frontend's successor comes."""
    given = {"lora_name": "gone", "lora_path": str(scene.paths["dora"])}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    wanted = scene.ask("dora", max_tokens=200)["choices"][0]["token_ids"]
    attached, begun = attach(int(port_of(scene.server))), list[str]()
    assert attached.system.adapters_offset is not None
    registry = AdapterRegistry(attached.segment, attached.system.adapters_offset)
    async with http_session(scene.server) as session:
        task = asyncio.create_task(stream(session, "gone", begun, 200))
        await until(begun, 3)
        unloaded = await asyncio.to_thread(scene.post, "/v1/unload_lora_adapter", {"lora_name": "gone"}, **ADMIN)
        assert unloaded.status_code == 200
        frontend = scene.server.actors()["frontend-0"]
        scene.server.signal(signal.SIGSTOP)
        try:
            os.kill(frontend, signal.SIGKILL)
            async with asyncio.timeout(60):
                while any(one.name == "gone" for one in registry.all()):
                    await asyncio.sleep(0.01)
        finally:
            scene.server.signal(signal.SIGCONT)
        assert await task == wanted
    await asyncio.to_thread(scene.server.wait_for, rf"frontend-0 ended \(pid {frontend}, ")
    await asyncio.to_thread(scene.server.wait_for, "frontend-0 is up")
    attached.close()


async def test_loads_and_unloads_under_load_leave_nothing_behind(scene: Scene) -> None:
    """Memory and descriptors of all actors; with 1,000 of them in tools/chaos/adapters."""
    import psutil

    def sizes() -> dict[str, tuple[int, int]]:
        each = {name: psutil.Process(pid) for name, pid in scene.server.actors().items()}
        return {name: (one.num_fds(), one.num_threads()) for name, one in each.items()}

    stop, before = asyncio.Event(), sizes()

    async def load() -> int:
        count = 0
        async with http_session(scene.server) as session:
            while not stop.is_set():
                assert await stream(session, "dora", [], 20) == scene.wanted("dora")[:20]
                count += 1
        return count

    running = asyncio.create_task(load())
    async with http_session(scene.server) as session:
        for number in range(12):
            given = {"lora_name": f"n{number}", "lora_path": str(scene.paths["rslora"])}
            async with session.post("/v1/lora/load", json=given, headers=ADMIN) as answer:
                assert answer.status == 200, await answer.text()
            assert await stream(session, f"n{number}", [], 5) == scene.wanted("rslora")[:5]
            own = {"lora_name": f"n{number}"}
            async with session.post("/v1/lora/unload", json=own, headers=ADMIN) as answer:
                assert answer.status == 200, await answer.text()
    stop.set()
    assert await running > 0
    after = sizes()
    assert {name: threads for name, (_, threads) in after.items()} == {name: one[1] for name, one in before.items()}


def test_a_bad_module_ends_the_start_with_its_name(scene: Scene, tmp_path: Path) -> None:
    shutil.copytree(scene.root / "adapters" / "plain", tmp_path / "bad")
    change_config(tmp_path / "bad", use_dora=True)
    with Server(str(scene.base), "--enable-lora", "--lora-modules", f"bad={tmp_path / 'bad'}", wait=False) as server:
        assert "--lora-modules: bad: model.layers.0." in server.read_all()
