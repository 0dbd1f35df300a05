"""Adapters through the real server: what PEFT says, all that name them, and deaths."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.observer.commands import port_of, run
from tests.support.client import http_client, http_session
from tests.support.models.adapters import logprobs_of
from tests.support.selection import slow

from .scene import ADMIN, FOUND, PROMPT, Scene, body, stream, until

LONG = 200
TAKEN = r"{} requests go on, (\d+) of their (\d+) tokens of KV"


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


def test_an_adapter_by_sglangs_name(scene: Scene) -> None:
    answer = scene.ask("base", lora_path="rslora")
    assert answer["model"] == "rslora" and answer["choices"][0]["token_ids"] == scene.wanted("rslora")
    missing = scene.post("/v1/completions", body("base") | {"lora_path": "nobody"})
    assert missing.status_code == 404 and "nobody" in missing.json()["error"]["message"]


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


async def test_files_that_were_written_anew_are_read_as_another_load(scene: Scene) -> None:
    """By a worker's successor. No text is of both, nor of KV of both: a stream that has begun is ended by name."""
    place = scene.root / "written-anew"
    shutil.copytree(scene.root / "adapters" / "rslora", place)
    given = {"lora_name": "written-anew", "lora_path": str(place)}
    assert scene.post("/v1/load_lora_adapter", given, **ADMIN).status_code == 200
    assert scene.ask("written-anew")["choices"][0]["token_ids"] == scene.wanted("rslora")
    begun: list[str] = []
    async with http_session(scene.server) as session:
        old = asyncio.create_task(stream(session, "written-anew", begun, LONG))
        beside = asyncio.create_task(stream(session, "plain", begun, LONG))
        await until(begun, 8)
        shutil.rmtree(place)
        shutil.copytree(scene.root / "adapters" / "dora", place)
        os.kill(scene.server.actors()["worker"], signal.SIGKILL)
        with pytest.raises(AssertionError, match="its files were changed"):
            await old
        wanted = await asyncio.to_thread(scene.ask, "plain", max_tokens=LONG)
        assert await beside == wanted["choices"][0]["token_ids"]
    answer = scene.ask("written-anew")
    assert answer["choices"][0]["token_ids"] == scene.wanted("dora")
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert scene.post("/v1/unload_lora_adapter", {"lora_name": "written-anew"}, **ADMIN).status_code == 200


def test_models_and_metrics(scene: Scene) -> None:
    scene.wanted(FOUND)
    with http_client(scene.server) as client:
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert cards.keys() == scene.paths.keys()
        assert {model["name"] for model in client.get("/api/tags").json()["models"]} == cards.keys()
        assert cards["base"]["parent"] is None and cards["dora"]["parent"] == "base"
        assert cards["dora"]["root"] == str(scene.paths["dora"])
        assert client.get("/v1/models/rslora").json() == cards["rslora"]
        assert client.get("/v1/models/none").status_code == 404
        told = client.get("/metrics").text
    assert 'vllm:lora_requests_info{max_lora="3",running_lora_adapters=""' in told
    assert f'actorserve:adapters{{model_name="base",state="ready"}} {len(scene.paths) - 1}' in told
    assert 'actorserve:adapter_requests{adapter="dora",model_name="base",state="running"} 0' in told
    missing = scene.post("/v1/completions", body("none"))
    assert missing.status_code == 404 and missing.json()["error"]["code"] == "model_not_found"


async def test_ps_top_and_the_page_name_them(scene: Scene) -> None:
    begun: list[str] = []
    async with http_session(scene.server) as session:
        task = asyncio.create_task(stream(session, "dora", begun, 200))
        await until(begun, 1)
        place = "--server", port_of(scene.server)
        said = await asyncio.to_thread(run, "top", "--once", "--interval", "0.1", *place)
        listed = await asyncio.to_thread(run, "ps", *place)
        told = json.loads((await asyncio.to_thread(run, "ps", "--json", *place)).stdout)["adapters"]
        async with session.get("/page/events") as response:
            event = json.loads((await response.content.readline()).removeprefix(b"data: "))
        await task
    ready = f"{len(scene.paths) - 1} ready"
    for text in (said.stdout, listed.stdout):
        (line,) = [line for line in text.splitlines() if line.startswith("adapters")]
        assert ready in line, text
    assert ready in event["adapters"]
    assert {one["name"]: one["path"] for one in told if one["state"] == "ready"} == {
        name: str(path) for name, path in scene.paths.items() if path is not None
    }


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


@pytest.mark.parametrize("actor", ["scheduler", "frontend-0", *slow("worker", "renderer-0", "detokenizer-0")])
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


async def test_streams_go_on_in_the_kv_memory_of_a_worker_that_died(scene: Scene) -> None:
    """As soon as each has its adapter again: tokens that were computed with it are not computed again."""
    names = ["base", "dora", "rslora", "head"]
    wanted = [scene.ask(name, max_tokens=LONG)["choices"][0]["token_ids"] for name in names]
    begun: list[str] = []
    async with http_session(scene.server) as session:
        tasks = [asyncio.create_task(stream(session, name, begun, LONG)) for name in names]
        async with asyncio.timeout(60):
            while len(set(begun)) < len(names):
                await asyncio.sleep(0.005)
        os.kill(scene.server.actors()["worker"], signal.SIGKILL)
        assert await asyncio.gather(*tasks) == wanted
    taken, known = map(int, scene.server.wait_for(TAKEN.format(len(names)), since_start=True).groups())
    assert taken == known - len(names), "of each the last token alone, of which nothing has been computed"
