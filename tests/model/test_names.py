"""A name that is no folder of a model: what it is instead is told. Of a hub name the weights come last."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.gguf.hub import FIRST
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import ConfigError, make_config
from tests.support.models import heads
from tests.support.models.dual_encoders import write_clip_modules, write_dual_encoder
from tests.support.models.embedders import write_model, write_modules
from tests.support.models.gguf.files import tiny_model as gguf_model

COMMIT = "a" * 40
NAME = "org/name"


def refusal(name: str, **options: object) -> str:
    """What is said of it, on one line."""
    with pytest.raises(ConfigError) as caught:
        find_model(make_config({"model": name, "device": "cpu"} | options))
    said = str(caught.value)
    assert "\n" not in said
    return said


# --- here ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which names are looked for; the hub cannot be reached."""
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_a_typo_names_folders_that_are_near(here: Path) -> None:
    (here / "Qwen3-0.6B" / "deep").mkdir(parents=True)
    assert f"did you mean {here / 'Qwen3-0.6B'}?" in refusal("Qwem3-0.6B")
    assert f"did you mean {here / 'Qwen3-0.6B'}?" in refusal("./qwen3-0.6b/deep")
    assert f"did you mean {here / 'Qwen3-0.6B' / 'deep'}?" in refusal(str(here / "Qwen3-0.6B" / "deeep"))
    assert refusal("/nowhere/at/all") == "model: there is no folder /nowhere/at/all"
    assert "there is no folder 'a\\nb'" in refusal("a\nb")
    assert refusal("Some/Model 1B").endswith(", or ORGANISATION/NAME:TYPE for a GGUF file of a type")
    assert "the hub cannot be reached" in refusal("some/model-1B-GGUF:Q4_K_M")
    assert "there is no folder" in refusal("x" * 300 + "/y/z") or "cannot be looked at" in refusal("x" * 300 + "/y/z")


def test_no_network(here: Path) -> None:
    assert "no folder org/name, and the hub cannot be reached ([Errno 111] Connection refused)" in refusal(NAME)


def test_what_is_no_folder(here: Path) -> None:
    (here / "m.gguf").write_bytes(b"GGUF\3\0\0\0")
    (here / "empty.gguf").touch()
    (here / "notes.txt").write_text("hello")
    (here / "bits").write_bytes(b"\xff\xfe\xfd" * 100)
    shutil.copy(DEMO_FOLDER / "config.json", here)
    for name, words in (
        ("m.gguf", "m.gguf is broken, cut off or not supported: it ends inside the header"),
        ("empty.gguf", "is a text file; a folder with config.json"),
        ("notes.txt", "is a text file; a folder with config.json"),
        ("config.json", f"is a text file of a model folder, {here}"),
        ("bits", "is a binary file"),
        ("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main", "is a URL; the hub's name of it is Qwen/Qwen3-0.6B"),
        ("https://example.com/model", "is a URL; a folder with"),
    ):
        assert words in refusal(name), name


def test_a_pattern_that_no_shell_has_read(here: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.gguf"):  # it is found, and it is none
        find_model(make_config({"model": f"{_with_gguf(here)}/*.gguf", "device": "cpu"}))


def _with_gguf(here: Path) -> Path:
    (here / "of-gguf").mkdir()
    (here / "of-gguf" / "model.gguf").write_bytes(b"GGUF")
    return here / "of-gguf"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            "is a LoRA adapter; name its model and beside it --enable-lora --lora-modules",
        ),
        (["q4.gguf", "q8.gguf"], "has several GGUF models (q4.gguf, q8.gguf); name the file of one"),
        (["inner/config.json"], "config.json is missing; these folders in it have one: inner"),
        ([], "config.json is missing"),
    ],
)
def test_folders_of_other_things(files: list[str], words: str, here: Path) -> None:
    for file in ("readme.md", *files):
        (here / "model" / file).parent.mkdir(parents=True, exist_ok=True)
        (here / "model" / file).write_text("{}")
    assert words in refusal("model")


# --- at the hub ----------------------------------------------------------------------------------------------------


class Hub:
    """A hub with one model, over HTTP; `asked` are the files that were fetched, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.ranges = True  # it answers with parts of files
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                about, _, file = path.partition("/resolve/" + COMMIT + "/")
                if file in hub.files and about == f"/{NAME}":
                    self.answer(hub.files[file], file)
                elif path.startswith(f"/api/models/{NAME}/tree/"):
                    tree = [{"type": "file", "path": n, "size": len(b), "oid": tag(b)} for n, b in hub.files.items()]
                    self.answer(json.dumps(tree).encode())
                elif path.startswith(f"/api/models/{NAME}"):
                    names = [{"rfilename": name} for name in hub.files]
                    self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": names}).encode())
                else:
                    self.send_response(404)
                    self.send_header("X-Error-Code", "RepoNotFound")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def answer(self, body: bytes, file: str = "") -> None:
                asked = re.fullmatch(r"bytes=0-(\d+)", self.headers.get("Range", "")) if hub.ranges else None
                if file and self.command == "GET":
                    hub.asked.append(f"{file} to {asked[1]}" if asked else file)
                if asked:
                    whole, body = len(body), body[: int(asked[1]) + 1]
                self.send_response(206 if asked else 200)
                if asked:
                    self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{whole}")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Type", "application/json")
                if file:
                    self.send_header("ETag", f'"{tag(body)}"')
                    self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Nothing: the test's output is for others."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def change(self, file: str, change: Callable[[dict[str, Any]], object]) -> None:
        values = json.loads(self.files[file])
        change(values)
        self.files[file] = json.dumps(values).encode()


def tag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def hub(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """It has the packaged model."""
    from huggingface_hub import constants

    hub = Hub()
    hub.files = {file.name: file.read_bytes() for file in DEMO_FOLDER.iterdir() if file.is_file()}
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,), daemon=True)  # s until it sees the end
    thread.start()
    yield hub
    hub.server.shutdown()
    hub.server.server_close()
    thread.join()


def test_a_model_of_the_hub_is_had_with_its_weights_last(hub: Hub, here: Path) -> None:
    hub.files["original.safetensors"] = b"the same in another form"
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert Path(model.folder).name == COMMIT and (Path(model.folder) / "model.safetensors").exists()
    assert set(hub.asked[:2]) == {"config.json", "generation_config.json"}
    assert hub.asked[-1] == "model.safetensors" and "original.safetensors" not in hub.asked
    find_model(make_config({"model": NAME, "device": "cpu"}))
    assert len(hub.asked) == len(set(hub.asked)), "nothing is fetched again"


def test_the_folder_for_models_of_the_hub(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "")  # which is put back
    model = find_model(make_config({"model": NAME, "device": "cpu", "download_dir": str(here / "models")}))
    assert Path(model.folder).is_relative_to(here / "models") and (Path(model.folder) / "model.safetensors").exists()


def test_overrides_are_looked_at_before_weights_are_downloaded(
    hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "kept"))
    hub.change("config.json", lambda v: v.update(architectures=["Unknown"]))
    right: dict[str, object] = {"model": NAME, "device": "cpu", "hf_overrides": {"architectures": ["LlamaForCausalLM"]}}
    model = find_model(make_config(right))
    assert (Path(model.folder) / "model.safetensors").exists() and model.architecture == "LlamaForCausalLM"
    hub.asked.clear()
    with pytest.raises(ConfigError, match="num_hidden_layers"):
        find_model(
            make_config({**right, "hf_overrides": {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 0}})
        )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda hub: hub.change("config.json", lambda v: v.update(architectures=[])), "names no architecture"),
        (lambda hub: hub.change("generation_config.json", lambda v: v.update(top_p=7)), "generation_config.json says"),
        (lambda hub: hub.files.pop("tokenizer.json"), "has none of tokenizer.json, tokenizer.model,"),
        (
            lambda hub: hub.files.update({"model.safetensors.index.json": b'{"weight_map": {"x": "y.safetensors"}}'}),
            "model.safetensors.index.json does not fit config.json: it lacks model.embed_tokens.weight",
        ),
        (lambda hub: hub.files.pop("config.json"), "has no config.json: it is no model"),
        (
            lambda hub: (
                hub.files.clear(),
                hub.files.update(dict.fromkeys(("m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj.gguf"), b"")),
            ),
            "has several GGUF files; name one: org/name:Q4_0 or :Q8_0",
        ),
        (lambda hub: (hub.files.clear(), hub.files.update({"q.bin": b""})), "has no config.json, but q.bin"),
        (lambda hub: (hub.files.clear(), hub.files.update({"adapter_config.json": b"{}"})), "is a LoRA adapter"),
    ],
)
def test_what_cannot_be_served_is_told_before_weights_are_downloaded(
    hub: Hub, damage: Callable[[Hub], object], words: str
) -> None:
    damage(hub)
    assert words in refusal(NAME)
    assert not [file for file in hub.asked if file.endswith(".safetensors")]


def test_weights_of_another_form(hub: Hub) -> None:
    hub.files["weights.pth"] = hub.files.pop("model.safetensors")
    assert "has no safetensors, but weights.pth, which are not read" in refusal(NAME)
    find_model(make_config({"model": NAME, "device": "cpu", "load_format": "dummy"}))
    assert "weights.pth" not in hub.asked


@pytest.mark.parametrize("alone", [True, False])
def test_pickled_weights_are_for_where_there_are_no_others(hub: Hub, tmp_path: Path, alone: bool) -> None:
    torch.save(load(hub.files["model.safetensors"]), tmp_path / "pickled")
    hub.files["pytorch_model.bin"] = (tmp_path / "pickled").read_bytes()
    if alone:
        hub.files.pop("model.safetensors")
    find_model(make_config({"model": NAME, "device": "cpu"}))
    assert ("pytorch_model.bin" in hub.asked) == alone


def test_a_tokenizer_comes_without_weights(hub: Hub) -> None:
    find_model(make_config({"tokenizer": NAME, "device": "cpu"}))
    assert "tokenizer.json" in hub.asked and "model.safetensors" not in hub.asked


@pytest.mark.parametrize(
    ("method", "file"),
    [("eagle", "pytorch_model.bin"), ("eagle3", "model.safetensors"), ("medusa", "medusa_lm_head.pt")],
)
def test_a_head_is_had_from_the_hub(method: str, file: str, hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    if method == "medusa":
        heads.write_medusa(folder, heads.medusa(DEMO_FOLDER))
    else:
        write = heads.write_eagle if method == "eagle" else heads.write_eagle3
        write(folder, DEMO_FOLDER, getattr(heads, method)(DEMO_FOLDER))
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    drafts = {"method": method, "model": NAME, "num_speculative_tokens": 2}
    find_model(make_config({"device": "cpu", "speculative_config": json.dumps(drafts)}))
    assert hub.asked == ["config.json", file]


def test_the_hub_has_no_such_model(hub: Hub) -> None:
    assert "the hub has no such model (or it is private: set HF_TOKEN); is it a typo?" in refusal("org/nome")


# --- GGUF files of the hub -----------------------------------------------------------------------------------------


def gguf(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """The hub has these files, all with the same model of one layer."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "made"))
    body = gguf_model(here).read_bytes()
    hub.files = {name: body if "mmproj" not in name else b"" for name in names} | {"README.md": b"about it"}


@pytest.mark.parametrize(("asked", "file"), [(":Q4_K_M", "m-Q4_K_M.gguf"), (":q8_0", "sub/m.Q8_0.gguf")])
def test_a_gguf_file_is_had_by_its_type(
    asked: str, file: str, hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "sub/m.Q8_0.gguf", "mmproj-F16.gguf")
    for _ in range(2):
        model = find_model(make_config({"model": NAME + asked, "device": "cpu"}))
        assert model.vocab_size == 8 and hub.asked == [f"{file} to {FIRST - 1}", file], "that alone, and once"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"general.architecture": "plamo"}, "the architecture plamo (general.architecture) is not supported in GGUF"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "tokenizer.ggml.pre: unheard-of is not supported"),
        ({"llama.block_count": 0}, "says llama.block_count = 0"),
    ],
)
@pytest.mark.parametrize("ranges", [True, False])
def test_what_a_header_says_is_refused_before_the_file_comes(
    fields: dict[str, Any], said: str, ranges: bool, hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By parts of the file, of which the first does not have all of the header; or by its beginning."""
    monkeypatch.setattr("actorserve.actors.model.gguf.hub.FIRST", 512)
    gguf(hub, here, monkeypatch, "m-Q8_0.gguf")
    hub.files["m-Q8_0.gguf"] = gguf_model(here, fields).read_bytes() + bytes(64)
    hub.ranges = ranges
    told = refusal(f"{NAME}:Q8_0")
    assert said in told and f"{NAME}/m-Q8_0.gguf" in told
    asked = [f"m-Q8_0.gguf to {size}" for size in (511, 2047)] if ranges else ["m-Q8_0.gguf"] * 2
    assert hub.asked == asked and not list((here / "cache").rglob("*.gguf")), "no more was fetched"


def test_the_only_gguf_file_needs_no_type(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "mmproj-F16.gguf")
    assert find_model(make_config({"model": NAME, "device": "cpu"})).vocab_size == 8
    assert make_config({"model": f"{NAME}:Q4_K_M"}).served_names() == [f"{NAME}:Q4_K_M"]


def test_without_the_hub_its_cache_has_the_file(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q8_0.gguf")
    config = make_config({"model": f"{NAME}:Q4_K_M", "device": "cpu"})
    folder = find_model(config).folder
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert find_model(config).folder == folder
    assert "cannot be reached" in refusal("org/other:Q4_K_M")


def test_a_type_that_the_hub_has_not(hub: Hub, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf(hub, here, monkeypatch, "m-Q4_K_M.gguf", "m-Q8_0.gguf", "a/m-Q6_K.gguf", "b/m-Q6_K.gguf")
    assert "no GGUF file of the type Q5_K_M; name one: org/name:Q4_K_M or :Q6_K or :Q8_0" in refusal(f"{NAME}:Q5_K_M")
    assert "several GGUF files of the type Q6_K: a/m-Q6_K.gguf, b/m-Q6_K.gguf" in refusal(f"{NAME}:Q6_K")
    hub.files = {"README.md": b"nothing else"}
    assert "has no GGUF file of the type Q8_0: it is no model that can be served" in refusal(f"{NAME}:Q8_0")
    assert not hub.asked


def test_a_model_of_sentence_transformers_that_is_kept_in_a_folder_inside(hub: Hub, here: Path) -> None:
    """CLIP, and what lies behind a model: weights of dense layers are as small as they are needed."""
    write_dual_encoder("clip", here / "made" / "0_CLIPModel")
    write_clip_modules(here / "made", "Normalize")
    files = {str(path.relative_to(here / "made")): path.read_bytes() for path in (here / "made").rglob("*.*")}
    hub.files = files | {"1_Other/model.safetensors": b"nobody's"}
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.architecture == "CLIPModel" and model.pooling is not None and model.pooling.normalize
    assert (Path(model.folder) / "model.safetensors").stat().st_size > 1000
    assert hub.asked[-1] == "0_CLIPModel/model.safetensors" and len(hub.asked) == len(set(hub.asked))


def test_dense_layers_of_sentence_transformers(hub: Hub, here: Path) -> None:
    write_model("bert", here / "made")
    write_modules(here / "made", dense=8)
    hub.files = {
        str(path.relative_to(here / "made")): path.read_bytes() for path in (here / "made").rglob("*") if path.is_file()
    }
    model = find_model(make_config({"model": NAME, "device": "cpu"}))
    assert model.pooling is not None and (Path(model.pooling.dense[0].folder) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (["CLIPModel", "Dense"], "has Pooling or Dense behind CLIPModel"),
        (["CLIPModel", "LSTM"], "has a module LSTM"),
    ],
)
def test_modules_that_a_clip_has_not(here: Path, modules: list[str], said: str) -> None:
    write_dual_encoder("clip", here / "0_CLIPModel")
    write_clip_modules(here, *modules[1:])
    (here / "1_Dense").mkdir()
    (here / "1_Dense" / "config.json").write_text('{"in_features": 20, "out_features": 4}')
    assert said in refusal(str(here))
    (here / "modules.json").write_text("[]")
    assert "names no module" in refusal(str(here))
    (here / "modules.json").write_text('[{"type": "sentence_transformers.models.CLIPModel", "path": "9_None"}]')
    assert "9_None/config.json is missing" in refusal(str(here))
