"""What a template writes of conversations that nobody has: it tells what its text, full of macros and branches, hides.

What a template refuses for other reasons changes nothing: that is for who renders (chat_template.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice
from typing import Any

import jinja2

from .content_formats import Reads, fit_all
from .problem import FAULTS, NO_MEMORY, problem_of
from .turns.names import SYSTEM, THINKING

Messages = list[dict[str, Any]]
Write = Callable[[Messages, Reads], str | None]
WORDS = ("the first words", "the second words", "the third words")
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
GIVEN: dict[str, Any] = {
    "tools": [{"type": "function", "function": LOOK}],
    "documents": None,
    "add_generation_prompt": True,
    **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), ""),
}
TOLD = {"role": "system", "content": WORDS[0]}
ASKED = {"role": "user", "content": "Look."}
MAX_PIECES = 10_000  # of the text that is looked at
AS_OBJECT = re.compile(rf"text\\*['\"]\s*:\s*\\*['\"]{WORDS[0]}")  # a part as Python writes it, or JSON


def probed(template: jinja2.Template, reads: Reads, beat: Callable[[], None]) -> Reads:
    """What it reads, with what is found by trying. `beat` is called behind each try, a rendering of its own.

    OutOfMemory where a try finds none.
    """

    def write(messages: Messages, given: Reads) -> str | None:
        text = _written(template, messages, given)
        beat()
        return text

    reads = reads._replace(developer=reads.developer and not _leaves_out_developer(write, reads))
    return reads._replace(
        results=reads.parts and reads.text and _writes_result_parts(write, reads),
        one_call=_writes_one_call(write, reads),
        one_first=_leaves_out(write, reads, ("system", "developer", "user")),
        one_system=_leaves_out(write, reads, ("system", "user", "assistant", "system", "user")),
        first_system=_leaves_out(write, reads, ("user", "assistant", "system", "user")),
        system_beside_user=_writes_system_beside_user(write, reads),
        thinking_parts=reads.thinking and _writes_thinking_parts(write, reads),
    )


def _writes_result_parts(write: Write, reads: Reads) -> bool:
    """Of a tool's result, the text of each part?"""
    parts = [{"type": "text", "text": words} for words in WORDS]
    text = write([ASKED, _called(WORDS[0]), _result(0, parts)], reads._replace(results=True))
    return _has(text, *WORDS) and AS_OBJECT.search(text or "") is None


def _writes_one_call(write: Write, reads: Reads) -> bool:
    """Of several, the first alone; or does it refuse them?"""
    one, two = [ASKED, _called(WORDS[0]), _result(0)], [ASKED, _called(*WORDS[:2]), _result(0), _result(1)]
    return _has(write(one, reads), WORDS[0]) and not _has(write(two, reads), *WORDS[:2])


def _leaves_out(write: Write, reads: Reads, roles: tuple[str, ...]) -> bool:
    """Of what the system and the developer say, some?"""
    words = WORDS[: sum(role in SYSTEM for role in roles)]
    said = iter(words)
    messages = [{"role": role, "content": next(said) if role in SYSTEM else "So."} for role in roles]
    text = write(messages, reads)
    return text is not None and not _has(text, *words) and _has(write([TOLD, ASKED], reads), WORDS[0])


def _leaves_out_developer(write: Write, reads: Reads) -> bool:
    """Of the developer, who speaks first or behind the system, nothing, though it names the role?"""
    told = {"role": "developer", "content": WORDS[1]}
    texts = (write(messages, reads) for messages in ([told, ASKED], [TOLD, told, ASKED]))
    return not any(_has(text, WORDS[1]) for text in texts) and _has(write([TOLD, ASKED], reads), WORDS[0])


def _writes_system_beside_user(write: Write, reads: Reads) -> bool:
    """Of what the system says, nothing behind a result, though else it does?"""
    text = write([TOLD, ASKED, _called("here"), _result(0)], reads)
    return text is not None and not _has(text, WORDS[0]) and _has(write([TOLD, ASKED], reads), WORDS[0])


def _writes_thinking_parts(write: Write, reads: Reads) -> bool:
    """Of what an assistant has thought, parts of its content alone?"""
    call = _called(WORDS[0])
    field, part = call | {"reasoning_content": WORDS[1]}, {"type": THINKING, "thinking": WORDS[1]}
    texts = [write([ASKED, turn, _result(0)], reads) for turn in (field, call | {"content": [part]})]
    return [_has(text, WORDS[1]) for text in texts] == [False, True]


def _called(*places: str) -> dict[str, Any]:
    functions = [{"name": "look", "arguments": {"at": place}} for place in places]
    made = [{"id": f"call{at:05}", "type": "function", "function": one} for at, one in enumerate(functions)]
    return {"role": "assistant", "content": "", "tool_calls": made}


def _result(call: int, content: Any = "Seen.") -> dict[str, Any]:
    return {"role": "tool", "name": "look", "tool_call_id": f"call{call:05}", "content": content}


def _has(text: str | None, *words: str) -> bool:
    return text is not None and all(one in text for one in words)


def _written(template: jinja2.Template, messages: Messages, reads: Reads) -> str | None:
    """None where it refuses them."""
    given = {**GIVEN, "messages": fit_all(messages, reads)}
    try:
        return "".join(islice(template.generate(given), MAX_PIECES))
    except NO_MEMORY as error:
        raise problem_of(error, "chat_template") from None
    except (*FAULTS, jinja2.TemplateError):
        return None
