"""The chat template of models whose prompts Mistral's own library writes, by the version of their tokenizer.

chat_template.jinja beside it has all versions; what it asks of the tokenizer is set before it. Marks that the tokenizer
has no tokens for are not in the text, by whose words parsers are found.
"""

from __future__ import annotations

import re
from collections.abc import Container
from pathlib import Path

from ..tokenizers.tokenizer_files import read_template
from ..values import Values

VERSIONS = (3, 7, 11, 13, 15)
VERSION = re.compile(r"v(\d+)")
TEMPLATE = Path(__file__).with_suffix(".jinja")
THINKING, SOUND = ("[THINK]", "[/THINK]"), ("[BEGIN_AUDIO]", "[AUDIO]")


def make_template(version: object, tokens: Container[str], settings: Values) -> str | None:
    """For a tokenizer of this version (`v7`) with these special tokens, and what it says of the model's settings; None:
    how it writes prompts is not known.
    """
    match = VERSION.fullmatch(version) if isinstance(version, str) else None
    if match is None or int(match[1]) not in VERSIONS:
        return None
    number = int(match[1])
    thinking = repr([*THINKING]) if number >= 13 and THINKING[0] in tokens else "none"
    sound = repr("".join(SOUND)) if SOUND[0] in tokens else "none"
    effort = settings.object("reasoning_effort")
    efforts, usual = (effort.texts("values"), effort.text("default")) if effort is not None else ((), None)
    about = {"version": number, "thinking": thinking, "sound": sound}
    about |= {"efforts": repr([*efforts]) if efforts else "none", "usual": repr(usual) if usual else "none"}
    head = "".join(f"{{%- set {name} = {value} %}}\n" for name, value in about.items())
    return head + read_template(TEMPLATE)
