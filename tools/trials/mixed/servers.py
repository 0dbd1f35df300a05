"""Options of the servers that are asked: the first few as they are here, the others mixed, too."""

from __future__ import annotations

import json
from random import Random
from typing import Any, NamedTuple

from ..launched import ROOT
from .requests import POOLED

DEMO = ROOT / "actors" / "model" / "demo"
SAME = "--deterministic"
LENGTH = 4096
THINKS = (  # a template whose answers begin in the model's thinking
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n{%- endif %}"
)


class Server(NamedTuple):
    """How a server is started. `rough`: actors are killed, and clients go away."""

    options: tuple[str, ...]
    rough: bool = True
    room: int = LENGTH
    pooled: bool = False
    thinks: bool = False


def _drafts(**how: Any) -> tuple[str, str]:
    return "--speculative-config", json.dumps(how)


NGRAMS = _drafts(method="ngram", num_speculative_tokens=4)
DRAFT_MODEL = _drafts(method="draft_model", model=str(DEMO), num_speculative_tokens=3)
SHORT = ("--max-model-len", "1024")
SERVERS = (  # a seed has the one of its number
    Server((SAME,), rough=False),
    Server((SAME, "--max-num-seqs", "4", "--kv-cache-memory-bytes", "8000000", *SHORT), room=1024),
    Server((SAME, "--frontends", "2", "--renderers", "2", *NGRAMS)),
    Server(("--quantization", "int8", "--max-num-batched-tokens", "64", "--no-enable-prefix-caching")),
    Server((SAME, "--tensor-parallel-size", "2", "--max-model-len", "256"), room=256),
    Server((SAME, "--kv-cache-memory-bytes", "12000000", *SHORT, "--kv-offload", "host:64M"), room=1024),
    Server((SAME, *DRAFT_MODEL)),
    Server((SAME, "--data-parallel-size", "2", "--scheduling-policy", "priority", "--max-num-seqs", "6")),
    Server((SAME, "--also", f"{DEMO},runner=pooling,served-model-name={POOLED}", "--block-size", "8"), pooled=True),
)
PARSERS = (
    *("hermes", "qwen3_coder", "llama3_json", "pythonic", "mistral", "deepseek_v3", "deepseek_v31", "deepseek_v32"),
    *("glm45", "glm47", "kimi_k2", "cohere_command3", "granite", "seed_oss", "minimax_m2", "hunyuan_a13b", "jamba"),
    *("nemotron_json", "longcat", "phi4_mini_json", "xlam", "step3", "ernie45", "olmo3", "internlm", "lfm2", "apertus"),
    *(
        "llama4_pythonic",
        "deepseek_v4",
        "gemma4",
        "functiongemma",
        "gigachat3",
        "minimax",
        "step3p5",
        "cohere_command_r",
        "hy_v3",
        "minicpm5",
    ),
)
OPTIONS: tuple[tuple[tuple[str, ...], ...], ...] = (  # at most one of each line
    (("--max-num-seqs", "2"), ("--max-num-seqs", "5"), ("--max-num-seqs", "20")),
    (("--frontends", "2"), ("--frontends", "3", "--detokenizers", "2")),
    (("--renderers", "2"),),
    (("--no-enable-prefix-caching",), ("--kv-offload", "host:32M")),
    (("--max-num-batched-tokens", "48"), ("--long-prefill-token-threshold", "16")),
    (("--tensor-parallel-size", "2"), ("--pipeline-parallel-size", "2"), ("--data-parallel-size", "2")),
    (NGRAMS, DRAFT_MODEL, _drafts(method="suffix", num_speculative_tokens=6)),
    (("--scheduling-policy", "priority"),),
    (("--block-size", "8"), ("--block-size", "16"), ("--block-size", "64")),
    (("--escape-special-tokens",),),
    (("--stream-interval", "4"),),
)


def server(seed: int) -> Server:
    """That of a seed."""
    if seed < len(SERVERS):
        return SERVERS[seed]
    rng = Random(f"server {seed}")
    words = [SAME] if rng.random() < 0.8 else ["--quantization", "int8"]
    for lines in OPTIONS:
        if rng.random() < 0.35:
            chosen = rng.choice(lines)
            words += () if "--speculative-config" in chosen and "--pipeline-parallel-size" in words else chosen
    words += ("--tool-call-parser", rng.choice(PARSERS))
    room = LENGTH
    if rng.random() < 0.4:
        words, room = [*words, "--kv-cache-memory-bytes", "10000000", *SHORT], 1024
    thinks = rng.random() < 0.35
    if thinks:
        words += ("--chat-template", THINKS, "--reasoning-parser", "deepseek_r1")
    return Server(tuple(words), room=room, thinks=thinks)
