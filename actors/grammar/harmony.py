"""Answers of gpt-oss as grammars: messages in channels, of which the last is the answer, or a call.

Before it the model thinks, and may speak (commentary). A prompt ends before a channel or within the thinking, which the
next channel may end, too: so does a budget. http/output/parsers/formats/harmony.py reads all this.
"""

from __future__ import annotations

from collections.abc import Mapping

from .lark_writer import GrammarDraft

FINAL = "<|channel|>final"  # ends the thinking: what Constraint.after names


def last_message(draft: GrammarDraft, answer: str | None, calls: Mapping[str, str]) -> str:
    """The expression for `answer` in the final channel, or one of `calls`: of each name, its arguments."""
    begun, channel, message = (draft.literal(mark) for mark in ("<|start|>assistant", "<|channel|>", "<|message|>"))
    form = f'" " | " json" | " "? {draft.literal("<|constrain|>json")}'
    head = draft.rule(f"({form})? {message}")
    ended = f"{draft.until('<|end|>')} {begun}"
    thought = draft.rule(f"{draft.until('<|channel|>')} | {ended} {channel}")
    said = draft.rule(f'("analysis" | "commentary") {head} {thought}')
    last = [f'"final" {head} {answer}'] if answer is not None else []
    for name, arguments in calls.items():
        last.append(f'"commentary" {draft.literal(f" to=functions.{name}")} {head} {arguments}')
    return f"{thought} {said}* {draft.rule(' | '.join(last))}"
