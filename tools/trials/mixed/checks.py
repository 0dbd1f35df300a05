"""What holds of every answer, whatever was asked for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from . import fields
from .asked import Asked
from .requests import vectors
from .said import Choice, Said

FINISHES = {"stop", "length", "tool_calls", "repetition"}
DRAWN = {
    *("top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "k", "p"),
    *("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
    *("mirostat", "mirostat_tau", "mirostat_eta"),
}
STEERS = {  # with these the token that is drawn is not the model's likeliest at temperature 0
    *("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "ignore_eos"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty", "watermarking_config", "repeat_penalty"),
    "dry_multiplier",
}
LITTLE = 1e-4
OF_GROUP, FELLOW_GONE = "[rank", "gloo/transport"  # in what a worker of a group says, of a sum that one did not come to
END = re.compile(r"<\|\w+\|>\Z")


def wrong(asked: Asked, said: Said, room: int) -> list[str]:
    """What is not right, `room`: the model's length."""
    return [*said.wrong, *_finishes(asked, said, room), *_texts(asked, said), *_calls(asked, said), *_told(asked, said)]


def is_bad(line: str) -> bool:
    """Does the log tell of an actor that has failed by itself? A worker does so where its fellow was killed."""
    if OF_GROUP in line:
        return "exit status" in line and FELLOW_GONE not in line
    return "Traceback" in line or "exit status" in line


def _finishes(asked: Asked, said: Said, room: int) -> Iterator[str]:
    if sorted(said.choices) != list(range(asked.choices)):
        yield f"choices {sorted(said.choices)} of {asked.choices}"
    for choice in said.choices.values():
        if choice.finish not in FINISHES:
            yield f"finish_reason {choice.finish}"
    if said.tokens is None or asked.get("best_of") or asked.get("echo") or asked.body.get("use_beam_search"):
        return
    if said.tokens > asked.most * asked.choices:
        yield "more tokens than max_tokens"
    at_length = all(choice.finish == "length" for choice in said.choices.values())
    if at_length and said.tokens != asked.most * asked.choices and (said.prompt or 0) + asked.most <= room:
        yield "fewer tokens than max_tokens, and length"
    if asked.get("return_token_ids") and sum(len(choice.ids) for choice in said.choices.values()) != said.tokens:
        yield "usage tells another number of tokens than there are ids"


def stops(asked: Asked) -> list[str]:
    inside = asked.body.get("options") or asked.body
    found = asked.get("stop") or inside.get("stop") or asked.body.get("stop_sequences") or []
    return [found] if isinstance(found, str) else list(found)


def _texts(asked: Asked, said: Said) -> Iterator[str]:
    words = stops(asked)
    kept = asked.get("include_stop_str_in_output") or asked.get("echo") or asked.door == "tgi"
    for choice in said.choices.values():
        if not kept and not asked.get("min_tokens") and any(word in choice.text for word in words):
            yield "a stop string stands in the text"
        ended = choice.finish == "stop" and not (words or asked.get("stop_token_ids"))
        if asked.form and ended and not asked.form.fits(_without_end(asked, choice.text)):
            yield f"no {asked.form.kind} {json.dumps(asked.form.value)}: {choice.text[:80]!r}"
        allowed = asked.get("allowed_token_ids")
        if allowed and not (asked.form or asked.body.get("tools")) and not {*choice.ids} <= {*allowed}:
            yield "a token that was not allowed"
    every = {f"{one.reasoning}{one.text}{one.calls}{one.ids}" for one in said.choices.values()}
    if _draws_apart(asked) and len(every) == 1:
        yield "all choices are the same"


def _without_end(asked: Asked, text: str) -> str:
    """Without the token that ended it, which is told to who wants both the end and what is special."""
    told = asked.get("include_stop_str_in_output") and asked.get("skip_special_tokens") is False
    return END.sub("", text) if told else text


def _draws_apart(asked: Asked) -> bool:
    """Several choices of one prompt, hot and unfiltered. (Two may say the same of what the model is sure of.)"""
    known = (DRAWN | STEERS) & {*asked.body, *(asked.body.get("sampling_params") or ())}
    hot = asked.get("temperature", 0) == 2 and asked.most >= 16
    return hot and not known and not asked.form and not stops(asked) and asked.get("n", 1) == asked.choices > 2


def _calls(asked: Asked, said: Said) -> Iterator[str]:
    tools = {(tool := one.get("function", one))["name"]: tool for one in asked.body.get("tools") or ()}
    wish = asked.body.get("tool_choice")
    wish = wish.get("type") if isinstance(wish, dict) and "name" not in wish and "function" not in wish else wish
    forced = wish in ("required", "any", "REQUIRED") or isinstance(wish, dict)
    for choice in said.choices.values():
        if choice.calls and (not tools or wish in ("none", "NONE")):
            yield "calls, though none was allowed"
        if forced and tools and choice.finish != "length" and not choice.calls and not _is_cut(asked):
            yield f"no call, though {json.dumps(wish)}"
        for name, arguments in choice.calls:
            if tools and name not in tools and choice.finish != "length":
                yield f"a call of {name!r}"
            elif tools and choice.finish == "tool_calls":
                yield from _arguments(tools[name], arguments, forced)


def _is_cut(asked: Asked) -> bool:
    return bool(stops(asked) or asked.get("stop_token_ids") or asked.get("repetition_detection"))


def _arguments(tool: dict[str, Any], arguments: str, forced: bool) -> Iterator[str]:
    try:
        found = json.loads(arguments)
    except ValueError:
        yield f"arguments are no JSON: {arguments[:80]!r}"
        return
    schema = tool.get("parameters") or tool.get("input_schema") or {}
    if (forced or tool.get("strict")) and not fields.holds(schema, found):
        yield f"arguments do not fit: {arguments[:80]!r}"


# --- logprobs --------------------------------------------------------------------------------------------------------


def _told(asked: Asked, said: Said) -> Iterator[str]:
    for choice in said.choices.values():
        if choice.ids and choice.logprobs and not asked.get("echo") and len(choice.ids) != len(choice.logprobs):
            yield "as many logprobs as there are no ids"
        yield from _of_tokens(asked, choice)


def _of_tokens(asked: Asked, choice: Choice) -> Iterator[str]:
    for entry in choice.logprobs:
        token, logprob, tops = (*entry, [])[:3]
        if logprob is None:  # the first of an echoed prompt
            continue
        known = [one for _, one in tops]
        if any(one > LITTLE or not math.isfinite(one) for one in (logprob, *known)):
            yield "a logprob above 0, or none"
        if asked.get("logprob_token_ids") or not tops:
            continue
        if sum(math.exp(one) for one in known) > 1.01 and len({name for name, _ in tops}) == len(tops):
            yield "probabilities of more than 1"
        if logprob > max(known) + LITTLE:
            yield "a token likelier than the likeliest"
        if _is_greedy(asked) and logprob < max(known) - LITTLE:
            yield f"not the likeliest token {token!r} at temperature 0"


def _is_greedy(asked: Asked) -> bool:
    """The likeliest token is drawn. (Of an echo the prompt's tokens are not.)"""
    inside = asked.body.get("sampling_params") or asked.body.get("options") or asked.body
    cold = asked.get("temperature", inside.get("temperature", 1)) == 0
    budget = {"thinking_token_budget", "thinking"} & {*asked.body}
    steered = STEERS & {*inside} or budget or asked.form or asked.body.get("tools") or asked.get("echo")
    return cold and not steered and not asked.body.get("use_beam_search")


def wrong_vectors(asked: Asked, whole: Any) -> list[str]:
    found = vectors(whole)
    if len(found) != asked.choices:
        return [f"{len(found)} vectors of {asked.choices}"]
    return [] if all(abs(math.hypot(*one) - 1) < 0.01 for one in found) else ["a vector whose length is not 1"]
