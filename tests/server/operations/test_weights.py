"""`/update_weights`, `/collective_rpc`, `/server_info` and profiles of a running server."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.cli import main
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.protocol.topics.administration import METHODS
from actorserve.shm.weights import WeightsRecord
from tests.support.server import Server
from tests.support.streams.operated import ADMIN, LONG, Stream, ask, complete, session_of

EXTENSION = """
class Extension:
    def __init__(self, worker):
        self._worker = worker

    def scaled(self, value, by=2):
        return {"value": value * by, "blocks": self._worker.blocks}

    def break_steps(self, kind):
        def run(step):
            raise {"RuntimeError": RuntimeError, "MemoryError": MemoryError}[kind]("planted")

        self._worker.runner.run = run

    def broken(self):
        raise RuntimeError("planted")
"""
TEXT: dict[str, Any] = {"prompt": "Once upon a time there was a fox. " * 8, "max_tokens": 20, "temperature": 0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model; the same with other numbers below `others`; and what cannot take its place."""
    root = tmp_path_factory.mktemp("weights")
    for name in ("model", "others/new", "others/cut", "others/shape", "elsewhere"):
        shutil.copytree(DEMO_FOLDER, root / name)
    (file,) = (root / "others" / "new").glob("*.safetensors")
    generator = torch.Generator().manual_seed(1)
    tensors = load_file(file)
    noisy = {
        name: one + 0.02 * torch.randn(one.shape, generator=generator).to(one.dtype) for name, one in tensors.items()
    }
    save_file(noisy, file)
    (cut,) = (root / "others" / "cut").glob("*.safetensors")
    cut.write_bytes(cut.read_bytes()[:-1000])
    config = root / "others" / "shape" / "config.json"
    config.write_text(config.read_text().replace('"rms_norm_eps"', '"rms_norm_other"'))
    (root / "extension.py").write_text(EXTENSION)
    return root


@pytest.fixture(scope="module")
def server(folders: Path) -> Iterator[Server]:
    words = ("--threads", "1", "--admin-api-key", ADMIN["X-Api-Key"], "--max-restarts", "1000")
    own = (
        "--dump-dir",
        str(folders / "dumps"),
        "--profile-dir",
        str(folders / "profiles"),
        "--weights-folder",
        str(folders / "others"),
        "--worker-extension-cls",
        f"{folders / 'extension.py'}:Extension",
    )
    with Server(str(folders / "model"), *words, *own) as running:
        yield running


async def test_other_weights_take_the_place_of_the_models(server: Server, folders: Path) -> None:
    async with session_of(server) as session:
        before = await complete(session, **TEXT)
        assert (await complete(session, **TEXT))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        (first,) = (await ask(session, "post", "/collective_rpc", {"method": "model"}))["results"]
        kept = Stream(session, **LONG)
        await kept.moved()
        asked = {"path": str(folders / "others" / "new"), "mode": "keep"}
        assert (await ask(session, "post", "/update_weights", asked))["success"] is True
        after = await complete(session, **TEXT)
        assert after["choices"][0]["text"] != before["choices"][0]["text"]
        assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        await kept.task
        assert kept.finish_reason == "length"
        for name in ("worker", "scheduler"):
            os.kill(server.actors()[name], signal.SIGKILL)
            again = await complete(session, **TEXT)
            assert again["choices"][0]["text"] == after["choices"][0]["text"], "whoever starts loads the same"
        (model,) = (await ask(session, "post", "/collective_rpc", {"method": "model"}))["results"]
        assert (model["generation"], model["folder"]) == (first["generation"] + 1, str(folders / "others" / "new"))
        assert (await ask(session, "post", "/update_weights", {}))["success"] is True
        back = await complete(session, **TEXT)
        assert back["choices"][0]["text"] == before["choices"][0]["text"]
        assert back["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_folder_that_has_changed_is_loaded_again(server: Server, folders: Path) -> None:
    async with session_of(server) as session:
        before = (await complete(session, **TEXT))["choices"][0]["text"]
        (file,) = (folders / "model").glob("*.safetensors")
        (new,) = (folders / "others" / "new").glob("*.safetensors")
        shutil.copy(file, folders / "first")
        for source in (new, folders / "first"):
            shutil.copy(source, folders / "beside")
            os.replace(folders / "beside", file)
            assert (await ask(session, "post", "/update_weights_from_disk", {"mode": "wait"}))["success"] is True
            assert ((await complete(session, **TEXT))["choices"][0]["text"] == before) == (source != new)


async def test_what_cannot_take_its_place_changes_nothing(server: Server, folders: Path) -> None:
    async with session_of(server) as session:
        before = (await complete(session, **TEXT))["choices"][0]["text"]
        for name, words in (
            ("elsewhere", "below a --weights-folder"),
            ("others/nowhere", "no folder"),
            ("others/../elsewhere", "below a --weights-folder"),
            ("others/shape", "rms_norm_eps"),
            ("others/cut", "cut"),
        ):
            refused = await ask(session, "post", "/update_weights", {"path": str(folders / name)})
            assert (refused["status_code"], refused["error"]["param"]) == (400, "path"), name
            assert words in refused["error"]["message"]
        refused = await ask(session, "post", "/update_weights", {"update_info": {}})
        assert (refused["status_code"], refused["error"]["param"]) == (400, "update_info")
        for path in ("/init_weights_update_group", "/start_weight_update"):  # SGLang's, and vLLM's
            refused = await ask(session, "post", path, {})
            assert refused["status_code"] == 501 and "/update_weights" in refused["error"]["message"]
        assert (await complete(session, **TEXT))["choices"][0]["text"] == before


async def test_weights_that_cannot_be_loaded_are_taken_back(server: Server) -> None:
    """As if they had been removed between the look at them and the worker's start."""
    async with session_of(server) as session:
        before = (await complete(session, **TEXT))["choices"][0]["text"]
        names = Path(f"/proc/{server.pid}/fd").iterdir()
        fd = os.open(next(path for path in names if "actorserve-weights" in os.readlink(path)), os.O_RDWR)
        record = WeightsRecord(fd, 0)
        generation, folder = record.read()
        record.store("/nowhere")
        os.kill(server.actors()["worker"], signal.SIGKILL)
        assert (await complete(session, **TEXT))["choices"][0]["text"] == before
        assert record.read() == (generation + 2, folder)
        os.close(fd)


async def test_methods_of_workers_are_called_by_their_names(server: Server) -> None:
    async with session_of(server) as session:

        async def call(**body: Any) -> dict[str, Any]:
            return await ask(session, "post", "/collective_rpc", body)

        for method in METHODS:
            assert len((await call(method=method))["results"]) == 1, method
        assert (await call(method="check_health"))["results"] == [True]
        assert (await call(method="memory"))["results"][0]["resident"] > 1 << 20
        (blocks,) = (await call(method="kv_cache"))["results"]
        found = await call(method="scaled", args=[21], kwargs={"by": 3}, timeout=20)
        assert found["results"] == [{"value": 63, "blocks": blocks["blocks"]}]
        refused = await call(method="forget")
        assert (refused["status_code"], refused["error"]["param"]) == (400, "method")
        assert "check_health" in refused["error"]["message"] and "scaled" in refused["error"]["message"]
        refused = await call(method="scaled")
        assert (refused["status_code"], refused["error"]["param"]) == (400, "args")
        assert "planted" in (await call(method="broken"))["error"]["message"]
        assert (await call(method="check_health"))["results"] == [True]
        await ask(session, "post", "/sleep")
        assert "sleeps" in (await call(method="check_health"))["error"]["message"]
        await ask(session, "post", "/wake_up")


@pytest.mark.parametrize("kind", ["RuntimeError", "MemoryError"])
async def test_a_step_that_fails_is_dumped(
    server: Server, folders: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the first the worker dies, the second it survives."""
    async with session_of(server) as session:
        before = (await complete(session, **TEXT))["choices"][0]["text"]
        shutil.rmtree(folders / "dumps", ignore_errors=True)
        body = {"method": "break_steps", "args": [kind]}
        assert (await ask(session, "post", "/collective_rpc", body))["results"] == [None]
        async with session.post("/v1/completions", json=TEXT, headers={"X-Request-Id": "of-the-dump"}) as answer:
            assert answer.status == (200 if kind == "RuntimeError" else 500)
        (path,) = (folders / "dumps").glob("*.json")
        assert main(["why", "--dump", str(path)]) == 0
        said = capsys.readouterr().out
        assert said.startswith("worker (life ") and f"{kind}: planted" in said
        assert "of-the-dump" in said and "prompt tokens" in said and "WorkerActor.compute" in said
        assert "rows: 1" in said and "torch 2" in said and "dump_dir=" in said and ADMIN["X-Api-Key"] not in said
        assert TEXT["prompt"] not in path.read_text()
        assert main(["why", "--dump", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["actor"] == "worker"
        if kind == "MemoryError":
            os.kill(server.actors()["worker"], signal.SIGKILL)
        assert (await complete(session, **TEXT))["choices"][0]["text"] == before


def test_what_is_no_dump_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("{}")
    assert main(["why", "--dump", str(tmp_path / "text")]) == 2 and "is no dump" in capsys.readouterr().err
    assert main(["why", "--dump", str(tmp_path / "nothing")]) == 2 and "No such file" in capsys.readouterr().err


async def test_what_the_server_says_of_itself(server: Server, folders: Path) -> None:
    async with session_of(server) as session:
        text = await ask(session, "get", "/server_info")
        assert "max_num_seqs: " in text["config"] and ADMIN["X-Api-Key"] not in str(text)
        found = await ask(session, "get", "/server_info?config_format=json")
        assert found["config"]["weights_folder"] == [str(folders / "others")] and found["versions"]["torch"]
        names = {actor["name"]: actor for actor in found["actors"]}
        assert {"worker", "scheduler", "frontend-0"} <= names.keys()
        assert names["worker"]["pid"] == server.actors()["worker"]
        assert found["engines"][0]["pause"] == "running" and found["model"]["architecture"] == "LlamaForCausalLM"
        sizes = [await ask(session, "get", f"/get_world_size{query}") for query in ("", "?include_dp=false")]
        assert [one["world_size"] for one in sizes] == [1, 1]
        refused = await ask(session, "get", "/server_info?config_format=xml")
        assert (refused["status_code"], refused["error"]["param"]) == (400, "config_format")


def names_of(path: str, actor: str) -> set[str]:
    """Of the slices in an actor's track."""
    found = json.loads(Path(path).read_bytes())
    pids = {
        one["pid"]
        for one in found["traceEvents"]
        if one["ph"] == "M" and one["name"] == "process_name" and one["args"]["name"] == actor
    }
    return {one["name"] for one in found["traceEvents"] if one["ph"] == "X" and one["pid"] in pids}


async def test_what_all_actors_did_is_one_trace(server: Server, folders: Path) -> None:
    before = {*(folders / "profiles").glob("*")}
    async with session_of(server) as session:
        assert (await ask(session, "post", "/stop_profile"))["status_code"] == 400
        begun = await ask(session, "post", "/start_profile?seconds=100")
        assert begun == {"status_code": 200, "status": "ok"}
        assert "running" in (await ask(session, "post", "/start_profile"))["error"]["message"]
        for _ in range(3):
            await complete(session, **TEXT | {"max_tokens": 60, "ignore_eos": True})
        found = await ask(session, "post", "/stop_profile")
        assert found["status_code"] == 200 and found["missing"] == {} and found["cut"] == []
        for actor in server.actors():
            assert "Inbox.wait" in names_of(found["path"], actor) or "run" in names_of(found["path"], actor), actor
        assert {"run", "CpuRunner.run"} & names_of(found["path"], "worker")
        assert any(name.startswith("aten::") for name in names_of(found["path"], "worker")), "torch's own"
        assert [path.suffix for path in {*(folders / "profiles").glob("*")} - before] == [".json"]


async def test_who_is_killed_leaves_out_its_part(server: Server) -> None:
    async with session_of(server) as session:
        assert (await ask(session, "post", "/start_profile"))["status"] == "ok"
        await complete(session, **TEXT)
        os.kill(server.actors()["scheduler"], signal.SIGKILL)
        await complete(session, **TEXT)
        found = await ask(session, "post", "/stop_profile")
        assert list(found["missing"]) == ["scheduler"] and "died" in found["missing"]["scheduler"]
        assert "SchedulerActor.do_work" in names_of(found["path"], "scheduler") or found["events"]
        refused = await ask(session, "post", "/start_profile?seconds=0")
        assert (refused["status_code"], refused["error"]["param"]) == (400, "seconds")
