"""SGLang's names in /metrics of numbers of ours, for its benchmarks and dashboards that chart them; labels are ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from actorserve.http.metrics import Family

NAMES = {  # ours: theirs
    "vllm:prompt_tokens": "sglang:prompt_tokens",
    "vllm:prompt_tokens_cached": "sglang:cached_tokens",
    "vllm:generation_tokens": "sglang:generation_tokens",
    "vllm:num_requests_running": "sglang:num_running_reqs",
    "vllm:num_requests_waiting": "sglang:num_queue_reqs",
    "vllm:kv_cache_usage_perc": "sglang:token_usage",
}


def with_sglang_names(families: Iterable[Family]) -> list[Family]:
    """Ours, and theirs of the same numbers."""
    own = list(families)
    return [*own, *(replace(family, name=NAMES[family.name]) for family in own if family.name in NAMES)]
