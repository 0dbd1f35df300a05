"""llama-server's names in /metrics, for the dashboards that chart them: without labels, of all engines together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from actorserve.http.metrics import Distribution, Family

PREFIX = "llamacpp"
COUNTERS = {  # theirs: ours, and what theirs says
    "prompt_tokens_cached": ("vllm:prompt_tokens_cached", "Prompt tokens that were not computed"),
    "tokens_predicted": ("vllm:generation_tokens", "Generated tokens"),
    "spec_decode_num_drafts": ("vllm:spec_decode_num_drafts", "Times that drafts of a sequence were tried"),
    "spec_decode_num_draft_tokens": ("vllm:spec_decode_num_draft_tokens", "Tokens that were drafted"),
    "spec_decode_num_accepted_tokens": ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted"),
}
GAUGES = {  # likewise
    "requests_processing": ("vllm:num_requests_running", "Sequences in the running batch"),
    "requests_deferred": ("vllm:num_requests_waiting", "Sequences that wait to run"),
}


class _Total(NamedTuple):
    """Of a histogram, of all engines."""

    values: int
    sum: float


def with_llama_names(families: Iterable[Family]) -> list[Family]:
    """Ours, and theirs of the same numbers."""
    own = list(families)
    return [*own, *_theirs({family.name: family for family in own})]


def _theirs(by_name: Mapping[str, Family]) -> Iterator[Family]:
    for kind, table in (("counter", COUNTERS), ("gauge", GAUGES)):
        for name, (ours, text) in table.items():
            yield _family(kind, name, text, _sum(by_name[ours]))
    computed = _total(by_name["vllm:request_prefill_kv_computed_tokens"]).sum
    generated = _total(by_name["vllm:request_generation_tokens"])
    prefill_s = _total(by_name["vllm:request_prefill_time_seconds"]).sum
    decode_s = _total(by_name["vllm:request_decode_time_seconds"]).sum
    steps = _total(by_name["vllm:iteration_tokens_total"]).values
    yield _family(
        "counter", "prompt_tokens", "Prompt tokens that were computed, of sequences that have ended", computed
    )
    yield _family("counter", "prompt_seconds", "Time in which they were computed", prefill_s)
    yield _family("counter", "tokens_predicted_seconds", "From first tokens to last ones", decode_s)
    yield _family("counter", "n_decode", "Steps of the model", steps)
    yield _family("gauge", "prompt_tokens_seconds", "Prompt tokens computed a second", _rate(computed, prefill_s))
    timed = generated.sum - generated.values  # the first token of an answer takes none of its time
    yield _family("gauge", "predicted_tokens_seconds", "Tokens generated a second and sequence", _rate(timed, decode_s))
    per_step = _rate(_sum(by_name["vllm:generation_tokens"]), steps)
    yield _family("gauge", "n_busy_slots_per_decode", "Tokens generated in a step, on average", per_step)


def _family(kind: str, name: str, text: str, value: float) -> Family:
    return Family("counter" if kind == "counter" else "gauge", f"{PREFIX}:{name}", text, [({}, value)])


def _sum(family: Family) -> float:
    return sum(value for _, value in family.samples if not isinstance(value, Distribution))


def _total(family: Family) -> _Total:
    shown = [value for _, value in family.samples if isinstance(value, Distribution)]
    return _Total(sum(sum(one.counts) for one in shown), sum(one.sum for one in shown))


def _rate(count: float, of: float) -> float:
    return count / of if of else 0.0
