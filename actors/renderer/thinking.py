"""Does a prompt end inside a thinking block? Then what the model says first is its reasoning."""

from __future__ import annotations


def opens_thinking(text: str, start: str, end: str, continued: str | None = None) -> bool:
    """Has the rendered text left a block open that `start` begins and `end` closes?

    Messages may speak of the markers, so an open one counts only at the very end, but for white space: the generation
    prompt put it there. `continued` is the text of a final message that is being continued: what it opens itself
    counts wherever it stands, and what it neither opens nor closes has left as it was what stands before it.
    """
    if not start:
        return False
    said = (continued or "").strip()
    if said and text.rstrip().endswith(said):
        opened, closed = said.rfind(start), _last(said, end)
        if opened != closed:  # at least one is there
            return opened > closed
        text = text.rstrip()[: -len(said)]
    opened = text.rfind(start)
    return opened > _last(text, end) and not text[opened + len(start) :].strip()


def _last(text: str, end: str) -> int:
    return text.rfind(end) if end else -1
