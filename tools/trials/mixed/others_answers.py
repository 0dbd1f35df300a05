"""Answers of the doors of Ollama, llama.cpp, Cohere, Text Generation Inference and SGLang, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from .own_answers import Object, add_call
from .said import Choice, Said

# --- Ollama, llama.cpp, Cohere ---------------------------------------------------------------------------------------


def ollama(found: Said, record: Object) -> None:
    if "error" in record:
        found.wrong.append(f"an error: {record['error']}")
        return
    choice, message = found.choice(0), record.get("message", record)
    choice.text += message.get("content") or message.get("response") or ""
    choice.reasoning += message.get("thinking") or ""
    for call in message.get("tool_calls") or ():
        choice.calls.append([call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True)])
    choice.logprobs += [
        (entry["token"], entry["logprob"], [(top["token"], top["logprob"]) for top in entry.get("top_logprobs") or ()])
        for entry in record.get("logprobs") or ()
    ]
    found.end(0, record["done_reason"] if record["done"] else None)
    if record["done"]:
        found.prompt, found.tokens = record["prompt_eval_count"], record["eval_count"]


def llama(found: Said, whole: Object | list[Object]) -> None:
    """One part, or several."""
    for part in whole if isinstance(whole, list) else [whole]:
        if "error" in part:
            found.wrong.append(f"an error: {part['error']}")
            continue
        choice = found.choice(part["index"])
        choice.text += part["content"]
        choice.ids += part["tokens"]
        for entry in part.get("completion_probabilities") or ():
            tops = [(top["token"], top["logprob"]) for top in entry["top_logprobs"]]
            choice.logprobs.append((entry["token"], entry["logprob"], tops))
        kinds = {"eos": "stop", "word": "stop", "limit": "length"}
        ended = part["stop"]
        found.end(part["index"], kinds.get(part["stop_type"], part["stop_type"]) if ended else None,
                  part["stopping_word"] or None if ended else None)  # fmt: skip
        if ended:
            found.prompt = part["tokens_evaluated"]
            found.tokens = (found.tokens or 0) + part["tokens_predicted"]


COHERE = {"COMPLETE": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length", "TOOL_CALL": "tool_calls"}


def cohere(found: Said, whole: Object) -> None:
    choice, message = found.choice(0), whole["message"]
    for part in message["content"]:
        choice.text += part.get("text", "")
        choice.reasoning += part.get("thinking", "")
    for number, call in enumerate(message.get("tool_calls") or ()):
        add_call(choice.calls, number, call["function"])
    choice.logprobs += _cohere_logprobs(whole.get("logprobs") or ())
    _cohere_end(found, whole)


def _cohere_logprobs(told: Any) -> list[Any]:
    return [pair for one in told for pair in zip(one["token_ids"], one["logprobs"], strict=True)]


def _cohere_end(found: Said, whole: Object) -> None:
    found.end(0, COHERE.get(whole["finish_reason"], whole["finish_reason"]))
    if "usage" in whole:
        tokens = whole["usage"]["tokens"]
        found.prompt, found.tokens = tokens["input_tokens"], tokens["output_tokens"]


def cohere_stream(found: Said, events: list[Any]) -> None:
    choice, opened = found.choice(0), 0
    if events and events[-1] == "[DONE]":
        events = events[:-1]
    for event in events:
        message, kind = event.get("delta", {}).get("message", {}), event["type"]
        opened += kind in ("content-start", "tool-call-start")
        opened -= kind in ("content-end", "tool-call-end")
        if kind in ("content-start", "content-delta"):
            choice.text += message["content"].get("text", "")
            choice.reasoning += message["content"].get("thinking", "")
        if kind in ("tool-call-start", "tool-call-delta"):
            add_call(choice.calls, event["index"], message["tool_calls"]["function"])
        choice.logprobs += _cohere_logprobs([event["logprobs"]] if "logprobs" in event else ())
        if kind == "message-end":
            _cohere_end(found, event["delta"])
    if opened or not events or events[-1]["type"] != "message-end":
        found.wrong.append("no message-end at its end")


# --- Text Generation Inference, SGLang -------------------------------------------------------------------------------


def tgi(found: Said, whole: Object) -> None:
    details, choice = whole["details"], found.choice(0)
    choice.text = whole["generated_text"]
    _tgi_tokens(choice, details["tokens"], details.get("top_tokens"))
    _tgi_end(found, details)


def _tgi_tokens(choice: Choice, tokens: list[Object], tops: Any) -> None:
    for number, token in enumerate(tokens):
        choice.ids.append(token["id"])
        top = [(one["id"], one["logprob"]) for one in tops[number]] if tops else []
        choice.logprobs.append((token["id"], token["logprob"], top))


def _tgi_end(found: Said, details: Object) -> None:
    finish = {"stop_sequence": "stop", "eos_token": "stop"}.get(details["finish_reason"], details["finish_reason"])
    found.end(0, finish)
    found.tokens = details["generated_tokens"]


def tgi_stream(found: Said, events: list[Any]) -> None:
    choice = found.choice(0)
    for number, event in enumerate(events):
        if "error" in event:
            found.wrong.append(f"an error: {event['error']}")
            return
        if (event["generated_text"] is not None) != (number == len(events) - 1):
            found.wrong.append("the text stands elsewhere than in the last event")
        top = event.get("top_tokens")
        _tgi_tokens(choice, [event["token"]], [top] if top is not None else None)
    choice.text = events[-1]["generated_text"]
    _tgi_end(found, events[-1]["details"])


def sglang(found: Said, whole: Object | list[Object]) -> None:
    for number, part in enumerate(whole if isinstance(whole, list) else [whole]):
        _sglang_part(found, part, number)


def _sglang_part(found: Said, part: Object, number: int) -> None:
    about, index = part["meta_info"], part.get("index", number)
    choice = found.choice(index)
    if not part["text"].startswith(choice.text):
        found.wrong.append("an event takes back what one before it has said")
    choice.text, choice.ids = part["text"], part["output_ids"]
    tops = about.get("output_top_logprobs")
    choice.logprobs = [
        (token, logprob, [(top[1], top[0]) for top in tops[at]] if tops else [])
        for at, (logprob, token, _) in enumerate(about.get("output_token_logprobs") or ())
    ]
    if finish := about["finish_reason"]:
        found.end(index, finish["type"], finish.get("matched"))
        found.prompt, found.tokens = about["prompt_tokens"], (found.tokens or 0) + about["completion_tokens"]


def sglang_stream(found: Said, events: list[Any]) -> None:
    if not events or events[-1] != "[DONE]":
        found.wrong.append("no [DONE] at its end")
    for event in events:
        if event != "[DONE]" and "error" in event:
            found.wrong.append(f"an error: {event['error']}")
        elif event != "[DONE]":
            _sglang_part(found, event, 0)
