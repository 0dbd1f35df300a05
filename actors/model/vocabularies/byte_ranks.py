"""tokenizer.json of byte tokens with ranks: tiktoken's files, and Mistral's tekken.json.

Such a file of tiktoken has no rule by which texts are cut, and no special tokens: by the class that the model names for
it both are known here, or the file is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import ConfigError
from ..gguf.pre_tokenizers import KIMI, LLAMA3, QWEN2
from ..tokenizers.tokenizer_parts import (
    added_token,
    between,
    byte_alphabet,
    byte_level,
    byte_pairs,
    in_turn,
    merges_by_rank,
    split_by,
)
from ..values import Values
from .special import About, AddedTokens

LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")
RESERVED = 256  # special tokens behind those of the file
TEKKEN_SPECIAL = (  # of files that do not list their own
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()


class Rule(NamedTuple):
    """What goes with a class."""

    pattern: str
    normal_form: bool = False  # texts are brought to Unicode's form C
    special: tuple[str, ...] = ()  # behind the file's tokens, where the folder does not say more
    reserved: str = ""  # how the others of RESERVED are named, by {number} or by {at}, the place among them
    begins: bool = False  # with bos_token


LLAMA3_SPECIAL = (
    "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> "
    "<|finetune_right_pad_id|> <|reserved_special_token_2|> <|start_header_id|> <|end_header_id|> <|eom_id|> "
    "<|eot_id|> <|python_tag|>"
).split()
LLAMA3_SPECIAL += [f"<|reserved_special_token_{number}|>" for number in range(3, RESERVED - len(LLAMA3_SPECIAL) + 3)]
QWEN_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{number}|>" for number in range(205))]
RULES = {  # by the class that tokenizer_config.json names
    "QWenTokenizer": Rule(QWEN2, normal_form=True, special=tuple(QWEN_SPECIAL)),
    "TikTokenTokenizer": Rule(KIMI, reserved="<|reserved_token_{number}|>"),
    "ChatGLM4Tokenizer": Rule(LLAMA3),
    "LlamaTokenizer": Rule(LLAMA3, special=tuple(LLAMA3_SPECIAL), begins=True),
}
BY_MODEL = {"llama": "LlamaTokenizer", "qwen": "QWenTokenizer", "kimi_k2": "TikTokenTokenizer"}  # without a class


def looks_like_tiktoken(data: bytes) -> bool:
    """Is its first line a token in base64 and its rank?"""
    return LINE.match(data) is not None


def from_tiktoken(file: Path, data: bytes, about: About) -> dict[str, Any]:
    """ConfigError names what cannot be understood."""
    name = about.named_class
    if name in ("", "PreTrainedTokenizer", "Tokenizer"):
        name = BY_MODEL.get(about.model_type, name)
    rule = RULES.get(name)
    if rule is None:
        raise ConfigError(
            f"--tokenizer: {file} does not say how texts are cut into words, and the class "
            f"{name or '(none)'} of tokenizer_config.json is not known; known are: {', '.join(RULES)}"
        )
    ranks = _ranks(file, data)
    words, model = _model(file, ranks)
    added, base = AddedTokens(about, words), max(ranks.values()) + 1
    told = about.config.object("added_tokens_decoder")
    for at, text in enumerate(rule.special if told is None else ()):
        added.add(base + at, text, special=True)
    for at in range(RESERVED if rule.reserved else 0):
        added.add(base + at, rule.reserved.format(number=base + at), special=True)
    added.add_told()
    model |= {"vocab": added.words()}
    return _made(model, added.listed(), rule, added.ends(rule.begins, "<|begin_of_text|>"))


def from_tekken(file: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Mistral's tekken.json, whose numbers begin with those of special tokens."""
    values = Values(file, given)
    config = values.object("config")
    pattern = config.text("pattern") if config else None
    if config is None or pattern is None:
        raise values.wrong("config", "an object with a pattern")
    size, count = config.needed("default_vocab_size", 1 << 24), config.whole("default_num_special_tokens", 0, 1 << 16)
    count = count or 0
    special = _tekken_special(values, count)
    ranks = _tekken_ranks(values, size - count)
    words, model = _model(file, {text: rank + count for text, rank in ranks.items()})
    added = [added_token(token, text, control) for token, (text, control) in enumerate(special)]
    if twice := next((text for text, _ in special if text in words), None):
        raise values.wrong("special_tokens", f"no token of vocab ({twice!r} is one)")
    model |= {"vocab": {text: token for token, (text, _) in enumerate(special)} | words}
    begin = next(((text, token) for token, (text, _) in enumerate(special) if text == "<s>"), None)
    return _made(model, added, Rule(pattern), between(begin, None))


def tekken_names(made: dict[str, Any]) -> dict[str, str]:
    """bos_token and others of such a file."""
    known = {token["content"] for token in made["added_tokens"]}
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    return {name: text for name, text in names.items() if text in known}


def _made(
    model: dict[str, Any], added: list[dict[str, Any]], rule: Rule, ends: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if rule.normal_form else None,
        "pre_tokenizer": in_turn("pretokenizers", [split_by(rule.pattern), byte_level()]),
        "post_processor": ends or byte_level(),
        "decoder": byte_level() | {"use_regex": True},
        "model": model,
    }


def _model(file: Path, ranks: dict[bytes, int]) -> tuple[dict[str, int], dict[str, Any]]:
    """(words by number, the model). A word that is a token is not merged from its bytes."""
    letters = {byte: letter for letter, byte in byte_alphabet().items()}
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ConfigError(f"--tokenizer: {file} lacks the byte {missing[0]} ({len(missing)} of 256 are missing)")

    def word(text: bytes) -> str:
        return "".join([letters[byte] for byte in text])

    words = {word(text): rank for text, rank in ranks.items()}
    if len(set(words.values())) != len(words):
        raise ConfigError(f"--tokenizer: {file} has two tokens with one rank")
    try:
        merges = merges_by_rank(ranks)
    except ValueError as error:
        raise ConfigError(f"--tokenizer: {file}: the token {error}") from None
    return words, byte_pairs(words, [[word(one), word(two)] for one, two in merges]) | {"ignore_merges": True}


def _ranks(file: Path, data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        text, _, rank = line.partition(b" ")
        try:
            ranks[base64.b64decode(text, validate=True)] = int(rank)
        except (binascii.Error, ValueError):
            raise ConfigError(f"--tokenizer: {file}: line {number} is no token in base64 with its rank") from None
    if not ranks or min(ranks.values()) < 0 or b"" in ranks:
        raise ConfigError(f"--tokenizer: {file} has no tokens, or one that is empty or of a rank below 0")
    return ranks


def _tekken_special(values: Values, count: int) -> list[tuple[str, bool]]:
    """(text, is it left out of answers) of each, by number."""
    listed = values["special_tokens"]
    if listed is None:
        texts = [(text, True) for text in TEKKEN_SPECIAL]
    elif isinstance(listed, list) and all(isinstance(entry, dict) for entry in listed):
        entries = sorted(listed, key=lambda entry: str(entry.get("rank")).zfill(12))
        texts = [(entry.get("token_str"), bool(entry.get("is_control", True))) for entry in entries]
        if [entry.get("rank") for entry in entries] != list(range(len(entries))):
            raise values.wrong("special_tokens", "a list with the ranks from 0 on")
    else:
        raise values.wrong("special_tokens", "a list of objects")
    if len(texts) > count or any(not isinstance(text, str) or not text for text, _ in texts):
        raise values.wrong("special_tokens", f"at most {count} (default_num_special_tokens), each with a token_str,")
    fill = [(f"<SPECIAL_{number}>", True) for number in range(len(texts), count)]
    if len({text for text, _ in texts + fill}) != count:
        raise values.wrong("special_tokens", "no text twice")
    return texts + fill


def _tekken_ranks(values: Values, most: int) -> dict[bytes, int]:
    """The first `most` tokens of vocab."""
    listed = values["vocab"]
    if not isinstance(listed, list) or len(listed) < most:
        raise values.wrong("vocab", f"a list of at least {most} tokens (default_vocab_size without special ones)")
    ranks: dict[bytes, int] = {}
    for rank, entry in enumerate(listed[:most]):
        try:
            if entry["rank"] != rank:
                raise ValueError
            ranks[base64.b64decode(entry["token_bytes"], validate=True)] = rank
        except (TypeError, KeyError, ValueError):
            shown = json.dumps(entry)[:60]
            raise ConfigError(
                f"--tokenizer: {values.file}: vocab.{rank} is {shown}; the rank {rank} and token_bytes in base64 are "
                "needed"
            ) from None
    return ranks
