"""What stands between two texts: prompts for models whose tokenizers have special tokens for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ..errors import bad_request

FILE = "file"
SEPARATORS = ("<|file_sep|>", "<|file_separator|>", "<file_sep>")  # before each file of the same repository
SNIPPET = "\n\n--- snippet ---\n\n"  # as llama.cpp has it, where a tokenizer has no token for that
ENDS = (  # of what is filled in, beside the model's own: what may follow it where files stand one behind the other
    *SEPARATORS,
    *("<|fim_pad|>", "<|repo_name|>", "<|endoftext|>", "<|EOT|>"),
    *("<fim_pad>", "<repo_name>", "<fim-pad>", "▁<EOT>"),
)


@dataclass(frozen=True)
class InfillTokens:
    """The special tokens of one family; where the text behind stands first, nothing marks the answer's place."""

    prefix: str
    suffix: str
    middle: str
    suffix_first: bool = False

    @property
    def names(self) -> list[str]:
        return [name for name in (self.prefix, self.suffix, self.middle) if name]

    def prompt(self, before: str, behind: str, files: str = "") -> str:
        """`files`: of the same repository, as `files_of` writes them."""
        if self.suffix_first:
            return f"{files}{self.suffix}{behind}{self.prefix}{before}{self.middle}"
        return f"{files}{self.prefix}{before}{self.suffix}{behind}{self.middle}"


KNOWN = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, CodeGemma
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    InfillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek
    InfillTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    InfillTokens("[PREFIX]", "[SUFFIX]", "", suffix_first=True),  # Codestral
)


def infill_tokens(special: Collection[str], field: str) -> InfillTokens:
    """Those that a tokenizer has; a 400 for the field if it has none."""
    tokens = _known(special)
    if tokens is None:
        raise bad_request(f"{field}: this model's tokenizer has no tokens for what stands between two texts.", field)
    return tokens


def can_infill(special: Collection[str]) -> bool:
    """Has a tokenizer with these special tokens such?"""
    return _known(special) is not None


def _known(special: Collection[str]) -> InfillTokens | None:
    return next((tokens for tokens in KNOWN if all(name in special for name in tokens.names)), None)


def files_of(extra: Iterable[tuple[str, str]], special: Collection[str]) -> str:
    """(name, text) of other files, as they stand before the one that is filled in."""
    mark = next((name for name in SEPARATORS if name in special), None)
    if mark is None:
        return "".join(f"{SNIPPET}{text}" for _, text in extra)
    files = "".join(f"{mark}{name}\n{text}\n" for name, text in extra)
    return f"{files}{mark}{FILE}\n" if files else ""


def infill_ends(special: Mapping[str, int], tokens: InfillTokens) -> list[int]:
    """The ids that end what is filled in: no model writes them inside of it."""
    return [special[name] for name in (*tokens.names, *ENDS) if name in special]
