"""The chat templates of DeepSeek V3.2 and V4, whose checkpoints have Python code in place of one (encoding/).

Texts are those of that code, byte by byte, but what a developer says before the user is the system's, as OpenAI's
clients mean it: that code drops it, or writes it as a user's.
"""

from __future__ import annotations

from pathlib import Path

from ...options.choices import TokenizerMode
from ..tokenizers.tokenizer_files import read_template

FOLDER = Path(__file__).parent
FILES: dict[TokenizerMode, str] = {"deepseek_v32": "v32.jinja", "deepseek_v4": "v4.jinja"}  # behind calls.jinja
BY_ARCHITECTURE: dict[str, TokenizerMode] = {
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
}


def template_of(mode: TokenizerMode | None) -> dict[str, tuple[str, str]]:
    """By name, where it stands and its text; empty where the mode names none."""
    if mode is None or mode not in FILES:
        return {}
    path = FOLDER / FILES[mode]
    text = read_template(FOLDER / "calls.jinja") + read_template(path)
    return {"default": (f"--tokenizer-mode {mode}: {path}", text)}
