"""How long a prompt and its answer took, as llama.cpp's server tells it (`timings`), and how far a prompt has come."""

from __future__ import annotations

from typing import Any

from ..generation.choice import Choice
from ..generation.times import JobTimes, PromptProgress

MS = 1_000_000  # ns


def timings_of(times: JobTimes, prompt: int, cached: int, told: int) -> dict[str, Any]:
    """`prompt`: its tokens, of which so many were `cached`; `told`: those of the answer."""
    computed = prompt - cached
    drafts = {"draft_n": times.drafted, "draft_n_accepted": times.accepted} if times.drafted else {}
    return {
        "cache_n": cached,
        **_rate("prompt", computed, times.prefill, computed),
        **_rate("predicted", told, times.decode, max(0, told - 1)),
        **drafts,
    }


def progress_of(progress: PromptProgress, ns: int) -> dict[str, Any]:
    """`prompt_progress`, `ns` behind the prompt's beginning."""
    processed = max(progress.cached, progress.computed)
    return {"total": progress.total, "cache": progress.cached, "processed": processed, "time_ms": ns // MS}


def all_read(choice: Choice, times: JobTimes) -> dict[str, Any]:
    """The same of a prompt that has been computed."""
    done = PromptProgress(choice.index, choice.prompt_tokens, choice.cached_tokens, choice.prompt_tokens)
    return progress_of(done, times.prefill)


def _rate(name: str, count: int, took: int, timed: int) -> dict[str, Any]:
    """How many tokens, and in which time `timed` of them: that of an answer begins behind its first."""
    ms = took / MS
    return {
        f"{name}_n": count,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / timed if timed else 0.0,
        f"{name}_per_second": 1000 * timed / ms if ms else 0.0,
    }
