"""Which histograms there are, with vLLM's names and bounds; which kind of actor counts in each: protocol/kinds.py.

The scheduler knows when a sequence was queued, scheduled and given its tokens, so it counts what happens between these.
Frontends count what clients see: the time to the first token and to the end, from a request's arrival to the moment
when text is handed to the socket; what renderers, lanes and detokenizers take is part of that. Where an answer is not
streamed, nobody sees its first token: then it is the scheduler's time that counts. Knows no actor.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from actorserve.shm.histogram import Histogram, histogram_bytes
from actorserve.shm.segment import Segment

SECOND = 10**9
HOP = "actorserve:hop_latency_seconds"


@dataclass(frozen=True)
class HistogramSpec:
    """One histogram: what it is called, and its bounds in whole numbers, `scale` of which make one exported unit."""

    name: str
    help: str
    bounds: tuple[int, ...]
    scale: int = 1
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Its name among those of its actor."""
        return "/".join((self.name, *(value for _, value in self.labels)))


def _ns(*seconds: float) -> tuple[int, ...]:
    return tuple(round(value * SECOND) for value in seconds)


TO_FIRST = _ns(
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560
)  # fmt: skip
PER_TOKEN = _ns(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
LATENCY = _ns(0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
HOPS = _ns(*(factor * 10**power for power in range(-5, 1) for factor in (1, 2.5, 5)))  # 10 µs to 5 s: ours alone
ITERATION = (1, *(8 << power for power in range(12)))
CHOICES = (1, 2, 5, 10, 20)
PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)


def token_bounds(longest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 … up to the model's length."""
    return tuple(bound for power in range(10) for factor in (1, 2, 5) if (bound := factor * 10**power) <= longest)


def _seconds(name: str, text: str, bounds: tuple[int, ...]) -> HistogramSpec:
    return HistogramSpec(name, text, bounds, SECOND)


def _hop(source: str, target: str) -> HistogramSpec:
    text = "From what an actor wrote of a request to what the next one wrote of it, queueing included"
    return HistogramSpec(HOP, text, HOPS, SECOND, (("source", source), ("target", target)))


def scheduler_histograms(longest: int) -> list[HistogramSpec]:
    """The scheduler's, for a model whose sequences have so many tokens at most."""
    tokens = token_bounds(longest)
    return [
        _seconds("vllm:inter_token_latency_seconds", "Between two tokens of a sequence", PER_TOKEN),
        _seconds(
            "vllm:request_time_per_output_token_seconds", "Mean time of a sequence's tokens but the first", PER_TOKEN
        ),
        _seconds("vllm:request_queue_time_seconds", "From admission to the first step", LATENCY),
        _seconds("vllm:request_prefill_time_seconds", "From the first step to the first token", LATENCY),
        _seconds("vllm:request_decode_time_seconds", "From the first token to the last", LATENCY),
        _seconds("vllm:request_inference_time_seconds", "From the first step to the last token", LATENCY),
        HistogramSpec("vllm:request_prompt_tokens", "Prompt tokens of sequences that have ended", tokens),
        HistogramSpec("vllm:request_generation_tokens", "Generated tokens of sequences that have ended", tokens),
        HistogramSpec("vllm:request_prefill_kv_computed_tokens", "Those of the prompt that no cache had", tokens),
        HistogramSpec("vllm:request_params_max_tokens", "Tokens that ended sequences might have generated", tokens),
        HistogramSpec("vllm:request_num_preemptions", "Times that ended sequences had lost their blocks", PREEMPTIONS),
        HistogramSpec("vllm:iteration_tokens_total", "Tokens of prompts and answers in one step", ITERATION),
    ]


def frontend_histograms(longest: int) -> list[HistogramSpec]:
    """A frontend's, for such a model."""
    return [
        _seconds("vllm:time_to_first_token_seconds", "From arrival to the first token", TO_FIRST),
        _seconds("vllm:e2e_request_latency_seconds", "From arrival to the end handed to the socket", LATENCY),
        HistogramSpec("vllm:request_params_n", "Choices of each prompt that was answered", CHOICES),
        HistogramSpec("vllm:request_max_num_generation_tokens", "Tokens of the longest of them", token_bounds(longest)),
        _hop("frontend", "renderer"),
        _hop("renderer", "scheduler"),
        _hop("scheduler", "frontend"),
    ]


def histograms_bytes(specs: list[HistogramSpec]) -> int:
    """Bytes of these, one behind the other."""
    return sum(histogram_bytes(spec.bounds) for spec in specs)


def open_histograms(segment: Segment, offset: int, specs: list[HistogramSpec]) -> dict[str, Histogram]:
    """These histograms, the first of which lies at `offset`, by their keys."""
    starts = accumulate((histogram_bytes(spec.bounds) for spec in specs), initial=offset)
    return {spec.key: Histogram(segment, start, spec.bounds) for spec, start in zip(specs, starts, strict=False)}
