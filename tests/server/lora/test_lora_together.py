"""Adapters with workers that share a model, and with drafts: each of a group has its part of every adapter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import http_client
from tests.support.models.adapters import KINDS, logprobs_of, write_adapter
from tests.support.models.checkpoints import checkpoint
from tests.support.models.heads import dflash, eagle3, medusa, write_dflash, write_eagle3, write_medusa
from tests.support.server import Server

NGRAM = ("--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1}')
TWO = ("-tp", "2", "--threads", "1")
ENGINES = ("--data-parallel-size", "2", "--threads", "1")
PROMPT = [*range(5, 17), *range(5, 17), *range(5, 15)]
TOKENS = 32


def ask(server: Server, name: str) -> Any:
    how = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "return_token_ids": True, "logprobs": 0}
    with http_client(server) as client:
        answer = client.post("/v1/completions", json={"model": name, "prompt": PROMPT, **how})
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("llama_biased", (*TWO, *NGRAM), id="both"),
        pytest.param("qwen3", TWO, id="two", marks=pytest.mark.slow),
        pytest.param("qwen3", ENGINES, id="engines", marks=pytest.mark.slow),
        pytest.param("phi3", TWO, id="fused", marks=pytest.mark.slow),
        pytest.param("qwen3", NGRAM, id="drafts", marks=pytest.mark.slow),
        pytest.param("qwen3", (*NGRAM, "--deterministic", "--cpu-kernels", "torch"), id="bits", marks=pytest.mark.slow),
    ],
)
def test_what_peft_says(kind: str, options: Sequence[str], tmp_path: Path) -> None:
    check_what_peft_says(checkpoint(kind, tmp_path, initializer_range=0.1), tmp_path, options, kind == "phi3")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle3", "medusa", "dflash"])
def test_drafts_by_heads_are_judged_with_the_adapter(method: str, tmp_path: Path) -> None:
    """The heads know nothing of adapters: what they draft is taken where the adapted model, its logits too, says so."""
    base, head = checkpoint("qwen3", tmp_path, initializer_range=0.1), tmp_path / "drafts"
    if method == "eagle3":
        write_eagle3(head, base, eagle3(base))
    elif method == "dflash":
        write_dflash(head, base, dflash(base))
    else:
        write_medusa(head, medusa(base))
    drafts = {"method": method, "model": str(head), "num_speculative_tokens": 3}
    check_what_peft_says(base, tmp_path, ("--speculative-config", json.dumps(drafts), "--device", "cpu"))


def check_what_peft_says(base: Path, tmp_path: Path, options: Sequence[str], is_fused: bool = False) -> None:
    fused = {"target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]} if is_fused else {}
    kinds = {name: KINDS[name] | fused for name in ("rslora", "dora", "head")}
    paths: dict[str, Path | None] = {"base": None}
    paths |= {name: write_adapter(base, tmp_path / name, 1, **given) for name, given in kinds.items()}
    given = [f"{name}={path}" for name, path in paths.items() if path is not None]
    with Server(
        str(base), "--served-model-name", "base", "--enable-lora", "--lora-modules", *given, *options
    ) as server:
        with ThreadPoolExecutor(6) as pool:
            names = [*paths, *paths]
            answers = list(pool.map(lambda name: ask(server, name), names))
    for name, choice in zip(names, answers, strict=True):
        ids, told = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        wanted = logprobs_of(base, paths[name], PROMPT + ids)[len(PROMPT) - 1 : -1]
        assert ids == wanted.argmax(-1).tolist()
        assert max(abs(found - float(row[token])) for found, row, token in zip(told, wanted, ids, strict=True)) < 1e-5
