"""Options that are JSON, set key by key, as vLLM and SGLang have it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.cli import main
from actorserve.actors.llm.settings import read_options
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.objects.speculative import DraftModelOptions, NgramOptions, read_speculative

from .command_lines import read, refused


@pytest.mark.parametrize(
    ("words", "name", "expected"),
    [
        (
            "--speculative-config.method ngram --speculative_config.num_speculative_tokens=3",
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        (
            "-sc.method ngram -sc.num_speculative_tokens 3",
            "speculative_config",
            {"method": "ngram", "num_speculative_tokens": 3},
        ),
        ("--hf-overrides.rope_theta 1000000", "hf_overrides", {"rope_theta": 1000000}),
        (
            '--hf-overrides.rope.a 1 --hf-overrides {"rope":{"b":2},"c":3} --hf-overrides.rope.b -4.5',
            "hf_overrides",
            {"rope": {"a": 1, "b": -4.5}, "c": 3},
        ),
        ("--pooler-config.normalize true", "pooler_config", {"normalize": True}),
        ("--kv-events-config.endpoint tcp://*:5557", "kv_events_config", {"endpoint": "tcp://*:5557"}),
        ("--limit-mm-per-prompt.image 2", "limit_mm_per_prompt", {"image": 2}),
        ("--chat-template-kwargs.enable_thinking false", "default_chat_template_kwargs", {"enable_thinking": False}),
    ],
)
def test_keys_of_a_json_option_may_be_options(words: str, name: str, expected: dict[str, Any]) -> None:
    assert json.loads(getattr(read("folder", *words.split()), name)) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hf-overrides.rope_theta", "--hf-overrides: expected one argument"),
        ("--hf-overrides.list+ 3", "--hf-overrides.list+: no such key; a list is written as JSON"),
        ("--hf-overrides. 3", "--hf-overrides.: no such key"),
        ("--port.a 3", "--port.a: no such option"),
    ],
)
def test_keys_that_cannot_be(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", *words.split())
    assert said in capsys.readouterr().err


def test_a_compilation_config_in_a_file_and_of_an_llm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "of-vllm.yaml"
    file.write_text("compilation-config: {cudagraph_capture_sizes: [1, 2], pass_config: {}}\n")
    assert read("--config", str(file)) == Config(cudagraph_capture_sizes=[1, 2])
    assert "compilation-config: pass_config: not needed: nothing is compiled" in capsys.readouterr().err
    file.write_text("compilation-config: 0\n")
    assert read("--config", str(file)) == Config(enforce_eager=True)
    with pytest.raises(ConfigError, match="compilation_config: True is neither a level"):
        read_options("X", {"compilation_config": True})
    assert read_options("X", {"compilation_config": {"cudagraph_mode": "NONE"}}).enforce_eager


def test_keys_of_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang has an option for each of what is one here."""
    words = "--speculative-algorithm EAGLE3 --speculative-draft-model-path a/b --speculative-num-steps 3"
    expected = {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}
    config = read(*words.split(), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
    assert config.speculative_config is not None and json.loads(config.speculative_config) == expected
    of_llama = read(*"-md a/b.gguf --draft-max 8 --draft-min 2 --spec-type draft-simple".split())
    expected = {"method": "draft_model", "model": "a/b.gguf", "num_speculative_tokens": 8}
    assert of_llama.speculative_config is not None and json.loads(of_llama.speculative_config) == expected
    assert read_speculative(read("--hf-repo-draft", "a/b")) == DraftModelOptions(model="a/b", num_speculative_tokens=3)
    assert read_speculative(read("-md", "a/b", "--draft", "3")) == DraftModelOptions(model="a/b")
    assert read_speculative(read("--spec-type", "ngram-mod")) == NgramOptions(num_speculative_tokens=4)
    alone = read(*"--speculative-algorithm NGRAM --speculative-num-draft-tokens 4".split())
    assert alone.speculative_config == '{"method":"ngram","num_speculative_tokens":3}'
    config = read(*words.replace("EAGLE3", "DFLASH").split())
    assert config.speculative_config is not None and json.loads(config.speculative_config)["method"] == "dflash"
    file = tmp_path / "sglang.yaml"
    file.write_text("speculative-algorithm: NEXTN\nspeculative-num-steps: 1\n")
    config = read("--config", str(file))
    assert config.speculative_config == '{"method":"mtp","num_speculative_tokens":1}'
    refused(*words.split(), "--speculative-eagle-topk", "4")
    assert "drafts of a row are a line, and no tree: 1 is how it is" in capsys.readouterr().err
    assert main(["launch", "--speculative-algorithm", "EAGLE9", "--speculative-num-steps", "1"]) == 2
    assert "--speculative-config: method: EAGLE9 is none of ngram" in capsys.readouterr().err
    assert main(["launch", "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "few"]) == 2
    assert "num_draft_tokens" in capsys.readouterr().err
    drafts = json.loads(read(*"--spec-method mtp --spec-tokens 2".split()).speculative_config or "")
    assert drafts == {"method": "mtp", "num_speculative_tokens": 2}
    file.write_text("spec-method: ngram\nspec-tokens: 3\n")
    drafts = json.loads(read("--config", str(file)).speculative_config or "")
    assert drafts == {"method": "ngram", "num_speculative_tokens": 3}
    eplb = read(*"--enable-expert-parallel --enable-eplb --eplb-rebalance-num-iterations 500".split()).eplb_config
    assert json.loads(eplb or "") == {"step_interval": 500}
    llm = read_options("X", {"speculative_algorithm": "NGRAM", "speculative_num_steps": 2})
    assert json.loads(llm.speculative_config or "") == {"method": "ngram", "num_speculative_tokens": 2}


@pytest.mark.parametrize("name", ["--draft", "--draft-n", "--draft-max", "--spec-draft-n-max"])
def test_how_many_drafts_asks_for_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts of llama-server write its default out, without a model that drafts; with one, or a method, it counts."""
    file = tmp_path / "of-llama.yaml"
    file.write_text(f"{name[2:]}: 16\n")
    assert read(name, "16") == read(name, "3") == read("--config", str(file)) == Config()
    with monkeypatch.context() as patched:
        patched.setenv("LLAMA_ARG_SPEC_DRAFT_N_MAX", "16")
        assert read() == Config()
    assert read_speculative(read("--spec-type", "ngram-simple", name, "3")) == NgramOptions(num_speculative_tokens=3)
    assert read("--spec-type", "none", name, "3").speculative_config == "none"
    with pytest.raises(ConfigError, match="num_speculative_tokens: Expected `int`"):
        read_speculative(read("-md", "a/b", name, "few"))
    with pytest.raises(ConfigError, match="method is missing, which is one of ngram, suffix"):
        read_speculative(read("--speculative-config", '{"num_speculative_tokens": 8}'))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--temp 0.6 --top-k 20 --top-p 0.95 --min-p 0", {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0}),
        ("--temperature 1e-1 -n 256", {"temperature": 0.1, "max_new_tokens": 256}),
        ("--top-k -1 --n-predict -1 --predict=-2", {"top_k": -1}),
        (
            "--repeat-penalty 1.1 --presence-penalty 1.5 --frequency-penalty -0.5",
            {"repetition_penalty": 1.1} | {"presence_penalty": 1.5, "frequency_penalty": -0.5},
        ),
        ("--typical-p 0.9 --top-nsigma 2 --temp warm", {"typical_p": 0.9, "top_n_sigma": 2, "temperature": "warm"}),
        (
            '--preferred-sampling-params {"top_p":0.9} --override-generation-config {"top_k":5}',
            {"top_p": 0.9, "top_k": 5},
        ),
    ],
)
def test_what_requests_leave_out(words: str, expected: dict[str, Any]) -> None:
    """llama-server has an option for each of what is one here."""
    assert json.loads(read("folder", *words.split()).override_generation_config or "") == expected


def test_what_requests_leave_out_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "of-llama.yaml"
    file.write_text("temp: 0.6\nn-predict: -1\ntop-k: 20\n")
    config = read("--config", str(file))
    assert json.loads(config.override_generation_config or "") == {"temperature": 0.6, "top_k": 20}
    file.write_text("n-predict: -1\n")
    assert read("--config", str(file)) == Config()
