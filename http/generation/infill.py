"""What stands between two texts: prompts for models whose tokenizers have special tokens for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from ..errors import bad_request

FILE = "file"


@dataclass(frozen=True)
class InfillTokens:
    """The special tokens of one family; where the text behind stands first, nothing marks the answer's place."""

    prefix: str
    suffix: str
    middle: str
    separator: str = ""  # before each file of the same repository
    suffix_first: bool = False

    def prompt(self, before: str, behind: str, extra: Iterable[tuple[str, str]] = ()) -> str:
        """`extra`: (name, text) of other files."""
        files = "".join(f"{self.separator}{name}\n{text}\n" for name, text in extra) if self.separator else ""
        if files:
            files += f"{self.separator}{FILE}\n"
        if self.suffix_first:
            return f"{files}{self.suffix}{behind}{self.prefix}{before}{self.middle}"
        return f"{files}{self.prefix}{before}{self.suffix}{behind}{self.middle}"


KNOWN = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>"),  # Qwen, CodeGemma
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<file_sep>"),  # StarCoder
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    InfillTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    InfillTokens("[PREFIX]", "[SUFFIX]", "", suffix_first=True),  # Codestral
)


def infill_tokens(special: Collection[str], field: str) -> InfillTokens:
    """Those that a tokenizer has; a 400 for the field if it has none."""
    for tokens in KNOWN:
        needed = [name for name in (tokens.prefix, tokens.suffix, tokens.middle) if name]
        if all(name in special for name in needed):
            return tokens if tokens.separator in special else replace(tokens, separator="")
    raise bad_request(f"{field}: this model's tokenizer has no tokens for what stands between two texts.", field)
