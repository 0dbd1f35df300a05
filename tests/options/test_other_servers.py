"""Names that users of vLLM, SGLang and llama-server type: taken for ours, passed over with a word, or refused."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.cli import main, make_parser
from actorserve.actors.llm.settings import read_options
from actorserve.actors.model import quantization
from actorserve.actors.model.formats.configs import READERS
from actorserve.actors.options.also import read_also
from actorserve.actors.options.command_line import read_config
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.fields import option_fields
from actorserve.actors.options.other_servers import (
    AUTOMATIC,
    FIXED,
    HARMLESS,
    KEYS,
    LISTS,
    MEANINGS,
    NEEDLESS,
    REFUSED,
    SAME,
    VALUES,
)
from actorserve.actors.options.sources import read_environment

NO_CACHE = {"enable_prefix_caching": False}


def read(*argv: str) -> Config:
    return read_config(make_parser("launch").parse_args(["launch", *argv]))


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ACTORSERVE_")]:
        monkeypatch.delenv(name)


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
        ("--device-memory-utilization 0.7 --renderer-num-workers 2", {"gpu_memory_utilization": 0.7, "renderers": 2}),
        ('--limit-mm-data-per-request {"image":1}', {"limit_mm_per_prompt": '{"image":1}'}),
        ("--log-requests-format json", {"log_format": "json"}),
        ("--fingerprint-mode hash", {}),
        ("--fingerprint-mode custom --fingerprint-value a", {"fingerprint_mode": "custom", "fingerprint_value": "a"}),
        ("--video-pruning-rate 0.0 --offload-group-size 0 --moe-dense-tp-size 1 --spec-type none --mirostat 0", {}),
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


@pytest.mark.parametrize("values", [{"ACTORSERVE_THREADS": "auto"}, {"ACTORSERVE_THREADS": "AUTO "}])
def test_what_is_left_out_may_be_said(values: dict[str, str]) -> None:
    assert read_environment(values) == {"threads": None}
    assert read_also("org/second,threads=auto") == ("org/second", {"threads": None})


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


def refused(*argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", *argv])
    assert ended.value.code == 2


def test_what_there_is_not_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", "--lora", "file.gguf")
    assert capsys.readouterr().err == (
        "actorserve launch: error: --lora: not supported: adapters are folders of PEFT's, as --lora-modules names "
        "them, and are kept in float32, or the GPU's type (see actorserve launch --help)\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--data-parallel-rpc-port 29550", "a model is divided by --tensor-parallel-size"),
        ("--slot-save-path /x", "folder:PATH:SIZE keeps KV blocks elsewhere"),
        ("--offline", "HF_HUB_OFFLINE=1 keeps from the hub"),
        ("--check-tensors", "`actorserve check MODEL`"),
        ('--additional-config {"a":1}', "there are no platforms of other packages"),
        ("--enable-per-request-metrics", "clients ask for it by return_metrics"),
        ("--stream-response-default-include-usage", "clients say it with each request"),
        ("--watermark-config {}", "by watermarking_config with each request"),
        ("--max-num-active-seqs 4", "--max-num-seqs says how many sequences run"),
        ("--lora-target-modules q_proj v_proj", "all the parts of a model that it has weights for"),
        ("--enable-priority-scheduling", "runs lower numbers first"),
        ("--allow-auto-truncate", "truncate_prompt_tokens"),
        ("--ssl-keyfile-password x", "no password hides"),
        ("--incremental-streaming-output", "/v1/chat/completions what is new"),
        ("--mirostat 2", "clients say it with each request"),
        ("--models-dir /x", "--also names further models"),
        ("--spec-type ngram-simple", "drafts are set by --speculative-config"),
    ],
)
def test_what_else_there_is_not(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", *words.split())
    assert f"{words.split()[0]}: not supported: " in (said := capsys.readouterr().err) and reason in said


@pytest.mark.parametrize("name", ["--no-ui", "--no-webui", "--no-slots", "--no-props", "--no-metrics"])
def test_what_stays_open_is_not_said_to_be_off(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", name)
    assert f"{name}: not supported: it is always there" in capsys.readouterr().err


def test_all_that_cannot_be_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--decode-context-parallel-size 2 --quite-other 7 --temp=0.5 --max-num-seq 4 --port 1 -xyz --jinja"
    refused("folder", *words.split())
    told = capsys.readouterr().err.splitlines()
    names = ["actorserve launch", "--decode-context-parallel-size", "--quite-other", "--temp", "--max-num-seq", "-xyz"]
    assert [line.split(":")[0].strip() for line in told if "option" in line or "supp" in line] == names
    assert "did you mean --max-num-seqs?" in told[-3] and "did you" not in told[-2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--kv-cache-dtype fp8_e5m2", "--kv-cache-dtype: fp8_e5m2 is not served: fp8 is e4m3 here"),
        ("--kv-cache-dtype q8_0", "--kv-cache-dtype: q8_0 is not served: int8 has 8 bits"),
        ("--kv-cache-dtype fp9", "--kv-cache-dtype: fp9 is none of auto, "),
        (
            "--compilation-config nonsense",
            "--compilation-config: nonsense is neither a level, from 0 on, nor a JSON object",
        ),
        ("-O [1]", "-O: [1] is neither a level"),
        ("-cc.cudagraph_capture_sizes=[0]", "-cc.cudagraph_capture_sizes: cudagraph_capture_sizes: [0] is no list"),
    ],
)
def test_values_that_are_not_served_say_what_is(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):  # as the parser ends
        assert main(["launch", "folder", *words.split()]) == 2
    assert said in capsys.readouterr().err


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


def test_a_model_that_is_named_twice(capsys: pytest.CaptureFixture[str]) -> None:
    refused("one", "--model", "two")
    assert "MODEL: there are two, one and two" in capsys.readouterr().err


KNOWN_ELSEWHERE = """--allow-credentials --allowed-media-domains --block-size --calculate-kv-scales
--code-revision --collect-detailed-traces --cpu-offload-gb --data-parallel-backend --data-parallel-hybrid-lb
--dcp-comm-backend --disable-cascade-attn --disable-fastapi-docs --disable-hybrid-kv-cache-manager
--disable-log-requests --disable-nccl-for-dp-synchronization --disable-sliding-window --download-dir
--enable-dbo --enable-log-outputs --enable-prompt-embeds --enable-sleep-mode
--enable-tokenizer-info-endpoint --enforce-eager --exclude-tools-when-tool-choice-none
--guided-decoding-backend --h11-max-header-count --h11-max-incomplete-event-size --hf-config-path
--hf-overrides --hf-token --ignore-patterns --io-processor-plugin --kv-cache-metrics --kv-events-config
--kv-sharing-fast-prefill --limit-mm-per-prompt --logits-processors --logprobs-mode
--long-prefill-token-threshold --lora-modules --mamba-block-size --max-log-len --max-logprobs --max-loras
--max-parallel-loading-workers --mm-encoder-tp-mode --model-loader-extra-config --num-gpu-blocks-override
--otlp-traces-endpoint --override-attention-dtype --pooler-config --prefill-context-parallel-size
--profiler-config --pt-load-map-location --quantization-param-path --ray-workers-use-nsight --root-path
--safetensors-load-strategy --scheduler-cls --show-hidden-metrics-for-version --skip-mm-profiling
--skip-tokenizer-init --swap-space --tokens-only --tool-server --trust-request-chat-template
--use-tqdm-on-load --video-pruning-rate --worker-cls --attention-backend --bucket-e2e --chat-template
--constrained-json-whitespace-pattern --crash-dump-folder --debug-tensor-dump-output-folder
--decode-log-interval --disable-outlines-disk-cache --dp-size --enable-deterministic-inference
--enable-ep-moe --enable-lora --enable-memory-saver --enable-mixed-chunk --enable-nan-detection
--enable-p2p-check --enable-tokenizer-batch --enable-two-batch-overlap --fp8-gemm-backend
--gc-warning-threshold-secs --keep-mm-feature-on-device --log-level-http --max-total-tokens
--mm-attention-backend --moe-runner-backend --nccl-port --num-continuous-decode-steps
--preferred-sampling-params --prefill-round-robin-balance --quantization-param --radix-eviction-policy
--schedule-conservativeness --show-time-cost --speculative-algorithm --stream-output --torchao-config
--triton-attention-num-kv-splits --weight-loader-ckpt --cache-type-k --chat-template-file --check-tensors
--control-vector --cpu-mask --cpu-range --defrag-thold --dry-base --dynatemp-range --grammar
--image-max-tokens --keep --kv-unified-per-slot --list-devices --logit-bias --main-gpu --mirostat
--models-dir --no-mmproj --no-slots --override-kv --poll --prio --rope-freq-scale --samplers
--slot-save-path --spm-infill --swa-full --sse-ping-interval --typical --xtc-probability --yarn-ext-factor
--offline --override-tensor""".split()


def test_an_option_of_another_server_gets_no_hint_at_one_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    """One that merely looks alike would be worse than none."""
    parser = make_parser("launch")
    for name in KNOWN_ELSEWHERE:
        try:
            parser.parse_args(["launch", name])
        except SystemExit:
            assert "did you mean" not in capsys.readouterr().err, name


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
    file.write_text("lora: file.gguf\nquite-other: 1\n")
    with pytest.raises(ConfigError, match=r"lora: not supported: .*; quite-other: there is no such option$"):
        read("--config", str(file))


def test_keys_of_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SGLang has an option for each of what is one here."""
    words = "--speculative-algorithm EAGLE3 --speculative-draft-model-path a/b --speculative-num-steps 3"
    expected = {"method": "eagle3", "model": "a/b", "num_speculative_tokens": 3}
    config = read(*words.split(), "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4")
    assert config.speculative_config is not None and json.loads(config.speculative_config) == expected
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


@pytest.mark.parametrize("words", ["--fingerprint-mode custom", "--fingerprint-value a"])
def test_a_fingerprint_is_given_where_it_is_told(words: str) -> None:
    with pytest.raises(ConfigError, match=r"^--fingerprint-value: it is given with"):
        read(*words.split())


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
    assert all(MEANINGS[name].refused for name in HARMLESS)
    reasons = [
        name.partition("=")[0] for table in (NEEDLESS, REFUSED) for names in table.values() for name in names.split()
    ]
    ours = [*FIXED, *KEYS, *(name for names in SAME.values() for name in names.split())]
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
