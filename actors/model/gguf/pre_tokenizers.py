"""What `tokenizer.ggml.pre` means: how a text is cut into words before bytes are merged.

A wrong cut gives other tokens than the model was trained with, and no error: a name that is not here is refused.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..tokenizers.tokenizer_parts import byte_level, split_by

ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
QWEN2 = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES
SEED = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
START = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = f"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*" + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
GPT4O = (
    f"{START}{UPPER}*{LOWER}+{ENDS}?|{START}{UPPER}+{LOWER}*{ENDS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + SPACES
)
PUNCTUATION, THREE_DIGITS = r"[\p{P}$+<=>^~|`]+", "[0-9][0-9][0-9]"
BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


class PreTokenizer(NamedTuple):
    """What goes with a name."""

    pattern: str
    before: tuple[str, ...] = ()  # patterns by which texts are cut first
    behind: tuple[str, ...] = ()  # and by which the words are
    digits: bool = False  # each digit is a word, before all else
    normal_form: bool = False  # texts are brought to Unicode's form C
    whole_words: bool = False  # a word that is a token is not merged from its bytes
    begins: bool = False  # with the token of beginning, where the file does not say


LLAMA3_LIKE = PreTokenizer(LLAMA3, whole_words=True, begins=True)
DIGITS = PreTokenizer(GPT2, digits=True)
BY_NAME = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral"), LLAMA3_LIKE),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), PreTokenizer(LLAMA3)),
    "qwen2": PreTokenizer(QWEN2, normal_form=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "megrez"), PreTokenizer(QWEN2)),
    **dict.fromkeys(("gpt-2", "olmo", "phi-2", "jais", "mpt"), PreTokenizer(GPT2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), DIGITS),
    "tekken": PreTokenizer(TEKKEN, whole_words=True, begins=True),
    "seed-coder": PreTokenizer(SEED),
    "gpt-4o": PreTokenizer(GPT4O),
    "falcon": PreTokenizer(GPT2, before=(PUNCTUATION,), behind=(THREE_DIGITS,)),
    "bloom": PreTokenizer(BLOOM),
}


def pre_tokenizer(kind: PreTokenizer) -> dict[str, Any]:
    """As tokenizer.json has it."""
    steps: list[dict[str, Any]] = [{"type": "Digits", "individual_digits": True}] if kind.digits else []
    patterns = (*kind.before, kind.pattern, *kind.behind)
    return {"type": "Sequence", "pretokenizers": [*steps, *map(split_by, patterns), byte_level()]}
