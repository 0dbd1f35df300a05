"""Names that users of vLLM, SGLang and llama-server type: taken for ours, or passed over with a word."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.llm.settings import read_options
from actorserve.actors.model import quantization
from actorserve.actors.model.formats.configs import READERS
from actorserve.actors.options.also import read_also
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.fields import option_fields
from actorserve.actors.options.names.llama_server import DRAFTS
from actorserve.actors.options.other_servers import (
    AUTOMATIC,
    FIXED,
    HARMLESS,
    KEYS,
    LISTS,
    MEANINGS,
    NEEDLESS,
    NO_MEDIA,
    REFUSED,
    SAME,
    UNDERSTOOD,
    VALUES,
)
from actorserve.actors.options.sources import read_environment

from .command_lines import read, refused

HERMES = {"tool_call_parser": "hermes"}
NO_CACHE = {"enable_prefix_caching": False}
SIZES = {"cudagraph_capture_sizes": [4, 8]}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--model X", {"model": "X"}),
        ("--model-path X --served-model-name a", {"model": "X", "served_model_name": ["a"]}),
        ("--served-model-name a -m X", {"model": "X", "served_model_name": ["a"]}),
        ("-hf org/name", {"model": "org/name"}),
        ("X --model X", {"model": "X"}),
        ("--max_model_len 4k --kv_cache_memory_bytes=1GiB", {"max_model_len": 4000, "kv_cache_memory_bytes": 1 << 30}),
        ("--no_enable_prefix_caching", {"enable_prefix_caching": False}),
        ("-tp 2", {"tensor_parallel_size": 2}),
        ("--cuda-graph-bs-decode 4 8 X --disable-decode-cuda-graph", {"model": "X", "enforce_eager": True} | SIZES),
        ("--dsa-decode-backend x --cuda-graph-bs-prefill 4 8 --weight-loader-prefetch-checkpoints", {}),
        ("--log-verbose --no-log-jsonl", {"log_level": "debug"}),
        ("--poll-draft 1 --cpu-mask-draft ff --no-cors-credentials", {}),
        ("-pp 2", {"pipeline_parallel_size": 2}),
        ("--pp-size 2", {"pipeline_parallel_size": 2}),
        ("--enforce-eager=True --enable_prefix_caching=false X", {"enforce_eager": True, "model": "X"} | NO_CACHE),
        ("--enable-prefix-caching false X", {"model": "X"} | NO_CACHE),
        ("--no-enable-prefix-caching=on --no-enforce-eager false", {"enforce_eager": True} | NO_CACHE),
        ("--tp 2", {"tensor_parallel_size": 2}),
        ("--tp_size=2", {"tensor_parallel_size": 2}),
        ("--dtype half", {"dtype": "float16"}),
        ("--dtype BF16", {"dtype": "bfloat16"}),
        ("--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8"}),
        ("--kv-cache-dtype FP8-E4M3", {"kv_cache_dtype": "fp8"}),
        ("-O0", {"enforce_eager": True}),
        ("--optimization-level 0", {"enforce_eager": True}),
        ("-cc.cudagraph_mode=NONE", {"enforce_eager": True}),
        ("--compilation-config.use_cudagraph false", {"enforce_eager": True}),
        ('-O {"cudagraph_mode":"NONE"}', {"enforce_eager": True}),
        ("-cc.cudagraph_capture_sizes=[1,2,4]", {"cudagraph_capture_sizes": [1, 2, 4]}),
        (
            '--compilation-config {"cudagraph_capture_sizes":[8],"cudagraph_mode":"FULL"}',
            {"cudagraph_capture_sizes": [8]},
        ),
        ("--kv-cache-dtype turboquant", {"kv_cache_dtype": "turboquant_4bit_nc"}),
        ("--kv-cache-dtype turboquant_k8v4", {"kv_cache_dtype": "turboquant_k8v4"}),
        ("--generation-config vllm", {"generation_config": "none"}),
        ("--reasoning-parser deepseek-r1", {"reasoning_parser": "deepseek_r1"}),
        ("--tool-call-parser qwen25", {"tool_call_parser": "hermes"}),
        ("-c 8192 -np 4 -b 512", {"max_model_len": 8192, "max_num_seqs": 4, "max_num_batched_tokens": 512}),
        ("-c 0 -np -1 -t -1 --chunked-prefill-size -1", {}),
        ("X --alias a,b", {"model": "X", "served_model_name": ["a", "b"]}),
        ("--cors-origins https://a.example,null", {"allowed_origins": ["https://a.example", "null"]}),
        ("--api-server-count 2", {"frontends": 2}),
        ("--disable-log-requests", {"enable_log_requests": False}),
        ("--no-disable-log-requests", {"enable_log_requests": True}),
        ("--disable-log-stats", {"log_stats_interval": 0.0}),
        ("--disable-radix-cache --disable-cuda-graph", {"enable_prefix_caching": False, "enforce_eager": True}),
        ("--no-cache-prompt", {"enable_prefix_caching": False}),
        ("--enable-deterministic-inference", {"deterministic": True}),
        ("--mem-fraction-static 0.8", {"gpu_memory_utilization": 0.8}),
        ("--log-jsonl -v", {"log_format": "json", "log_level": "debug"}),
        ("--watchdog-timeout 30", {"step_timeout": 30.0}),
        ("--decode-context-parallel-size 1 -dp 1 --task generate", {}),
        ("--nnodes 1 --node-rank 0", {}),
        ("--threads auto --worker-cls auto", {}),
        ("--no-enable-lora --no-enable-expert-parallel", {}),
        ("--sse-ping-interval 5", {"sse_keep_alive_interval": 5.0}),
        ("--sse-ping-interval -1 --additional-config {}", {}),
        ("--reasoning off", {"default_chat_template_kwargs": '{"enable_thinking":false}'}),
        ("-rea auto --reasoning-budget 0", {"default_chat_template_kwargs": '{"enable_thinking":false}'}),
        ("--pooling mean --task embed", {"pooler_config": '{"pooling_type":"MEAN"}', "runner": "pooling"}),
        ("--sampling-defaults openai --schedule-conservativeness 0.3", {"generation_config": "none"}),
        ("--tp 4 --ep-size 4 --base-gpu-id 0", {"tensor_parallel_size": 4, "enable_expert_parallel": True}),
        ("--no-mmproj", {"limit_mm_per_prompt": NO_MEDIA}),
        ("--language-model-only", {"limit_mm_per_prompt": NO_MEDIA}),
        ("--language-model-only=true", {"limit_mm_per_prompt": NO_MEDIA}),
        ("--language-model-only=False --is-embedding off --log-jsonl=false --disable-log-stats false", {}),
        ("--language-model-only false X", {"model": "X"}),
        ("--language-model-only=on --no-disable-radix-cache", {"limit_mm_per_prompt": NO_MEDIA}),
        ("--stream-response-default-include-usage", {"stream_response_default_include_usage": True}),
        ("--reasoning-parser qwen3-thinking --tool-call-parser trinity", {"reasoning_parser": "qwen3"} | HERMES),
        (
            "--reasoning-parser poolside_v1 --tool-call-parser poolside_v1",
            {"reasoning_parser": "deepseek_v3", "tool_call_parser": "glm45"},
        ),
        ("--device-memory-utilization 0.7 --renderer-num-workers 2", {"gpu_memory_utilization": 0.7, "renderers": 2}),
        ('--limit-mm-data-per-request {"image":1}', {"limit_mm_per_prompt": '{"image":1}'}),
        ("--log-requests-format json", {"log_format": "json"}),
        ("--fingerprint-mode hash", {}),
        ("--fingerprint-mode custom --fingerprint-value a", {"fingerprint_mode": "custom", "fingerprint_value": "a"}),
        ("--video-pruning-rate 0.0 --offload-group-size 0 --moe-dense-tp-size 1 --mirostat 0", {}),
        ("--spec-type none -md a/b", {"speculative_config": "none"}),
        ("--draft-min 4 --draft-p-min 0.8 --spec-draft-p-split=0.2", {}),
        ("-n -1 -sm layer -cram 0 --reasoning-budget -1 --yarn-ext-factor -1.00", {}),
        ("--cache-ram 8192 --timeout 3600", {}),
    ],
)
def test_other_names_of_our_options(argv: str, expected: dict[str, Any]) -> None:
    assert read(*argv.split()) == Config(**expected)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ('--hf_overrides={"rope_theta": 1}', {"hf_overrides": '{"rope_theta": 1}'}),
        ('--compilation-config={"cudagraph_mode": "NONE"}', {"enforce_eager": True}),
        ('--chat-template-kwargs={"a": false}', {"default_chat_template_kwargs": '{"a": false}'}),
    ],
)
def test_a_value_behind_an_equals_sign_may_have_spaces(word: str, expected: dict[str, Any]) -> None:
    assert read(word) == Config(**expected)
    assert read("folder", word) == Config(model="folder", **expected)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--max-model-l 100 --tensor-parallel=2", {"max_model_len": 100, "tensor_parallel_size": 2}),
        ("--max_num_s 5 --no-enable-pref", {"max_num_seqs": 5, "enable_prefix_caching": False}),
        ("--enable-prefix false --gpu-mem 0.3", {"enable_prefix_caching": False, "gpu_memory_utilization": 0.3}),
        ("--mem-fraction 0.4 --swap-sp 4", {"gpu_memory_utilization": 0.4}),  # other servers'
    ],
)
def test_the_beginning_of_a_name_is_enough(argv: str, expected: dict[str, Any]) -> None:
    """As argparse has it."""
    config = read(*argv.split())
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--max-num-batched-tokenz", "no such option; did you mean --max-num-batched-tokens?"),
        ("--max-num-q", "it may be --max-num-queued-reqs or --max-num-queued-tokens"),
        ("--max", "it may be --max-answer-logprobs, --max-audio-bytes, --max-batch-lines, "),
        ("--slot-sa", "--slot-save-path: not supported"),
    ],
)
def test_a_beginning_of_several_names_or_of_none(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", word, "3")
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("values", [{"ACTORSERVE_THREADS": "auto"}, {"ACTORSERVE_THREADS": "AUTO "}])
def test_what_is_left_out_may_be_said(values: dict[str, str]) -> None:
    assert read_environment(values) == {"threads": None}
    assert read_also("org/second,threads=auto") == ("org/second", {"threads": None})


@pytest.mark.parametrize("words", ["NGRAM", "5", "nextn", '"no"', "Now, the answer."])
def test_what_closes_thinking_is_as_it_is_typed(words: str) -> None:
    given = read("--reasoning-budget-message", words).reasoning_config
    assert json.loads(given or "") == {"reasoning_end_str": words}


def test_automatic_values_of_others_leave_our_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [("max-model-len", "auto"), ("max-model-len", "-1"), ("threads", "-1"), ("max-num-seqs", "-1")]
    for name, value in [*values, ("max-num-batched-tokens", "-1")]:
        assert read(f"--{name}", value) == read(f"--{name}={value}") == Config()
        (tmp_path / "file.yaml").write_text(f"{name}: {value}\n")
        assert read("--config", str(tmp_path / "file.yaml")) == Config()
        with monkeypatch.context() as patched:
            patched.setenv(f"ACTORSERVE_{name.upper().replace('-', '_')}", value)
            assert read() == Config()
    assert read("--config", str(tmp_path / "file.yaml"), "--max-num-seqs", "7") == Config(max_num_seqs=7)
    with pytest.raises(ConfigError, match="--max-num-seqs: -2 is out of range"):
        read("--max-num-seqs", "-2")


@pytest.mark.parametrize(
    "argv",
    [
        "--enable-chunked-prefill",
        "--enable-chunked-prefill=True",
        "--enable_chunked_prefill true",
        "--no-enable-chunked-prefill",
        "--async-scheduling",
        "-O3",
        "-O 3",
        "--compilation-config {}",
        "--compilation-config.mode 3",
        '--compilation-config={"pass_config":{"fuse_norm_quant":true},"mode":3}',
        "-cc.cudagraph_mode=FULL_AND_PIECEWISE",
        "-O.cudagraph_mode=null",
        "-fa on",
        "-fa",
        "-ngl 99",
        "--jinja",
        "--uvicorn-log-level warning",
        "--attention-backend FLASH_ATTN",
        "--disable-hybrid-kv-cache-manager",
        "--mm-encoder-tp-mode data",
        "--skip-mm-profiling",
        '--model-loader-extra-config {"a":1}',
        "--calculate-kv-scales",
        "--ignore-patterns original/**",
        "--max-parallel-loading-workers 2",
        "--disable-overlap-schedule",
        "--enable-mixed-chunk",
        "--log-requests-level 2",
        "--enable-p2p-check",
        "--dist-timeout 600",
        "--no-kv-offload",
        "-lv 3",
        "--verbosity 3",
        "--cache-reuse 256",
        "--moe-backend triton",
        "--kernel-config.moe_backend triton",
        "--enable-dbo",
        "--collect-detailed-traces=model,worker",
        "--triton-attention-reduce-in-fp32",
        "--cpu-mask ff",
        "--no-host",
        "--no-mmproj-offload",
        "--no-language-model-only",
        "--no-is-embedding",
    ],
)
def test_what_is_always_so_is_passed_over_with_a_word(argv: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert read(*argv.split(), "folder") == Config(model="folder")
    assert read("folder", *argv.split(), "--port", "1") == Config(model="folder", port=1)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and told[0].startswith("actorserve launch: warning: -") and ": not needed: " in told[0]


@pytest.mark.parametrize("argv", ["--numa-bind-nodes 0 0 1 1", "--piecewise-cuda-graph-tokens 4 8 16"])
def test_all_values_of_what_is_needless_are_passed_over(argv: str) -> None:
    assert read("folder", *argv.split(), "--port", "1") == Config(model="folder", port=1)
    assert read("folder", "--port", "1", *argv.split()) == Config(model="folder", port=1)


def test_a_file_and_an_llm_know_the_same_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "of-others.yaml"
    file.write_text(
        "model-path: X\ntp_size: 2\ncontext-length: 4Ki\ndtype: half\ndisable-log-requests: true\nalias: a,b\n"
        "jinja: true\nenable_lora: false\npipeline-parallel-size: 1\nmax-running-requests: 8\n"
        "disable_radix_cache: false\ndisable-log-stats: false\n"
    )
    options: dict[str, Any] = dict(
        **{"model": "X", "tensor_parallel_size": 2, "max_model_len": 4096, "dtype": "float16"},
        **{"enable_log_requests": False, "served_model_name": ["a", "b"], "max_num_seqs": 8},
    )
    assert read("--config", str(file)) == Config(**options)
    assert "jinja: not needed" in capsys.readouterr().err
    file.write_text("reasoning: off\nchat-template-kwargs.a: 1\npooling: last\nep-size: 2\n")
    config = read("--config", str(file))
    assert json.loads(config.default_chat_template_kwargs or "") == {"enable_thinking": False, "a": 1}
    assert config.pooler_config == '{"pooling_type":"LAST"}' and config.enable_expert_parallel
    file.write_text("lora: file.gguf\nquite-other: 1\n")
    with pytest.raises(ConfigError, match=r"lora: not supported: .*; quite-other: there is no such option$"):
        read("--config", str(file))


def test_options_of_an_llm() -> None:
    with pytest.warns(UserWarning, match="jinja: not needed"):
        config = read_options("X", {"jinja": True, "dtype": "half", "tp_size": 2, "max_num_seqs": "1k"})
    assert (config.dtype, config.tensor_parallel_size, config.max_num_seqs) == ("float16", 2, 1000)
    assert config.log_stats_interval == 0
    with pytest.raises(
        ConfigError, match=r"tensor_parallel: there is no such option; did you mean tensor_parallel_size\?"
    ):
        read_options("X", {"tensor_parallel": 2})
    with pytest.raises(ConfigError, match="--dtype: hafl is none of auto, bfloat16, float16, float32"):
        read_options("X", {"dtype": "hafl"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_options("X", {"enable_lora": False, "swap_space": 4}).model == "X"


def test_the_table_fits_the_options() -> None:
    fields = option_fields()
    assert {*SAME, *AUTOMATIC, *LISTS, *VALUES, *(field for field, _ in FIXED.values())} <= fields.keys()
    assert {field for field, _ in KEYS.values()} <= fields.keys()
    assert all(MEANINGS[name].refused for name in (*HARMLESS, *UNDERSTOOD))
    assert {field for values in UNDERSTOOD.values() for field, _ in values.values()} <= fields.keys()
    reasons = [
        name.partition("=")[0] for table in (NEEDLESS, REFUSED) for names in table.values() for name in names.split()
    ]
    ours = [*FIXED, *KEYS, *(name for table in (SAME, DRAFTS) for names in table.values() for name in names.split())]
    assert len(reasons + ours) == len(MEANINGS), "a name means one thing"
    assert not MEANINGS.keys() & {f"--{name.replace('_', '-')}" for name in fields}
    counted = sum(len(names.split()) for names in SAME.values())
    assert counted == sum(not (m.needless or m.refused or m.key or m.fixed is not None) for m in MEANINGS.values())
    for name, values in VALUES.items():
        for other, own in values.items():
            assert getattr(read(f"--{name.replace('_', '-')}", other), name) == own


@pytest.mark.parametrize("name", READERS)
def test_a_format_that_checkpoints_have_can_be_named(name: str) -> None:
    """As config.json does it (quant_method)."""
    option = read("--quantization", name).quantization
    assert quantization.SAME.get(option, option) == quantization.SAME.get(name, name)
