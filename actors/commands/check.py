"""`actorserve check [MODEL]`: what `launch` with the same options would load, what fits, and what cannot be."""

from __future__ import annotations

import argparse
import logging
import sys
from typing import Any

from ..options.command_line import add_options, read_config

DESCRIPTION = """Say what `actorserve launch` with the same options would load and how much fits, without starting.

The exit status is 0 if the model can be served with these options on this machine as it is now, and 2 if not; then
the reasons are told as launch would tell them. Of a folder (--models-dir) those that cannot be are left out."""
CANNOT = 2  # as launch has it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the server, and the form of the answer."""
    add_options(parser)
    parser.add_argument("--json", action="store_true", help="all of it as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print it; 2 if it cannot be."""
    config = read_config(arguments)
    from .check_report import check_all

    logging.basicConfig(format="actorserve: warning: %(message)s", level=logging.WARNING)
    (first, *others), unserved = check_all(config)
    problems = [*first.problems, *(f"--also {one.config.model}: {text}" for one in others for text in one.problems)]
    if arguments.json:
        import msgspec

        answer: dict[str, Any] = {"ok": not problems, "problems": problems, **first.facts}
        if others:
            answer["also"] = [one.facts for one in others]
        if unserved:
            answer["unserved"] = {one.config.served_names()[0]: "; ".join(one.problems) for one in unserved}
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(answer)) + b"\n")
    else:
        for checkup in (first, *others):
            if checkup is not first:
                print(f"--also    | {checkup.config.model}")
            for line in _lines(checkup.facts):
                print(line)
        for one in unserved:
            print(f"left out  | {one.config.served_names()[0]}: {'; '.join(one.problems)}")
        for problem in problems:
            print(f"cannot be served: {problem}")
        if not problems:
            print("can be served")
    return CANNOT if problems else 0


def _lines(facts: dict[str, dict[str, Any]]) -> list[str]:
    """One line a topic, as far as there are facts."""
    lines = []
    for topic, words in (
        ("model", _model),
        ("tokenizer", lambda known: f"{known['words']:,} words, from {known['folder']}"),
        ("chat", _chat),
        ("computing", _computing),
        ("sharing", lambda known: f"{size(known['segment_bytes'])} of shared memory for {known['slots']:,} requests"),
        ("room", _room),
    ):
        if known := facts.get(topic):
            lines.append(f"{topic:<9} | {words(known)}")
    return lines


def _model(known: dict[str, Any]) -> str:
    stored = ", ".join(f"{size(number)} in {dtype}" for dtype, number in known.get("stored_bytes", {}).items())
    length = f"context of {known['context_length']:,} tokens"
    takes = f"takes {', '.join(known['media'])} beside text" if known["media"] else ""
    parts = (known["architecture"], length, takes, f"stored: {stored}" if stored else "", known["folder"])
    return ", ".join(filter(None, parts))


def _chat(known: dict[str, Any]) -> str:
    templates = ", ".join(known["templates"])
    parsers = f"tool calls: {known['tool_parser'] or 'not read'}, thinking: {known['reasoning_parser'] or 'not read'}"
    if "doubt" in known:
        parsers = f"{parsers}; {known['doubt']}"
    return f"templates: {templates}; {parsers}" if templates else f"no chat template: completions only; {parsers}"


def _computing(known: dict[str, Any]) -> str:
    parts = [f"{known['workers']} worker{'s' if known['workers'] > 1 else ''}"]
    if "parameters" in known:
        parts.append(f"{known['parameters']:,} parameters in {known['layers']} layers")
    if "way" in known:
        parts.append(known["way"])
    if "device" in known:
        each = " each" if known["workers"] > 1 else ""
        parts.append(f"{size(known['weights_bytes'])} of weights{each} in {known['dtype']} on {known['device']}")
    if "kernels" in known:
        parts.append(f"kernels: {known['kernels']}")
    if "blocks" in known:
        most = ", less what steps need" if known["estimated"] else ""
        kind = f" in {known['kv_cache_dtype']}" if "kv_cache_dtype" in known else ""
        each = f"{known['kv_bytes_per_token']:,} bytes a token"
        windows = f"; {known['kv_windows']}" if known.get("kv_windows") else ""
        parts.append(f"{size(known['kv_bytes'])} of KV memory{kind} ({each}{most}{windows})")
    return ", ".join(parts)


def _room(known: dict[str, Any]) -> str:
    parts = []
    if "tokens" in known:
        parts.append(f"{known['tokens']:,} tokens of KV memory")
        parts.append(f"{known['sequences']} sequences at once, {known['longest_sequences']} of them at full length")
    if "waiting" in known:
        parts.append(f"{known['waiting']:,} may wait")
    return ", ".join(parts)


def size(number: int) -> str:
    """Bytes as people read them."""
    value = float(number)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{number} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
