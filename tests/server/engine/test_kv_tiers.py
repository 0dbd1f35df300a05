"""KV blocks outlive the server: found after kill -9 of all of it, by other engines and other servers, or not at all."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.porter.sweep import measure
from tests.support.client import http_client, metrics_at_rest
from tests.support.models.adapters import KINDS, write_adapter
from tests.support.models.checkpoints import checkpoint
from tests.support.server import Server
from tests.support.until import until

PROMPTS = [f"Document {n}: " + " ".join(f"word{n * 7 + k}" for k in range(60)) for n in range(5)]
ASKED: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, "temperature": 0.9, "seed": 5}
ADMIN = {"Authorization": "Bearer key"}
WAIT_S = 60.0
BLOCKS = 5 * 5  # of 32 tokens, at least


def ask(client: httpx.Client, prompt: str, **more: Any) -> tuple[str, int, int]:
    """The text, how many tokens the prompt has, and how many of them were cached."""
    answer = client.post("/v1/completions", json={**ASKED, "prompt": prompt, **more}).json()
    usage = answer["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return answer["choices"][0]["text"], usage["prompt_tokens"], cached


def ask_all(client: httpx.Client, block: int = 32) -> tuple[list[str], float]:
    """The texts, and which share of the tokens that can be cached were."""
    answers = [ask(client, prompt) for prompt in PROMPTS]
    able = sum((tokens - 1) // block * block for _, tokens, _ in answers)
    return [text for text, _, _ in answers], sum(cached for _, _, cached in answers) / able


def metric(client: httpx.Client, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"actorserve:kv_tier_{name}"))


def launch(folder: Path, *options: str) -> Server:
    return Server("--threads", "1", "--debug", "--kv-offload", f"folder:{folder}:1Gi", *options)


def stored(client: httpx.Client, blocks: int) -> None:
    """The porter has so many."""
    until(lambda: metric(client, "blocks{") >= blocks)


def saved(client: httpx.Client) -> None:
    """All blocks of the prompts are in the folder."""
    stored(client, BLOCKS)
    kept = metric(client, "stored_total")
    until(lambda: metric(client, "written_total") >= kept)


def fill(folder: Path, *options: str) -> list[str]:
    """Texts of a server that is killed then."""
    with launch(folder, *options) as server, http_client(server) as client:
        texts, share = ask_all(client)
        assert share == 0
        saved(client)
        server.signal(signal.SIGKILL)
        server.wait()
    return texts


def check_transfer(prefill: httpx.Client, decode: httpx.Client) -> dict[str, Any]:
    """As a router sends it that has prefill and decode apart; what the one answers for the other."""
    first = prefill.post(
        "/v1/completions", json={"prompt": "a", "kv_transfer_params": {"do_remote_decode": True}}
    ).json()
    params: dict[str, Any] = first["kv_transfer_params"]
    assert params["do_remote_prefill"] is True and params["do_remote_decode"] is False
    second = decode.post("/v1/completions", json={"prompt": "a", "kv_transfer_params": params})
    assert second.status_code == 200, second.text
    assert "kv_transfer_params" not in second.json()
    refused = decode.post("/v1/completions", json={"prompt": "a", "kv_transfer_params": {"remote": 1}})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "kv_transfer_params.remote"
    return params


def test_prefixes_outlive_the_server(tmp_path: Path) -> None:
    """Also when the porter dies; a reset takes them all away."""
    texts = fill(tmp_path)
    with launch(tmp_path, "--admin-api-key", "key") as server, http_client(server) as client:
        found, share = ask_all(client)
        assert found == texts and share >= 0.5, "what the porter answers too late is computed"
        assert metric(client, "tokens_total") > 0
        check_transfer(client, client)
        pid = server.pids()["porter"]
        os.kill(pid, signal.SIGKILL)
        assert ask_all(client) == (texts, 1.0)
        server.wait_for(rf"porter ended \(pid {pid}, ")
        server.wait_for("porter is up")
        client.post("/reset_prefix_cache", headers=ADMIN).raise_for_status()
        until(lambda: not measure(tmp_path))
        assert ask_all(client)[0] == texts


def test_blocks_of_other_weights_are_others(tmp_path: Path) -> None:
    """Also of the same generation, in another server."""
    model, other, kept = tmp_path / "model", tmp_path / "others" / "new", tmp_path / "kept"
    for folder in (model, other):
        shutil.copytree(DEMO_FOLDER, folder)
    (file,) = other.glob("*.safetensors")
    save_file({name: one * 0.98 for name, one in load_file(file).items()}, file)
    options = ("--weights-folder", str(other.parent), "--admin-api-key", "key", "--max-data-parallel-size", "2")
    texts = []
    for folder in (other, model):
        with Server(str(model), "--threads", "1", "--kv-offload", f"folder:{kept}:1Gi", *options) as server:
            with http_client(server, WAIT_S) as client:
                asked = client.post("/update_weights", json={"path": str(folder)}, headers=ADMIN)
                assert asked.status_code == 200, asked.text
                found, share = ask_all(client)
                assert share == 0, "none of them is found"
                texts.append(found)
                saved(client)
    assert texts[0] != texts[1]


@pytest.mark.parametrize("carrier", ["", pytest.param(",nixl", marks=pytest.mark.slow)], ids=["tcp", "nixl"])
def test_one_server_pulls_what_another_has_computed(tmp_path: Path, carrier: str) -> None:
    """Where a request says so; the porter of either may die, and what nobody gives is computed."""
    if carrier:
        pytest.importorskip("nixl")
    (tmp_path / "secret").write_text("a secret of some length")
    common = ("--threads", "1", "--debug", "--engine-secret-file", str(tmp_path / "secret"))
    gives = (*common, "--kv-offload", f"host:64Mi,tcp:127.0.0.1:0{carrier}")
    takes = (*common, "--kv-offload", f"host:64Mi,peer:127.0.0.0/8{carrier}")
    with Server(*gives) as first, Server(*takes) as second:
        with http_client(first) as prefill, http_client(second) as decode:
            transfer = check_transfer(prefill, decode)
            texts, share = ask_all(prefill)
            assert share == 0
            for server in (first, second):
                server.wait_for("KV blocks of .* are kept", since_start=True)
            os.kill(first.pids()["porter"], signal.SIGKILL)  # its successor listens at the same place
            first.wait_for("KV blocks of .* are kept")
            assert ask(decode, PROMPTS[0], kv_transfer_params=transfer)[0] == texts[0]
            numbers = itertools.count()

            def is_pulled() -> bool:
                """A prompt that the one has computed is cached in the other; not if it is given too late."""
                prompt = f"Number {next(numbers)} of these. {PROMPTS[0]}"
                text = ask(prefill, prompt)[0]
                found = ask(decode, prompt, kv_transfer_params=transfer)
                assert found[0] == text
                return found == ask(prefill, prompt)

            until(is_pulled)
            assert metric(decode, "hits_peers_total") > 0 and metric(prefill, "given_total") > 0
            until(lambda: not metric(prefill, "held{"))
            assert not [server.output for server in (first, second) if "KV blocks go by TCP" in server.output]
            os.kill(second.pids()["porter"], signal.SIGKILL)
            second.wait_for("KV blocks of .* are kept")
            assert ask(decode, PROMPTS[1], kv_transfer_params=transfer)[0] == texts[1]
            first.signal(signal.SIGKILL)
            first.wait()
            text, _, cached = ask(decode, PROMPTS[2], kv_transfer_params=transfer)
            assert text == texts[2] and not cached


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["", "hangs", "raises"])
def test_a_connector_of_others(tmp_path: Path, wrong: str) -> None:
    """What it keeps outlives the server; one that hangs or fails changes no text."""
    code = f"plugin:{Path(__file__).parents[2] / 'porter' / 'kv_connector.py'}:Files:{tmp_path}"
    with Server("--threads", "1", "--kv-offload", code) as server, http_client(server) as client:
        texts, share = ask_all(client)
        assert share == 0
        until(lambda: len(list(tmp_path.glob("*/*"))) >= BLOCKS)
        server.signal(signal.SIGKILL)
        server.wait()
    with Server("--threads", "1", "--kv-offload", f"{code}?{wrong}") as server, http_client(server) as client:
        server.wait_for("KV blocks of .* are kept", since_start=True)
        found, share = ask_all(client)
        assert found == texts and share == (0 if wrong else 1)
        assert bool(metric(client, "hits_plugin_total")) is not bool(wrong)
        if wrong:
            until(lambda: metric(client, "plugin_errors_total") > 0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["torn", "garbled", "swapped", "missing"])
def test_damaged_files_are_not_there(tmp_path: Path, damage: str) -> None:
    texts = fill(tmp_path)
    files = sorted(tmp_path.glob("*/*/*.kv"))
    for file, other in zip(files, [*files[1:], files[0]], strict=True):
        data = bytearray(file.read_bytes())
        data[-9] ^= 255
        match damage:
            case "torn":
                os.truncate(file, len(data) // 2)
            case "garbled":
                file.write_bytes(data)
            case "swapped":
                file.write_bytes(other.read_bytes())
            case _:
                file.unlink()
    with launch(tmp_path) as server, http_client(server) as client:
        found, share = ask_all(client)
        assert found == texts and share < 0.2
        assert damage == "missing" or metric(client, "bad_files_total") > 0


@pytest.mark.slow
def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    with launch(tmp_path) as one, http_client(one) as first, launch(tmp_path) as two, http_client(two) as second:
        texts, _ = ask_all(first)
        saved(first)
        assert ask_all(second) == (texts, 1.0)
        assert ask_all(first) == (texts, 1.0)


OTHERS = {
    "dtype": ("--dtype", "bfloat16"),
    "quantisation": ("--quantization", "int8"),
    **{f"KV memory of {kept}": ("--kv-cache-dtype", kept) for kept in ("int8", "nvfp4", "turboquant_k3v4_nc")},
    "block size": ("--block-size", "16"),
    "group": ("--tensor-parallel-size", "2"),
    "layers": ("--model-impl", "transformers"),
    "length": ("--max-model-len", "1024"),
}


@pytest.mark.slow
def test_whatever_changes_a_block_finds_none(tmp_path: Path) -> None:
    fill(tmp_path)
    for name, options in OTHERS.items():
        with Server("--threads", "1", *options) as alone, http_client(alone) as client:
            texts, _ = ask_all(client)
        with launch(tmp_path, *options) as server, http_client(server) as client:
            found, share = ask_all(client)
            assert (found, share) == (texts, 0.0), name
            saved(client)
        with launch(tmp_path, *options) as server, http_client(server) as client:
            block = 16 if "--block-size" in options else 32
            assert ask_all(client, block) == (texts, 1.0), f"{name}: but its own"


@pytest.mark.slow
def test_engines_share_what_is_in_memory() -> None:
    options = ("--threads", "1", "--debug", "--data-parallel-size", "2", "--kv-offload", "host:256Mi")
    with Server(*options) as server, http_client(server) as client:
        texts, _ = ask_all(client)
        stored(client, BLOCKS)
        for rank in "01":
            client.headers["X-data-parallel-rank"] = rank
            assert ask_all(client) == (texts, 1.0)


@pytest.mark.slow
def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    """A file system of 1 MiB, where that can be mounted; and a folder that cannot be made."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", tmp_path], capture_output=True)
    try:
        for folder in (tmp_path, Path("/proc/actorserve-kv")):
            with launch(folder) as server, http_client(server) as client:
                texts, _ = ask_all(client)
                assert ask_all(client) == (texts, 1.0)
                if folder != tmp_path or mounted.returncode == 0:
                    until(lambda client=client: metric(client, "write_errors_total") > 0)  # type: ignore[misc]
                assert server.output.count("cannot be written to") <= 1
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", tmp_path], check=True)


@pytest.mark.slow
def test_what_a_porter_has_not_written_its_successor_writes(tmp_path: Path) -> None:
    """A link to nothing stands where the folder is to be, until the porter is killed."""
    folder = tmp_path / "blocks"
    folder.symlink_to(tmp_path / "missing" / "deeper")
    with launch(folder) as server, http_client(server) as client:
        ask_all(client)
        stored(client, BLOCKS)
        folder.unlink()
        os.kill(server.pids()["porter"], signal.SIGKILL)
        until(lambda: measure(folder) > 0 and metric(client, "written_total") >= BLOCKS)


@pytest.mark.slow
def test_the_folder_keeps_its_size(tmp_path: Path) -> None:
    with Server("--threads", "1", "--kv-offload", f"folder:{tmp_path}:1Mi") as server, http_client(server) as client:
        texts, _ = ask_all(client)
        until(lambda: metric(client, "evicted_total") > 0)
        assert ask_all(client)[0] == texts
        until(lambda: measure(tmp_path) <= 1.2 * (1 << 20))


@pytest.mark.slow
def test_prompts_are_computed_elsewhere() -> None:
    """An engine for prompts, one that goes on; deaths of all of both, and of the porter, change no text."""
    with Server("--threads", "1") as alone, http_client(alone) as client:
        texts, _ = ask_all(client)
    options = ("--data-parallel-size", "2", "--prefill-engines", "1", "--kv-offload", "host:256Mi")
    with Server("--threads", "1", "--debug", *options) as server, http_client(server) as client:
        assert ask_all(client)[0] == texts
        figures = metrics_at_rest(client).splitlines()
        generated = [line for line in figures if line.startswith("vllm:generation_tokens_total")]
        prefill, decode = (float(line.rpartition(" ")[2]) for line in generated)
        assert 5 <= prefill <= 5 * 3 and prefill + decode == 5 * 24, "the first tokens, and the rest"
        assert metric(client, "tokens_total") >= BLOCKS * 32, "nothing is computed twice"
        for victims in (("worker@1",), ("scheduler@0", "porter"), ("scheduler@1",), ("worker@0",)):
            with ThreadPoolExecutor(8) as clients:
                answers = [clients.submit(ask, client, prompt) for prompt in PROMPTS * 3]
                answers[2].result()
                for victim in victims:
                    os.kill(server.pids()[victim], signal.SIGKILL)
                assert [answer.result()[0] for answer in answers] == texts * 3, victims


@pytest.mark.slow
def test_an_adapter_of_another_server_is_another_one(tmp_path: Path) -> None:
    """Also where it has the same name, and was the first that was loaded."""
    base = checkpoint("qwen3", tmp_path, initializer_range=0.1)
    adapters = [write_adapter(base, tmp_path / f"adapter-{seed}", seed, **KINDS["patterns"]) for seed in (1, 2)]
    asked = {"prompt": [n % 90 + 5 for n in range(100)], "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    found: list[list[list[int]]] = []
    for folder in (tmp_path / "alone-0", tmp_path / "alone-1", tmp_path / "both", tmp_path / "both"):
        adapter = f"one={adapters[len(found) % 2]}"
        options = (str(base), "--enable-lora", "--block-size", "16", "--served-model-name", "base")
        with launch(folder, *options, "--lora-modules", adapter) as server, http_client(server) as client:
            answers = [client.post("/v1/completions", json=asked | {"model": name}).json() for name in ("one", "base")]
            stored(client, 2 * 6)
            kept = metric(client, "stored_total")
            if len(found) < 3:
                until(lambda client=client, kept=kept: metric(client, "written_total") >= kept)  # type: ignore[misc]
            found.append([answer["choices"][0]["token_ids"] for answer in answers])
            cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert found[:2] == found[2:] and found[0] != found[1] and cached == [0, 96]
