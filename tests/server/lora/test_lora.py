"""Adapters through the real server: what PEFT says, loads and unloads while requests run, and deaths."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.observer.commands import port_of, run
from tests.support.client import http_client, http_session
from tests.support.models.adapters import KINDS, change_config, logprobs_of, write_adapter
from tests.support.models.checkpoints import checkpoint
from tests.support.server import Server

ADMIN = {"Authorization": "Bearer secret"}
PROMPT = list(range(5, 45))
TOKENS = 40
FOUND = "found-by-name"


class Scene:
    """A server with adapters of all kinds; one more in --lora-folder."""

    def __init__(self, root: Path) -> None:
        self.base = checkpoint("qwen3", root, initializer_range=0.1)
        self.paths: dict[str, Path | None] = {"base": None}
        for seed, (kind, config) in enumerate(KINDS.items()):
            self.paths[kind] = write_adapter(self.base, root / "adapters" / kind, seed, **config)
        self.paths[FOUND] = write_adapter(self.base, root / "folder" / FOUND, 9, safe=False, **KINDS["rslora"])
        self.given = [f"{name}={path}" for name, path in self.paths.items() if name in KINDS]
        self.root = root
        self.wanted = cache(self._wanted)
        self.server: Server

    @property
    def options(self) -> list[str]:
        return [
            *(str(self.base), "--served-model-name", "base", "--enable-lora", "--lora-modules", *self.given),
            *("--lora-folder", str(self.root / "folder"), "--admin-api-key", "secret", "--threads", "1", "--debug"),
            *("--max-model-len", "256", "--max-num-seqs", "8", "--max-loras", "3", "--max-cpu-loras", "4"),
        ]

    def post(self, path: str, body: dict[str, Any], **headers: str) -> Any:
        with http_client(self.server) as client:
            return client.post(path, json=body, headers=headers)

    def ask(self, name: str, **fields: Any) -> Any:
        answer = self.post("/v1/completions", body(name) | fields)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def _wanted(self, name: str) -> list[int]:
        """What is said, undisturbed."""
        ids: list[int] = self.ask(name)["choices"][0]["token_ids"]
        return ids


def body(name: str) -> dict[str, Any]:
    how = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    return {"model": name, "prompt": PROMPT, **how}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("lora"))
    with Server(*made.options) as server:
        made.server = server
        yield made


def test_all_kinds_at_once_are_what_peft_says(scene: Scene) -> None:
    """More adapters than run at once, or are in memory; one of them is found by its name."""
    names = [*scene.paths] * 2
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: scene.ask(name), names))
    said = set()
    for name, answer in zip(names, answers, strict=True):
        assert answer["model"] == name
        choice = answer["choices"][0]
        ids = choice["token_ids"]
        wanted = logprobs_of(scene.base, scene.paths[name], PROMPT + ids)
        off = [
            abs(found - float(wanted[len(PROMPT) - 1 + index, token]))
            for index, (token, found) in enumerate(zip(ids, choice["logprobs"]["token_logprobs"], strict=True))
        ]
        assert max(off) < 1e-5, name
        assert ids == scene.wanted(name)
        said.add(tuple(ids))
    assert len(said) == len(scene.paths)


def test_a_prefix_of_one_adapter_is_none_of_another(scene: Scene) -> None:
    """The prompt fills blocks. What another adapter has computed of it would be found, and other words come of it; so
    it would be if an adapter took another's place under the same name.
    """
    prompt = [*range(50, 50 + 96), 7]

    def ask(name: str) -> tuple[list[int], int]:
        answer = scene.ask(name, prompt=prompt)
        return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    place = scene.root / "changing"
    shutil.copytree(scene.root / "adapters" / "rslora", place)
    given = {"lora_name": "changing", "lora_path": str(place)}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    first = {name: ask(name) for name in ("base", "rslora", "dora", "changing")}
    assert [cached for _, cached in first.values()] == [0] * 4
    assert first["changing"][0] == first["rslora"][0]
    again = {name: ask(name) for name in first}
    assert {name: ids for name, (ids, _) in again.items()} == {name: ids for name, (ids, _) in first.items()}
    assert all(cached == 96 for _, cached in again.values())
    shutil.rmtree(place)
    shutil.copytree(scene.root / "adapters" / "dora", place)
    assert scene.post("/v1/load_lora_adapter", given | {"load_inplace": True}, **ADMIN).status_code == 200
    assert ask("changing") == (first["dora"][0], 0)
    assert scene.post("/v1/unload_lora_adapter", {"lora_name": "changing"}, **ADMIN).status_code == 200


def test_models_and_metrics(scene: Scene) -> None:
    scene.wanted(FOUND)
    with http_client(scene.server) as client:
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert cards.keys() == scene.paths.keys()
        assert cards["base"]["parent"] is None and cards["dora"]["parent"] == "base"
        assert cards["dora"]["root"] == str(scene.paths["dora"])
        assert client.get("/v1/models/rslora").json() == cards["rslora"]
        assert client.get("/v1/models/none").status_code == 404
        assert 'vllm:lora_requests_info{max_lora="3",running_lora_adapters=""' in client.get("/metrics").text
    missing = scene.post("/v1/completions", body("none"))
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


def test_why_names_its_adapter(scene: Scene) -> None:
    name = next(name for name in scene.paths if name != "base")
    for number, (model, told) in enumerate(((name, True), ("base", False))):
        answer = scene.post("/v1/completions", body(model), **{"X-Request-Id": f"adapted-{number}"})
        assert answer.status_code == 200, answer.text
        said = run("why", f"adapted-{number}", "--server", port_of(scene.server)).stdout
        lines = [" ".join(line.split()) for line in said.splitlines()]
        assert any(line.startswith("adapter") and line.endswith(name) for line in lines) == told, said


def test_every_api_has_them(scene: Scene) -> None:
    """The answer is the adapter's, and says so."""
    chat = {"messages": [{"role": "user", "content": "Who?"}], "temperature": 0, "max_tokens": 12, "ignore_eos": True}

    def texts(name: str) -> list[str]:
        said = scene.post("/v1/chat/completions", chat | {"model": name}).json()
        assert said["model"] == name
        given = {"model": name, "max_tokens": 12, "temperature": 0, "messages": chat["messages"]}
        message = scene.post("/v1/messages", given).json()
        response = scene.post(
            "/v1/responses", {"model": name, "input": "Who?", "temperature": 0, "max_output_tokens": 12}
        ).json()
        assert message["model"] == response["model"] == name
        searched = {"model": name, "prompt": PROMPT, "max_tokens": 6, "use_beam_search": True, "n": 2}
        beams = scene.post("/v1/completions", searched).json()
        tokens = scene.post(
            "/inference/v1/generate",
            {"model": name, "token_ids": PROMPT, "sampling_params": {"temperature": 0, "max_tokens": 9}},
        ).json()
        answers = (said["choices"], message["content"], beams["choices"], tokens["choices"])
        return [json.dumps(one) for one in answers]

    for plain, adapted in zip(texts("base"), texts("dora"), strict=True):
        assert plain != adapted


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


async def stream(session: aiohttp.ClientSession, name: str, begun: list[str], tokens: int = TOKENS) -> list[int]:
    ids: list[int] = []
    given = body(name) | {"stream": True, "max_tokens": tokens}
    async with session.post("/v1/completions", json=given) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                assert "error" not in chunk, chunk
                ids += chunk["choices"][0].get("token_ids") or []
                begun.append(name)
    return ids


async def until(begun: list[str], count: int) -> None:
    async with asyncio.timeout(60):
        while len(begun) < count:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("actor", ["worker", "scheduler", "frontend-0", "renderer-0", "detokenizer-0"])
async def test_after_a_death_each_stream_has_its_own_adapter(actor: str, scene: Scene) -> None:
    """Those that were loaded while the server ran, too."""
    given = {"lora_name": "late", "lora_path": str(scene.paths["patterns"])}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    names = ["base", "dora", "rslora", "late", "plain", "dora"]
    begun: list[str] = []
    async with http_session(scene.server) as session:
        tasks = [asyncio.create_task(stream(session, name, begun)) for name in names]
        await until(begun, 20)
        os.kill(scene.server.actors()[actor], signal.SIGKILL)
        answers = await asyncio.gather(*tasks)
    wanted = [scene.wanted("patterns" if name == "late" else name) for name in names]
    assert answers == wanted
    assert scene.ask("late")["choices"][0]["token_ids"] == scene.wanted("patterns")


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
        os.kill(scene.server.actors()["frontend-0"], signal.SIGKILL)
        assert await task == wanted


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
