"""tokenizer.json and tokenizer_config.json of a GGUF file's vocabulary.

Five kinds: `gpt2` merges bytes in the order of its merges, `llama` (SentencePiece's BPE) merges characters by the
scores of what they give, and falls back to bytes, `gemma4` merges characters in the order of its merges, and falls back
to bytes, too. The second is written with merges in the order of scores. `bert` takes the longest piece of a word that
it has (encoders/word_pieces.py), `t5` (SentencePiece's Unigram) the likeliest pieces (encoders/unigram.py).
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from ...options.config import ConfigError
from ..tokenizers.tokenizer_parts import (
    SPACE,
    SPACES_SHOWN,
    WITH_BYTES,
    added_token,
    between,
    byte_level,
    byte_pairs,
    merges_by_score,
    pieces_decoder,
)
from ..values import Values
from .encoders.unigram import unigram_parts
from .encoders.word_pieces import BertMarks, word_pieces
from .header import GgufHeader
from .pre_tokenizers import BY_NAME, pre_tokenizer

log = logging.getLogger("model")

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of tokens
PREFIX = "tokenizer.ggml."
MOST_SHOWN = 24  # rules for cutting texts, in an error
SPECIAL = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
BERT_MARKS = {"cls": ("cls", "bos"), "sep": ("seperator", "separator", "sep", "eos"), "unk": ("unknown", "unk")}
KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")  # of Phi-3: its other control tokens take what follows them


class Vocabulary(NamedTuple):
    """The tokens of a file."""

    fields: Values
    architecture: str
    tokens: list[str]
    kinds: list[int]
    words: int  # rows of the embeddings

    def special(self, name: str) -> int | None:
        """The token for `bos` and others."""
        return self.fields.whole(f"{PREFIX}{name}_token_id", 0, len(self.tokens) - 1)

    def usable(self) -> dict[str, int]:
        """All that a text may become."""
        known: dict[str, int] = {}
        for token, (text, kind) in enumerate(zip(self.tokens, self.kinds, strict=True)):
            if kind == UNUSED:
                continue
            if text in known:
                raise self.wrong("tokens", f"the token {text!r} stands there twice ({known[text]} and {token})")
            known[text] = token
        return known

    def wrong(self, name: str, words: str) -> ConfigError:
        return ConfigError(f"model: {self.fields.file}: {PREFIX}{name}: {words}")


def make_tokenizer(header: GgufHeader) -> tuple[dict[str, Any], dict[str, Any]]:
    """(tokenizer.json, tokenizer_config.json). ConfigError names the field that cannot be understood."""
    vocabulary = _vocabulary(header)
    model = vocabulary.fields.text(f"{PREFIX}model")
    if model == "gpt2":
        made = _byte_level(vocabulary)
    elif model == "llama":
        made = _sentence_piece(vocabulary)
    elif model == "gemma4":
        made = _characters(vocabulary)
    elif model == "bert":
        made = word_pieces(vocabulary.fields, vocabulary.usable(), _ends_of_bert(vocabulary))
        made["added_tokens"] = _added(vocabulary)
    elif model == "t5":
        made = _unigram(vocabulary)
    else:
        known = "gpt2, llama, gemma4, bert, t5"
        raise vocabulary.wrong("model", f"{model} is not supported; these are: {known}; {_instead()}")
    return {"version": "1.0", "truncation": None, "padding": None} | made, _config(vocabulary)


def without_missing_tokens(header: GgufHeader) -> GgufHeader:
    """Special tokens that the vocabulary does not have are as if the file did not name them, as llama.cpp has it."""
    tokens = header.fields.get(f"{PREFIX}tokens")
    if not isinstance(tokens, list):
        return header
    fields = dict(header.fields)
    for key, token in header.fields.items():
        named = key.startswith(PREFIX) and key.endswith("_token_id") and type(token) is int
        if named and not 0 <= token < len(tokens):
            log.warning("model: %s says %s = %d of %d tokens: it is not used", header.file, key, token, len(tokens))
            del fields[key]
    return header._replace(fields=fields)


def _instead() -> str:
    return "--tokenizer takes another tokenizer"


def _vocabulary(header: GgufHeader) -> Vocabulary:
    fields = Values(header.file, header.fields)
    tokens, kinds = fields[f"{PREFIX}tokens"], fields[f"{PREFIX}token_type"]
    words = header.tensors["token_embd.weight"].shape[0]
    architecture = fields.text("general.architecture") or ""
    found = Vocabulary(fields, architecture, tokens, kinds, words)
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise found.wrong("tokens", f"a list of texts is needed; {_instead()}")
    if len(tokens) > words:
        raise found.wrong("tokens", f"{len(tokens)} tokens, and token_embd.weight has {words} rows")
    if kinds is None:
        return found._replace(kinds=[NORMAL] * len(tokens))
    if not isinstance(kinds, list) or len(kinds) != len(tokens) or not set(kinds) <= set(range(7)):
        raise found.wrong("token_type", f"a list of {len(tokens)} numbers from 1 to 6 is needed")
    return found


def _byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    name = vocabulary.fields.text(f"{PREFIX}pre")
    kind = BY_NAME.get(name or "")
    if kind is None:
        said = "the file does not say how texts are cut" if name is None else f"{name} is not supported"
        known = f"{', '.join(list(BY_NAME)[:MOST_SHOWN])} and {len(BY_NAME) - MOST_SHOWN} more"
        raise vocabulary.wrong("pre", f"{said}; these are: {known}; {_instead()}")
    words = vocabulary.usable()
    model = byte_pairs(words, _merges(vocabulary, words)) | {"ignore_merges": kind.whole_words}
    return {
        "added_tokens": _added(vocabulary),
        "normalizer": {"type": "NFC"} if kind.normal_form else None,
        "pre_tokenizer": pre_tokenizer(kind),
        "post_processor": _ends(vocabulary, kind.begins) or byte_level(),
        "decoder": byte_level() | {"use_regex": True},
        "model": model,
    }


def _merges(vocabulary: Vocabulary, known: dict[str, int]) -> list[list[str]]:
    """Pairs of tokens in the order in which they are merged."""
    merges = vocabulary.fields[f"{PREFIX}merges"]
    if not isinstance(merges, list) or (merges and not isinstance(merges[0], str)):
        raise vocabulary.wrong("merges", f"a list of texts is needed; {_instead()}")
    found = []
    for number, text in enumerate(merges):
        cut = text.find(" ", 1)  # a space that is first is a character
        first, second = text[:cut], text[cut + 1 :]
        if cut < 1 or first not in known or second not in known or first + second not in known:
            raise vocabulary.wrong("merges", f"number {number}, {text[:60]!r}, is no pair of tokens that give a token")
        found.append([first, second])
    return found


def _sentence_piece(vocabulary: Vocabulary) -> dict[str, Any]:
    known = vocabulary.usable()
    unknown = vocabulary.special("unknown")
    text = vocabulary.tokens[0 if unknown is None else unknown]
    prefix = vocabulary.fields.flag(f"{PREFIX}add_space_prefix", absent=True)
    first = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    return {
        "added_tokens": _added(vocabulary),
        "normalizer": {"type": "Sequence", "normalizers": [*first, SPACES_SHOWN]},
        "pre_tokenizer": None,
        "post_processor": _ends(vocabulary, True),
        "decoder": pieces_decoder(int(prefix)),
        "model": byte_pairs(known, _merges_by_score(vocabulary)) | {"unk_token": text, **WITH_BYTES},
    }


def _characters(vocabulary: Vocabulary) -> dict[str, Any]:
    """Of Gemma 4: a text is not cut into words."""
    known = vocabulary.usable()
    unknown = vocabulary.special("unknown")
    text = "<unk>" if unknown is None else vocabulary.tokens[unknown]
    return {
        "added_tokens": _added(vocabulary),
        "normalizer": SPACES_SHOWN,
        "pre_tokenizer": None,
        "post_processor": _ends(vocabulary, True, always=True),
        "decoder": pieces_decoder(0),
        "model": byte_pairs(known, _merges(vocabulary, known)) | {"unk_token": text, **WITH_BYTES},
    }


def _ends_of_bert(vocabulary: Vocabulary) -> BertMarks:
    """Files leave out which these are where they are those of the first BERT, and spell one of them as they like."""
    found = {}
    for name, keys in BERT_MARKS.items():
        token = next((token for key in keys if (token := vocabulary.special(key)) is not None), None)
        text = f"[{name.upper()}]" if token is None else vocabulary.tokens[token]
        if text not in vocabulary.tokens:
            raise vocabulary.wrong("tokens", f"there is no {text}, and no {PREFIX}{keys[0]}_token_id; {_instead()}")
        found[name] = text
    return BertMarks(**found)


def _unigram(vocabulary: Vocabulary) -> dict[str, Any]:
    pieces = list(zip(vocabulary.tokens, _scores(vocabulary), strict=True))
    unknown = vocabulary.special("unknown")
    ends = _ends(vocabulary, False)
    if ends is not None and vocabulary.architecture == "bert":  # XLM-R's: what ends one text begins the second, too
        ends["pair"] = ends["pair"][:3] + ends["pair"][2:3] + ends["pair"][4:]
    return unigram_parts(vocabulary.fields, pieces, -1 if unknown is None else unknown, BYTE in vocabulary.kinds) | {
        "added_tokens": _added(vocabulary),
        "post_processor": ends,
    }


def _merges_by_score(vocabulary: Vocabulary) -> list[list[str]]:
    scores = _scores(vocabulary)
    pieces = zip(vocabulary.tokens, vocabulary.kinds, scores, strict=True)
    known = {text: (token, score) for token, (text, kind, score) in enumerate(pieces) if kind == NORMAL}
    try:
        return merges_by_score(known)
    except ValueError as error:
        raise vocabulary.wrong("tokens", str(error)) from None


def _scores(vocabulary: Vocabulary) -> list[float]:
    scores = vocabulary.fields[f"{PREFIX}scores"]
    count = len(vocabulary.tokens)
    if not isinstance(scores, list) or len(scores) != count or not all(isinstance(score, float) for score in scores):
        raise vocabulary.wrong("scores", f"a list of {count} numbers is needed; {_instead()}")
    if any(score != score for score in scores):
        raise vocabulary.wrong("scores", "one of them is no number (NaN)")
    return scores


def _added(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Tokens that stand for themselves wherever their text does; control tokens are left out of answers."""
    strips = vocabulary.architecture == "phi3" and vocabulary.fields[f"{PREFIX}model"] == "llama"
    found = []
    for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        if kind not in (CONTROL, USER_DEFINED, UNKNOWN) or not text:
            continue
        special = kind != USER_DEFINED
        rstrip = strips and special and text not in KEEPS_SPACES
        found.append(added_token(token, text, special) | {"rstrip": rstrip})
    return found


def _ends(vocabulary: Vocabulary, begins: bool, always: bool = False) -> dict[str, Any] | None:
    """The tokens that stand before and behind every text; `always`: the first whatever the file says."""
    flags = {
        "bos": vocabulary.fields.flag(f"{PREFIX}add_bos_token", absent=begins),
        "eos": vocabulary.fields.flag(f"{PREFIX}add_eos_token"),
    }
    if always and not flags["bos"]:  # as llama.cpp has it
        said = "model: %s says %sadd_bos_token = False, and texts of such a model begin so: it is not heeded"
        log.warning(said, vocabulary.fields.file, PREFIX)
        flags["bos"] = True
    tokens = {name: vocabulary.special(name) for name, wanted in flags.items() if wanted}
    ends = {name: (vocabulary.tokens[token], token) for name, token in tokens.items() if token is not None}
    return between(ends.get("bos"), ends.get("eos"))


def _config(vocabulary: Vocabulary) -> dict[str, Any]:
    """Special tokens and chat templates."""
    fields = vocabulary.fields
    found: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    for name, ours in SPECIAL.items():
        token = vocabulary.special(name)
        if token is not None:
            found[ours] = vocabulary.tokens[token]
    if found.get("pad_token") is None and "eos_token" in found:
        found["pad_token"] = found["eos_token"]
    templates = {"default": fields.text("tokenizer.chat_template")}
    names = fields["tokenizer.chat_templates"]
    for name in names if isinstance(names, list) else []:
        templates[str(name)] = fields.text(f"tokenizer.chat_template.{name}")
    texts = [{"name": name, "template": text} for name, text in templates.items() if text is not None]
    if texts:
        found["chat_template"] = texts[0]["template"] if [*templates] == ["default"] else texts
    return found
