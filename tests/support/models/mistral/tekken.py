"""A small tekken.json of a version of Mistral's tokenizer."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
NAMED = ["[CALL_ID]", "[ARGS]"]
THINKING = ["[THINK]", "[/THINK]"]
SOUNDS = ["[AUDIO]", "[BEGIN_AUDIO]"]
SETTINGS = ["[MODEL_SETTINGS]", "[/MODEL_SETTINGS]"]
VERSIONS = {  # and what is special beside SPECIAL
    **{"v3": [], "v7": [], "v11": NAMED, "v13": [*NAMED, *THINKING]},
    "v15": [*NAMED, *THINKING, *SETTINGS],
}
EFFORT = {"type": "enum", "values": ["none", "high"], "accepts_none": True, "default": "none"}
COUNT = 40  # of special tokens
WORDS = ["\n\n", "He", "ll", "Hell", "Hello", " b", " be", "it", ' "', '":', '": ', "[]", "{}", "e?", ". ", "th", " th"]
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}"
    r"\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def write_tekken(folder: Path, version: str, more: list[str]) -> Path:
    """The file in a folder, whose tokenizer has these special tokens, too."""
    ranks = [bytes([byte]) for byte in range(256)] + [word.encode() for word in WORDS]
    size = len(ranks) + COUNT
    config: dict[str, Any] = {"pattern": PATTERN, "num_vocab_tokens": len(ranks), "default_vocab_size": size}
    config |= {"default_num_special_tokens": COUNT, "version": version}
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for rank, text in enumerate(ranks)
    ]
    special = [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate([*SPECIAL, *more])]
    folder.mkdir(parents=True, exist_ok=True)
    values = {"config": config, "vocab": vocab, "special_tokens": special}
    if version == "v15":
        values["model_settings_builder"] = {"reasoning_effort": EFFORT}
    (folder / "tekken.json").write_text(json.dumps(values))
    return folder / "tekken.json"
