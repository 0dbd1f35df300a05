"""Answers of gpt-oss as grammars: messages in channels, of which the last is the answer, or a call.

Before it the model thinks, and may speak (commentary). A prompt ends before a channel or within the thinking, which the
next channel may end, too: so does a budget. http/output/parsers/formats/harmony.py reads all this.
"""

from __future__ import annotations

from collections.abc import Mapping

from .lark_writer import GrammarDraft

FIRST = "[^ <]"  # character of thinking that the prompt has begun: a recipient begins with a space
FINAL = "<|channel|>final"  # ends the thinking: what Constraint.after names


def last_message(draft: GrammarDraft, answer: str | None, calls: Mapping[str, str]) -> str:
    """The expression for `answer` in the final channel, or one of `calls`: of each name, its arguments.

    A call's recipient stands behind its channel, or before it: templates write earlier calls so.
    """
    begun, channel, message = (draft.literal(mark) for mark in ("<|start|>assistant", "<|channel|>", "<|message|>"))
    form = f'" " | " json" | " "? {draft.literal("<|constrain|>json")}'
    head = draft.rule(f"({form})? {message}")
    kind = draft.rule(f'("analysis" | "commentary") {head}')
    ended, over = (draft.rule(f"{draft.until('<|end|>', begins)} {begun}") for begins in (FIRST, ""))
    first = draft.rule(f"{channel} | {draft.until('<|channel|>', FIRST)} | {ended} {channel}")
    later = draft.rule(f"{draft.until('<|channel|>')} | {over} {channel}")
    thoughts = draft.rule(f"{first} ({kind} {later})*")
    last = [f'{thoughts} "final" {head} {answer}'] if answer is not None else []
    for name, arguments in calls.items():
        to = draft.literal(f" to=functions.{name}")
        last.append(f'{thoughts} "commentary" {to} {head} {arguments}')
        last.append(f'({ended} | {thoughts} {kind} {over})? {to} {channel} "commentary" {head} {arguments}')
    return draft.rule(" | ".join(last))
