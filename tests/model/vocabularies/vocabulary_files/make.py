"""Makes the files beside it with the formats' own libraries, and what these say of texts: expected.json.

By hand, where sentencepiece, tiktoken and mistral-common are: python tests/model/vocabularies/vocabulary_files/make.py
"""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path
from typing import Any

import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
LINES = [
    "Once upon a time there was a fox, and the fox said: hello! It was the best of times, it was the worst of times.",
    "def f(x):\n    return x + 1  # 12345\n\n\n",
    "        if True:\n                pass\t\ttabs\r\n",
    "Grüße aus München, naïve café — “quotes” … 100 %",
    "你好，世界。今天天气很好。 こんにちは 안녕하세요",
    "🙂👍🏽👩‍👩‍👧 émoji e\u0301 \u00a0nbsp",
    "Привет, мир! Как дела? Привет, как дела? नमस्ते दुनिया",
    "DON'T won't I'LL we've you're, XMLHttpRequest mRNA CamelCase ABCdef 3.14159 2024-01-31",
    "the the the and and of to in is it you that he was for on are aaaa aaaaa aaaaaaa bbbbbbb",
    "ﬁ ligature ① ２ ｗidth ½ ™ Å",
]
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
HAN = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?" + HAN[1] + "*" + HAN[0] + r"+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?" + HAN[1] + "+" + HAN[0] + r"*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
SENTENCEPIECE: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    | {"split_digits": True, "allow_whitespace_only_pieces": True, "remove_extra_whitespaces": False},
    "gemma": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity"}
    | {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "user_defined_symbols": ["\n\n", "<|tool|>"]},
    "bare": {"model_type": "bpe", "normalization_rule_name": "identity"},
    "unigram": {"model_type": "unigram", "byte_fallback": True, "normalization_rule_tsv": "rules"},
}
RULES = [("ﬁ", "fi"), ("２", "2"), ("½", "1/2"), ("™", "TM"), ("\u00a0", " "), ("\t", " "), ("e\u0301", "é")]


def texts() -> list[str]:
    """Lines, parts of them, and characters at random."""
    dice = random.Random(1)
    found = [*LINES, "", " ", "  ", " leading", "trailing ", "a", "\n", "é", "🙂", " " * 40 + "x", "<0x41>", "▁under"]
    found += ["".join(dice.choice(dice.choice(LINES)) for _ in range(dice.randint(1, 40))) for _ in range(150)]
    found += ["".join(dice.choice("aab \n\t.'\"0123éß你好🙂") for _ in range(dice.randint(1, 30))) for _ in range(100)]
    return found


def train_sentencepiece(name: str, settings: dict[str, Any]) -> sentencepiece.SentencePieceProcessor:
    """A small model, kept beside this file."""
    if "normalization_rule_tsv" in settings:
        rules = HERE / "rules.tsv"
        rows = ("\t".join(" ".join(f"{ord(c):X}" for c in side) for side in rule) for rule in RULES)
        rules.write_text("\n".join(rows) + "\n")
        settings = settings | {"normalization_rule_tsv": str(rules)}
    made = io.BytesIO()
    size = 700 if settings.get("byte_fallback") else 400
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in LINES if name == "bare" or line.isascii()] * 8),
        **{"model_writer": made, "vocab_size": size, "hard_vocab_limit": False, "control_symbols": CONTROL[2:]},
        **settings,
    )
    (HERE / "rules.tsv").unlink(missing_ok=True)
    (HERE / f"{name}.model").write_bytes(made.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())


def train_ranks(pattern: str) -> dict[bytes, int]:
    """Tokens of bytes with ranks, as tiktoken has them."""
    known = Tokenizer(models.BPE())
    known.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    known.train_from_iterator(LINES * 4, trainer)
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
    words = sorted(known.get_vocab().items(), key=lambda entry: entry[1])
    tokens = [bytes(letters[letter] for letter in word) for word, _ in words]
    tokens = [bytes([byte]) for byte in range(256)] + [token for token in tokens if len(token) > 1]
    return {token: rank for rank, token in enumerate(tokens)}


def write_tiktoken(name: str, ranks: dict[bytes, int]) -> None:
    lines = (f"{base64.b64encode(text).decode()} {rank}\n" for text, rank in ranks.items())
    (HERE / name).write_text("".join(lines))


def write_tekken(ranks: dict[bytes, int], listed: bool) -> Tekkenizer:
    """With its special tokens, or of the old form without."""
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"]
    config = {"pattern": LLAMA3, "num_vocab_tokens": len(ranks), "default_vocab_size": len(ranks) + 40 - 20}
    config |= {"default_num_special_tokens": 40, "version": "v7" if listed else "v3"}
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
        for text, rank in ranks.items()
    ]
    values: dict[str, Any] = {"config": config, "vocab": vocab}
    if listed:
        values["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(names)
        ]
    path = HERE / ("tekken.json" if listed else "tekken-old.json")
    path.write_text(json.dumps(values))
    return Tekkenizer.from_file(str(path))


def main() -> None:
    wanted = texts()
    expected: dict[str, Any] = {"texts": wanted, "ids": {}, "decoded": {}}
    for name, settings in SENTENCEPIECE.items():
        known = train_sentencepiece(name, settings)
        expected["ids"][name] = [known.encode(text) for text in wanted]
        expected["decoded"][name] = [known.decode(ids) for ids in expected["ids"][name]]
    ranks = train_ranks(LLAMA3)
    write_tiktoken("small.tiktoken", ranks)
    for name, pattern in {"qwen": QWEN, "llama3": LLAMA3, "kimi": KIMI}.items():
        byte_pairs = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        expected["ids"][name] = [byte_pairs.encode_ordinary(text) for text in wanted]
    for listed in (True, False):
        tekken = write_tekken(ranks, listed)
        name = "tekken" if listed else "tekken-old"
        expected["ids"][name] = [tekken.encode(text, bos=True, eos=False) for text in wanted]
    (HERE / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")))


if __name__ == "__main__":
    main()
