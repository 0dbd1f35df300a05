"""Names and values of other servers that are refused: with the reason, and with no hint that misleads."""

from __future__ import annotations

import contextlib

import pytest

from actorserve.actors.cli import main, make_parser
from actorserve.actors.options.config import ConfigError

from .command_lines import read, refused


def test_what_there_is_not_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", "--lora", "file.gguf")
    assert capsys.readouterr().err == (
        "actorserve launch: error: --lora: not supported: adapters are folders of PEFT's, as --lora-modules names "
        "them, and are kept in float32, or the GPU's type (see actorserve launch --help)\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--attn-dp-size 2", "a model is divided by --tensor-parallel-size"),
        ("--enable-http2", "--http2-port is a port for HTTP/2"),
        ("--data-parallel-rpc-port 29550", "a model is divided by --tensor-parallel-size"),
        ("--slot-save-path /x", "folder:PATH:SIZE keeps KV blocks elsewhere"),
        ("--offline", "HF_HUB_OFFLINE=1 keeps from the hub"),
        ("--check-tensors", "`actorserve check MODEL`"),
        ('--additional-config {"a":1}', "there are no platforms of other packages"),
        ("--per-request-spec-decode-metrics summary", "clients ask for it by return_metrics"),
        ("--watermark-config {}", "by watermarking_config with each request"),
        ("--max-num-active-seqs 4", "--max-num-seqs says how many sequences run"),
        ("--lora-target-modules q_proj v_proj", "all the parts of a model that it has weights for"),
        ("--enable-priority-scheduling", "runs lower numbers first"),
        ("--allow-auto-truncate", "truncate_prompt_tokens"),
        ("--ssl-keyfile-password x", "no password hides"),
        ("--incremental-streaming-output", "/v1/chat/completions what is new"),
        ("--mirostat 2", "clients say it with each request"),
        ("--spec-default", "drafts are set by --speculative-config"),
    ],
)
def test_what_else_there_is_not(words: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", *words.split())
    assert f"{words.split()[0]}: not supported: " in (said := capsys.readouterr().err) and reason in said


def test_what_stays_open_is_not_said_to_be_off(capsys: pytest.CaptureFixture[str]) -> None:
    refused("folder", "--no-props")
    assert "--no-props: not supported: it is always there" in capsys.readouterr().err


def test_all_that_cannot_be_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--decode-context-parallel-size 2 --quite-other 7 --keep=5 --max-num-seqz 4 --port 1 -xyz --jinja"
    refused("folder", *words.split())
    told = capsys.readouterr().err.splitlines()
    names = ["actorserve launch", "--decode-context-parallel-size", "--quite-other", "--keep", "--max-num-seqz", "-xyz"]
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
--no-mmproj --no-slots --override-kv --poll --prio --rope-freq-scale --samplers
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


@pytest.mark.parametrize("words", ["--fingerprint-mode custom", "--fingerprint-value a"])
def test_a_fingerprint_is_given_where_it_is_told(words: str) -> None:
    with pytest.raises(ConfigError, match=r"^--fingerprint-value: it is given with"):
        read(*words.split())
