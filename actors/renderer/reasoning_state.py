"""Does a prompt end inside a thinking block? Then what the model says first is its reasoning."""

from __future__ import annotations

import re

BEHIND = re.compile(r"\s*(?:<\|message\|>)?\s*")  # a marker, before the answer: harmony's are channels of messages


def left_thinking(text: str, start: str, end: str, continued: str | None = None) -> bool | None:
    """Has the rendered text left a block open that `start` begins and `end` closes? None: it says nothing of one.

    Messages may speak of the markers, so they count only at the very end: the generation prompt put them there.
    `continued` is the text of a final message that is being continued: what it opens itself counts wherever it stands,
    and what it neither opens nor closes has left as it was what stands before it.
    """
    if not start:
        return None
    said = (continued or "").strip()
    if said and text.rstrip().endswith(said):
        opened, closed = said.rfind(start), _last(said, end)
        if opened != closed:  # at least one is there
            return opened > closed
        text = text.rstrip()[: -len(said)]
    opened, closed = text.rfind(start), _last(text, end)
    last = opened + len(start) if opened > closed else closed + len(end)
    return opened > closed if max(opened, closed) >= 0 and BEHIND.fullmatch(text, last) else None


def _last(text: str, end: str) -> int:
    return text.rfind(end) if end else -1
