"""Paths in options, as a process in another folder finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from actorserve.actors.commands.places import CODE, FILES, FOLDERS, READ, Paths
from actorserve.actors.options.fields import canonical, option_fields


@pytest.mark.parametrize(
    ("name", "value", "placed"),
    [
        ("tokenizer", "there", "HERE-there"),
        ("tokenizer", "org/name", "org/name"),
        ("chat_template", "{{ a }}" * 999, "{{ a }}" * 999),
        ("weights_folder", ["there", "none"], ["HERE-there", "none"]),
        ("lora_modules", ["a=there", "b=org/name"], ["a=HERE-there", "b=org/name"]),
        ("tool_server", ["demo, there.json", "host:1"], ["demo,HERE-there.json", "host:1"]),
        ("logits_processors", ["there.py:One", "json:Two"], ["HERE-there.py:One", "json:Two"]),
        ("worker_cls", "there.py:One", "HERE-there.py:One"),
        ("also", ["there,dtype=half"], ["HERE-there,dtype=half"]),
        ("model", "folder/*.gguf", "HERE-folder/*.gguf"),
        ("model", "none/*.gguf", "none/*.gguf"),
        ("also", ["folder/*.gguf,seed=1"], ["HERE-folder/*.gguf,seed=1"]),
        ("also", ["a/b,tokenizer-path= there,dtype=half"], ["a/b,tokenizer-path=HERE-there,dtype=half"]),
        ("also", ["a/b,logits-processors=m:A,there.py:B,seed=1"], ["a/b,logits-processors=m:A,HERE-there.py:B,seed=1"]),
        ("also", ['a,logits_processors=["there.py:B"]'], ['a,logits_processors=["HERE-there.py:B"]']),
        ("also", ['a,speculative_config={"model":"there"}'], ['a,speculative_config={"model":"HERE-there"}']),
        ("also", ["a,speculative-draft-model-path=there,x"], ["a,speculative-draft-model-path=there,x"]),
        ("also", ["a,speculative-draft-model-path=there"], ["a,speculative-draft-model-path=HERE-there"]),
        (
            "also",
            ['{"model": "a/b", "logits-processors": ["m:A", "there.py:B"], "chat-template": "a,b=c", "seed": 1}'],
            ['{"model":"a/b","logits-processors":["m:A","HERE-there.py:B"],"chat-template":"a,b=c","seed":1}'],
        ),
        ("also", ['{"model": "there"'], ['{"model": "there"']),
        ("also", ["a,no-such=there,served-model-name=there"], ["a,no-such=there,served-model-name=there"]),
        ("kv_offload", "host:1Gi,plugin:there.py:One:x", "host:1Gi,plugin:HERE-there.py:One:x"),
        ("served_model_name", ["there"], ["there"]),
        ("max_num_seqs", 4, 4),
    ],
)
def test_what_is_there_is_absolute(
    name: str, value: object, placed: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("there", "there.json", "there.py"):
        Path(file).touch()
    Path("folder").mkdir()
    paths = Paths()
    assert json.dumps(paths.placed(name, value)) == json.dumps(placed).replace("HERE-", f"{tmp_path}/")
    assert [one.parent for one in paths.read] == [tmp_path] * ("HERE-" in str(placed)) and not paths.written


def test_paths_in_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    own = json.dumps(str(tmp_path / "a"))
    for name, given in (("speculative_config", '{"model":"a","n":2}'), ("lora_modules", '{"name":"b","path":"a"}')):
        assert Paths().placed(name, given) == given.replace('"a"', own)
    assert Paths().placed("speculative_config", {"model": "a"}) == f'{{"model":{own}}}'
    assert Paths().placed("speculative_config", "{") == "{"


def test_what_is_written_is_absolute_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = Paths()
    for name in (*FILES, *FOLDERS):
        assert paths.placed(name, "new") == str(tmp_path / "new")
    assert paths.placed("kv_offload", "folder:new:4Gi,nixl") == f"folder:{tmp_path}/new:4Gi,nixl"
    assert paths.placed("dump_dir", "none") == "none"
    assert paths.written == [(name, tmp_path / "new") for name in (*FILES, *FOLDERS, "kv_offload")]


def test_a_socket_among_addresses_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = Paths()
    assert paths.placed("host", "127.0.0.1, own.sock,::1") == f"127.0.0.1,{tmp_path}/own.sock,::1"
    assert paths.written == [("host", tmp_path / "own.sock")]
    assert Paths().placed("host", "0.0.0.0") == "0.0.0.0"


def test_a_home_is_known_wherever_a_path_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for those whose readers know it themselves."""
    monkeypatch.setenv("HOME", "/home/me")
    own = {"model", "tokenizer", "chat_template", "download_dir"} | {
        name for name in READ if name.startswith("engine_")
    }
    for name in {*READ, *FILES, *FOLDERS, *CODE} - own - {"node_secret_file"}:
        assert canonical(name, "~/a") == "/home/me/a", name
        assert canonical(name, ["~/a", "b~"]) == ["/home/me/a", "b~"]
    assert canonical("tool_server", ["demo,~/a.json"]) == ["demo,/home/me/a.json"]
    assert canonical("served_model_name", ["~"]) == ["~"]


def test_options_that_are_called_files_or_folders_are_known() -> None:
    ends = ("_file", "_dir", "_folder", "certfile", "keyfile", "_certs", "_media_path")
    named = {name for name in option_fields() if name.endswith(ends)}
    assert named <= {*READ, *FILES, *FOLDERS} <= option_fields().keys()
