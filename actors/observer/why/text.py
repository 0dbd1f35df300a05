"""What is known of a request, in words."""

from __future__ import annotations

from ..table import duration
from .explanation import Explanation

WIDTH = 26


def describe(answer: Explanation) -> str:
    """Some lines about one choice."""
    lines = [f"{answer.request_id or 'a request without id'} · slot {answer.slot} · came {duration(answer.age_s)} ago"]
    lines.append(_line("now", f"ended: {answer.ended}" if answer.where == "ended" else answer.where))
    lines += [_line("waits for", text) for text in answer.waits_for]
    if answer.queue_place is not None:
        lines.append(_line("place in the queue", f"{answer.queue_place} of {answer.queue_length}"))
    for stage in answer.stages:
        lines.append(_line(stage.name, duration(stage.seconds) + ("" if stage.over else " so far")))
    lines.append(_line("tokens", _tokens(answer)))
    if answer.drafts_accepted is not None:
        lines.append(_line("drafts", f"{answer.drafts_accepted:.0%} of all requests' were accepted"))
    if answer.text_lag_tokens > 0:
        lines.append(_line("not yet text", f"{answer.text_lag_tokens} tokens"))
    if answer.model:
        lines.append(_line("model", answer.model))
    if answer.engine is not None:
        moved = f", after {answer.moves} changes" if answer.moves else ""
        lines.append(_line("engine", f"{answer.engine}{moved}"))
    if answer.adapter:
        lines.append(_line("adapter", answer.adapter))
    if answer.preemptions:
        lines.append(_line("lost its blocks", f"{answer.preemptions} times, and was computed again"))
    lines.append(_line("survived", _survived(answer)))
    return "\n".join(lines)


def _line(name: str, text: str) -> str:
    return f"  {name:{WIDTH}} {text}"


def _tokens(answer: Explanation) -> str:
    if answer.prompt_tokens is None:
        return "the prompt is not rendered yet"
    parts = [f"{answer.prompt_tokens} of the prompt"]
    if answer.cached_tokens:
        parts[0] += f" ({answer.cached_tokens} of them cached)"
    computed = answer.computed_tokens
    if answer.ended is None and computed is not None and computed < answer.prompt_tokens:
        parts.append(f"{computed} of them computed")
    if not answer.pools:
        parts.append(f"{answer.generated_tokens} of at most {answer.limit} generated")
    if answer.tokens_s is not None:
        parts.append(f"{answer.tokens_s:.1f} tokens/s")
    return ", ".join(parts)


def _survived(answer: Explanation) -> str:
    deaths = f"{answer.deaths} deaths of schedulers and workers" if answer.deaths else ""
    replaced = [f"{one.actor} was replaced {duration(one.at_s)} after it came" for one in answer.replaced]
    return "; ".join(filter(None, [deaths, *replaced])) or "nothing"


def one_line(answer: Explanation) -> str:
    """For a list."""
    tokens = f"{'-' if answer.prompt_tokens is None else answer.prompt_tokens}+{answer.generated_tokens}"
    tokens = tokens.removesuffix("+1") if answer.pools else tokens
    waits = "; ".join(answer.waits_for)
    name = answer.request_id or "-"
    return f"{answer.slot:>5}  {name:34}  {duration(answer.age_s):>8}  {answer.where:26}  {tokens:>11}  {waits}"


HEAD = f"{'slot':>5}  {'request':34}  {'age':>8}  {'now':26}  {'tokens':>11}  waits for"
