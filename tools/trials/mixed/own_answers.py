"""Answers of the doors of OpenAI, vLLM and Anthropic, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

from .said import Said

Object = dict[str, Any]

# --- OpenAI's chat and completions, and token ids --------------------------------------------------------------------


def openai(found: Said, whole: Object) -> None:
    """One object or chunk."""
    if "error" in whole:
        found.wrong.append(f"an error: {whole['error'].get('message')}")
        return
    before = found.tokens or 0
    if usage := whole.get("usage"):
        found.prompt, found.tokens = usage["prompt_tokens"], usage["completion_tokens"]
        if usage["total_tokens"] != found.prompt + found.tokens:
            found.wrong.append("total_tokens is no sum")
    if whole.get("prompt_logprobs") is not None:
        found.of_prompt = whole["prompt_logprobs"]
    for one in whole["choices"]:
        _openai_choice(found, one)
    if (found.tokens or 0) < before and len(found.choices) < 2:  # on the way it is of one choice
        found.wrong.append("usage goes down")


def _openai_choice(found: Said, one: Object) -> None:
    choice = found.choice(one["index"])
    delta = one.get("message") or one.get("delta") or {}
    choice.text += one.get("text") or delta.get("content") or ""
    choice.reasoning += delta.get("reasoning") or delta.get("reasoning_content") or ""
    for number, call in enumerate(delta.get("tool_calls") or ()):
        add_call(choice.calls, call.get("index", number), call["function"])
    choice.ids += one.get("token_ids") or ()
    told = one.get("logprobs")
    if told and "content" in told:
        choice.logprobs += [
            (entry["token"], entry["logprob"], [(top["token"], top["logprob"]) for top in entry["top_logprobs"]])
            for entry in told["content"] or ()
        ]
    elif told:
        tops = told.get("top_logprobs") or [None] * len(told["tokens"])
        entries = zip(told["tokens"], told["token_logprobs"], tops, strict=True)
        choice.logprobs += [(token, logprob, list(top.items()) if top else []) for token, logprob, top in entries]
    if one.get("prompt_logprobs") is not None:
        found.of_prompt = [*(found.of_prompt or ()), one["prompt_logprobs"]]
    found.end(one["index"], one.get("finish_reason"), one.get("stop_reason"))


def add_call(calls: list[list[str]], index: int, function: Object) -> None:
    while len(calls) <= index:
        calls.append(["", ""])
    calls[index][0] += function.get("name") or ""
    calls[index][1] += function.get("arguments") or ""


def openai_stream(found: Said, events: list[Any]) -> None:
    if not events or events[-1] != "[DONE]" or "[DONE]" in events[:-1]:
        found.wrong.append("no [DONE] at its end alone")
    for event in events:
        if event != "[DONE]":
            openai(found, event)


# --- responses -------------------------------------------------------------------------------------------------------


def response(found: Said, whole: Object) -> None:
    choice = found.choice(0)
    for item in whole["output"]:
        if item["type"] == "function_call":
            choice.calls.append([item["name"], item["arguments"]])
        for part in item.get("content") or ():
            if item["type"] == "reasoning":
                choice.reasoning += part["text"]
            else:
                choice.text += part["text"]
                choice.logprobs += [
                    (
                        entry["token"],
                        entry["logprob"],
                        [(top["token"], top["logprob"]) for top in entry["top_logprobs"]],
                    )
                    for entry in part.get("logprobs") or ()
                ]
    reason = (whole.get("incomplete_details") or {}).get("reason")
    finish = {"max_output_tokens": "length"}.get(reason, reason) if reason else "stop"
    found.end(0, finish if whole["status"] in ("completed", "incomplete") else whole["status"])
    found.prompt, found.tokens = whole["usage"]["input_tokens"], whole["usage"]["output_tokens"]
    if whole["status"] == "failed":
        found.wrong.append(f"failed: {whole['error']}")


def response_stream(found: Said, events: list[Any]) -> None:
    if [event["sequence_number"] for event in events] != list(range(len(events))):
        found.wrong.append("sequence_number does not go up by one")
    last = events[-1]["type"].removeprefix("response.") if events else ""
    if last not in ("completed", "incomplete", "failed"):
        found.wrong.append(f"the last event is {last or 'none'}")
        return
    response(found, events[-1]["response"])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    if "".join(event["delta"] for event in deltas) != found.choice(0).text:
        found.wrong.append("the deltas are not the text")
    arguments = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    if "".join(arguments) != "".join(call[1] for call in found.choice(0).calls):
        found.wrong.append("the deltas are not the arguments")
    for kind in ("output_item", "content_part"):
        ends = [sum(event["type"] == f"response.{kind}.{name}" for event in events) for name in ("added", "done")]
        if ends[0] != ends[1]:
            found.wrong.append(f"{ends[0]} {kind}.added, {ends[1]} done")


# --- Anthropic's messages --------------------------------------------------------------------------------------------

ANTHROPIC = {"end_turn": "stop", "max_tokens": "length", "stop_sequence": "stop", "tool_use": "tool_calls"}


def message(found: Said, whole: Object) -> None:
    choice = found.choice(0)
    for block in whole["content"]:
        if block["type"] == "tool_use":
            choice.calls.append([block["name"], _arguments(block, whole["stop_reason"] == "max_tokens")])
        choice.text += block.get("text", "")
        choice.reasoning += block.get("thinking", "")
    found.end(0, ANTHROPIC.get(whole["stop_reason"], whole["stop_reason"]), whole["stop_sequence"])
    usage = whole["usage"]
    found.tokens = usage["output_tokens"]
    found.prompt = sum(usage.get(name) or 0 for name in ("input_tokens", "cache_read_input_tokens"))


def _arguments(block: Object, cut: bool) -> str:
    """As JSON of sorted keys, of a stream's parts, too; those that were cut as they are."""
    told = block.get("json") or json.dumps(block["input"])
    return told if cut else json.dumps(json.loads(told), sort_keys=True)


def message_stream(found: Said, events: list[Any]) -> None:
    whole: Object = {"content": []}
    is_open = False
    for event in events:
        match event["type"]:
            case "message_start":
                whole |= event["message"]
            case "content_block_start":
                if is_open or event["index"] != len(whole["content"]):
                    found.wrong.append("a block begins in another")
                whole["content"].append({**event["content_block"], "json": ""})
                is_open = True
            case "content_block_delta":
                _block_delta(whole["content"][event["index"]], event["delta"])
            case "content_block_stop":
                is_open = False
            case "message_delta":
                whole |= event["delta"]
                whole["usage"] = {**whole["usage"], **event["usage"]}
            case "error":
                found.wrong.append(f"an error: {event['error']}")
    if is_open or not events or events[-1]["type"] != "message_stop":
        found.wrong.append("no message_stop at its end")
    message(found, whole)


def _block_delta(block: Object, delta: Object) -> None:
    for name in ("text", "thinking"):
        if name in delta:
            block[name] += delta[name]
    block["json"] += delta.get("partial_json", "")
