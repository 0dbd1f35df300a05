"""What each engine has to do, as SGLang tells it and as load balancers read it in a header (ORCA)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

import actorserve

SECTIONS = ("core", "spec", "memory", "lora", "disagg", "queues", "all")  # what has none of the last ones has not these
LOAD_FORMAT, LOAD_HEADER = "Endpoint-Load-Metrics-Format", "Endpoint-Load-Metrics"
Object = dict[str, Any]


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Of one engine at one moment."""

    rank: int
    running: int  # sequences
    waiting: int
    waiting_tokens: int  # of prompts that wait
    held_tokens: int  # of KV memory, that sequences hold
    most_tokens: int  # 0 until its workers are there
    most_running: int
    prefix_queries: int  # tokens, since it was started
    prefix_hits: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int

    def core(self) -> Object:
        """By SGLang's names."""
        return {
            "dp_rank": self.rank,
            "num_running_reqs": self.running,
            "num_waiting_reqs": self.waiting,
            "num_waiting_uncached_tokens": self.waiting_tokens,
            "num_used_tokens": self.held_tokens,
            "num_total_tokens": self.held_tokens + self.waiting_tokens,
            "max_total_num_tokens": self.most_tokens,
            "max_running_requests": self.most_running,
            "token_usage": _share(self.held_tokens, self.most_tokens),
            "cache_hit_rate": _share(self.prefix_hits, self.prefix_queries),
            "utilization": _share(self.running, self.most_running),
        }

    def speculative(self) -> Object:
        """How many tokens a step gives of a row with drafts, and the share of drafts that is right."""
        return {
            "accept_length": 1 + _share(self.accepted_tokens, self.drafts),
            "accept_rate": _share(self.accepted_tokens, self.draft_tokens),
        }


def older(load: EngineLoad, now: float) -> Object:
    """GET /get_load, of one engine."""
    return {
        "dp_rank": load.rank,
        "num_reqs": load.running + load.waiting,
        "num_waiting_reqs": load.waiting,
        "num_tokens": load.held_tokens + load.waiting_tokens,
        "ts_tic": now,
    }


def told(load: EngineLoad, sections: Sequence[str]) -> Object:
    """GET /v1/loads, of one engine; a section is there where it tells something."""
    drafts = load.drafts and any(name in sections for name in ("spec", "all"))
    return load.core() | ({"speculative": load.speculative()} if drafts else {})


def states(loads: Sequence[EngineLoad]) -> list[Object]:
    """The `internal_states` of SGLang's /server_info, by which its benchmark of batches sees what fits."""
    return [
        {
            "dp_size": len(loads),
            "effective_max_running_requests_per_dp": load.most_running,
            "memory_usage": {"token_capacity": load.most_tokens},
            "running_requests": load.running,
            "avg_spec_accept_length": load.speculative()["accept_length"] if load.drafts else None,
        }
        for load in loads
    ]


def as_json(loads: Sequence[Object], workers: int) -> Object:
    """GET /v1/loads."""
    about = {"timestamp": datetime.now(UTC).isoformat(), "version": f"actorserve {actorserve.__version__}"}
    return about | {"accelerator": None, "num_accelerators": workers, "loads": list(loads)}


def as_text(loads: Sequence[Object]) -> str:
    """The same as Prometheus reads it."""
    samples: dict[str, list[str]] = {}
    for load in loads:
        numbers = load | {f"spec_{name}": value for name, value in load.get("speculative", {}).items()}
        for name, value in numbers.items():
            if name not in ("dp_rank", "speculative"):
                samples.setdefault(f"sglang_{name}", []).append(f'{{dp_rank="{load["dp_rank"]}"}} {value}')
    families = ([f"# TYPE {name} gauge", *(name + one for one in rows)] for name, rows in samples.items())
    return "".join(f"{line}\n" for family in families for line in family)


def report(loads: Sequence[EngineLoad], wanted: str) -> str | None:
    """The header's value, by vLLM's names, in the format that is wanted; None for one that there is not."""
    named = {
        "kv_cache_usage_perc": _share(sum(one.held_tokens for one in loads), sum(one.most_tokens for one in loads)),
        "num_requests_waiting": float(sum(one.waiting for one in loads)),
    }
    match wanted.strip().lower():
        case "text":
            return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
        case "json":
            return "JSON " + msgspec.json.encode({"named_metrics": named}).decode()
    return None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
