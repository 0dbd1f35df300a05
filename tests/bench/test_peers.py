"""The parts of tools/bench/peers: checkpoints, processes that end for sure, and the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.client import free_port
from tools.bench.other_servers.cases import chosen
from tools.bench.other_servers.checkpoint import WORDS, Checkpoint, quantise, write_folder, write_tokenizer
from tools.bench.other_servers.gguf_file import USER_DEFINED, gguf_name, in_order, in_text, write_gguf
from tools.bench.other_servers.process import NotStarted, Running
from tools.bench.other_servers.report import Figures, complaints, rows, table
from tools.bench.other_servers.results import Key, Results
from tools.bench.other_servers.servers import Launch, Task, actorserve, beside, llama

SMALL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": WORDS + 8,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
# Answers /health, and has a child in a session of its own that nothing but SIGKILL ends.
SERVER = """
import http.server, signal, subprocess, sys
child = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
process = subprocess.Popen([sys.executable, "-c", child], start_new_session=True, stdout=subprocess.PIPE)
process.stdout.readline()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("Content-Length", "0"); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_the_tokenizer_has_its_words_and_one_for_the_filler(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == WORDS
    assert len(tokenizer.encode("ban a a").ids) == len(tokenizer.encode("ban").ids) + 2
    assert tokenizer.decode(tokenizer.encode("zuton ler 7 ünï").ids) == "zuton ler 7 ünï"


def test_only_learned_words_are_drawn(tmp_path: Path) -> None:
    write_folder(tmp_path, SMALL)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["eos_token_id"] is None and config["vocab_size"] == WORDS + 8  # so that nobody ends early
    head = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    sizes = np.linalg.norm(head, axis=1)
    rare = np.r_[:256, WORDS : WORDS + 8]
    assert sizes[rare].max() * 10 < np.delete(sizes, rare).min()


def test_names_and_rows_in_gguf() -> None:
    assert gguf_name("model.layers.3.self_attn.q_proj.weight") == "blk.3.attn_q.weight"
    assert gguf_name("lm_head.weight") == "output.weight"
    config: dict[str, Any] = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1}
    tensor = np.arange(8)[:, None]
    name = "model.layers.0.self_attn.{}.weight"
    assert in_order(name.format("q_proj"), tensor, config)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert in_order(name.format("k_proj"), tensor, config)[:, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert in_order(name.format("v_proj"), tensor, config) is tensor
    assert in_order(name.format("q_proj"), tensor, config | {"model_type": "qwen3"}) is tensor


def test_every_tensor_stands_in_the_gguf(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    write_folder(tmp_path, SMALL)
    write_gguf(tmp_path, tmp_path / "model.gguf")
    read = gguf.GGUFReader(tmp_path / "model.gguf")
    weights = load_file(tmp_path / "model.safetensors")
    found = {tensor.name: tensor.data for tensor in read.tensors}
    assert found.keys() == {gguf_name(name) for name in weights}
    for name, tensor in weights.items():  # Qwen3's rows stay in their order
        assert np.array_equal(found[gguf_name(name)], tensor), name
    assert len(read.fields["tokenizer.ggml.tokens"].data) == SMALL["vocab_size"]


def test_special_tokens_are_found_in_texts_of_files(tmp_path: Path) -> None:
    """llama.cpp looks for none with names like <|im_end|> there."""
    gguf = pytest.importorskip("gguf")
    write_gguf(DEMO_FOLDER, tmp_path / "model.gguf")
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    kinds = fields["tokenizer.ggml.token_type"]
    words = fields["tokenizer.ggml.tokens"]
    named = {
        bytes(words.parts[at]).decode(): kinds.parts[kind][0] for at, kind in zip(words.data, kinds.data, strict=True)
    }
    assert {word for word, kind in named.items() if kind == USER_DEFINED} == {
        "<~endoftext~>",
        "<~im_start~>",
        "<~im_end~>",
    }
    assert in_text("<|im_start|>user\nAsk.<|im_end|>") == "<~im_start~>user\nAsk.<~im_end~>"


def test_a_server_and_its_children_are_ended(tmp_path: Path) -> None:
    port = free_port()
    other = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with Running(Launch([sys.executable, "-c", SERVER, str(port)]), port, tmp_path / "log", 60) as server:
        family = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        assert len(family) == 2 and os.getsid(family[1].pid) != os.getsid(server.pid)
        assert server.ready_after_s > 0
    assert not [process for process in family if process.is_running()]
    assert other.poll() is None, "what had been started before is somebody else's"
    other.kill()
    other.wait()


@pytest.mark.parametrize(
    ("command", "ready_s", "said"),
    [
        (["/nowhere/at-all"], 60, "No such file"),
        ([sys.executable, "-c", "print('no model'); raise SystemExit(3)"], 60, "status 3:\nno model"),
        ([sys.executable, "-c", "import signal; signal.pause()"], 0.5, "not ready within 0.5 s"),
    ],
)
def test_a_server_that_does_not_start_says_why(tmp_path: Path, command: list[str], ready_s: float, said: str) -> None:
    with pytest.raises(NotStarted, match=said), Running(Launch(command), free_port(), tmp_path / "log", ready_s):
        pass
    if "pause" in command[-1]:
        there = psutil.process_iter(["cmdline", "ppid"])
        assert not [one for one in there if one.info == {"cmdline": command, "ppid": os.getpid()}]


def test_ratios_are_to_the_best_of_the_others() -> None:
    ours = [Figures(100, 2.0, 50, 1, 1), Figures(300, 4.0, 50, 3, 1), Figures(200, 3.0, 50, 2, 1)]
    found = {
        ("actorserve", "a"): ours,
        ("vllm", "a"): [Figures(100, 6.0, 50, 4, 1)],
        ("llama", "a"): [Figures(50, 1.5, 50, 8, 1)],
        ("actorserve", "b"): ours,
    }
    first, second = rows(found, ["actorserve", "llama", "vllm"])
    assert first[:2] == ("a", "1–3") and first[-3:] == ("2.00", "0.50", "2.00")
    assert first[2] == r"200.0 \| 1.0 \| 2 \| 3.00 \| 50" and first[3].startswith("50.0 ")
    assert second[:2] == ("b", "3") and second[3:] == ("", "", "", "", "")
    lines = table(found).replace(r"\|", "").splitlines()[2:]
    assert len(lines) == 4 and len({line.count("|") for line in lines}) == 1


def test_what_was_measured_is_known_again(tmp_path: Path) -> None:
    path, ours = tmp_path / "results.jsonl", Figures(100, 2.0, 50, 1, 1)
    results = Results(path)
    results.add(Key("actorserve", "a", 0), ours, [])
    results.add(Key("llama", "a", 0), ours, ["1 failed"])
    with path.open("a") as file:
        file.write('{"run": ["actorserve", "a", 1], "fig')  # killed here
    again = Results(path)
    assert again.by_case() == {("actorserve", "a"): [ours], ("llama", "a"): [ours]}
    assert again.notes() == ["llama, a, round 1: 1 failed"]
    again.add(Key("actorserve", "a", 1), ours, [])
    assert Results(path).by_case()["actorserve", "a"] == [ours, ours]


def test_cases_are_chosen_by_name() -> None:
    (large,) = chosen(["0.6B"], ["Q8_0"], ["8x64", "1x1024"], quick=False)
    assert [(case.clients, case.prompt) for case in large.cases] == [(8, 64), (1, 1024)]
    assert large.title(large.cases[0]) == "0.6B Q8_0, 8 × 64/48" and [case.warm_ups for case in large.cases] == [8, 1]
    quick = [case for group in chosen(["tiny", "0.6B"], ["float32"], [], quick=True) for case in group.cases]
    assert len(quick) == 3 + 8 and all(case.requests >= case.clients for case in quick)
    assert not list(chosen(["tiny"], ["float32"], ["2x64"], quick=False))
    (long,) = chosen(["tiny-16k"], ["float32"], [], quick=True)
    assert (large.sequences, large.length) == (8, 1152) and (long.sequences, long.length) == (1, 8320)


def test_both_read_one_file_of_quantised_weights(tmp_path: Path) -> None:
    folder = Checkpoint(tmp_path, tmp_path / "model.gguf")
    task = Task(folder, "Q8_0", 2, 8, 1152, 80)
    file = str(tmp_path / "model-Q8_0.gguf")
    assert file in actorserve(task).command and file in llama("llama-server")(task).command
    floats = actorserve(task._replace(weights="float32")).command
    assert str(tmp_path) in floats and floats[-2:] == ["--dtype", "float32"]
    assert "--kv-cache-dtype float16" in " ".join(floats)


def test_a_file_is_quantised_once(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("weights")
    command = tmp_path / "quantize"
    command.write_text(
        '#!/bin/sh\n[ "$3" = Q8_0 ] || { echo no such type >&2; exit 1; }\ncat "$1" >"$2"; echo >>"$0.count"'
    )
    command.chmod(0o755)
    made = Checkpoint(tmp_path, tmp_path / "model.gguf")
    for _ in range(2):
        quantise(made, "Q8_0", str(command))
    assert made.gguf_of("Q8_0").read_text() == "weights"
    assert (tmp_path / "quantize.count").read_text() == "\n"
    with pytest.raises(SystemExit, match="made no Q4_K_M:\nno such type"):
        quantise(made, "Q4_K_M", str(command))
    assert not made.gguf_of("Q4_K_M").exists()


def test_an_unfair_run_is_complained_of() -> None:
    run: dict[str, Any] = {
        "errors": {},
        "completed": 4,
        "prompt_tokens": 64,
        "output_tokens": 128,
        "client_busy": False,
    }
    assert complaints(run, 16, 32) == []
    assert complaints(run | {"output_tokens": 127}, 16, 32) == ["outputs had 31.75 tokens each, not 32"]
    assert len(complaints(run | {"prompt_tokens": 60, "client_busy": True, "client_share": 0.9}, 16, 32)) == 2
    failed = run | {"errors": {"http 503": 1}, "error_examples": {"http 503": "full"}}
    assert complaints(failed, 16, 32) == ["1 failed (http 503: full)"]


def test_an_environment_is_named_by_its_python_or_its_folder(tmp_path: Path) -> None:
    assert (
        beside(str(tmp_path), "vllm") == beside(str(tmp_path / "bin" / "python"), "vllm") == tmp_path / "bin" / "vllm"
    )
