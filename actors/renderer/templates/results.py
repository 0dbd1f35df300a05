"""How a template writes a tool's result that comes in parts, found by rendering one.

Many loop over the parts of some roles alone, in macros and branches that say nothing of roles: what comes out says it.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import jinja2

from .content_formats import Reads, fit_all
from .problem import FAULTS, NO_MEMORY

PARTS = ("the first part", "the second part")  # of a result, of a conversation that nobody has
CALL = {"id": "call00001", "type": "function", "function": {"name": "look", "arguments": {}}}
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
GIVEN: dict[str, Any] = {
    "tools": [{"type": "function", "function": LOOK}],
    "documents": None,
    "add_generation_prompt": True,
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), ""),
}
MAX_PIECES = 10_000  # of the text that is looked at
AS_OBJECT = re.compile(rf"text\\*['\"]\s*:\s*\\*['\"]{PARTS[0]}")  # a part as Python writes it, or JSON


def writes_result_parts(template: jinja2.Template, reads: Reads) -> bool:
    """Does it write the text of each part?"""
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {
            "role": "tool",
            "name": "look",
            "tool_call_id": CALL["id"],
            "content": [{"type": "text", "text": text} for text in PARTS],
        },
    ]
    fitted = fit_all(messages, reads._replace(results=True))
    try:
        text = "".join(islice(template.generate({**GIVEN, "messages": fitted}), MAX_PIECES))
    except NO_MEMORY:
        raise MemoryError("no room for a conversation of three messages") from None
    except (*FAULTS, jinja2.TemplateError):
        return False
    return all(part in text for part in PARTS) and AS_OBJECT.search(text) is None
