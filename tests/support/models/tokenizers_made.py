"""Small tokenizers of each kind that models come with, trained here on a few lines."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "Once upon a time there was a fox, and the fox said: hello!",
    "def f(x):\n    return x + 1  # 12345\n",
    "Grüße aus München, naïve café — “quotes” … 100 %",
    "你好，世界。今天天气很好。 こんにちは 안녕하세요",
    "🙂👍🏽👩‍👩‍👧 émoji e\u0301",
    "the the the and and of to in is it you that he was for on are",
] * 4
SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<pad>"]
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def token_id(tokenizer: Tokenizer, word: str) -> int:
    """The id of a word that is in the vocabulary."""
    found = tokenizer.token_to_id(word)
    assert found is not None, word
    return found


@cache
def byte_level() -> Tokenizer:
    """As Llama 3 and Qwen: BPE on bytes, behind a regular expression."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CL100K), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    made.add_tokens(
        [AddedToken("<tool_call>", special=False, normalized=False), AddedToken("naïve word", special=False)]
    )
    return made


@cache
def byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: BPE with ▁ for spaces, and bytes for what is not in the vocabulary."""
    made = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<unk>", *SPECIAL, *bytes_], show_progress=False)
    made.train_from_iterator([line for line in CORPUS if line.isascii()], trainer)
    return _with_plain_bytes(made, bytes_)


def _with_plain_bytes(made: Tokenizer, bytes_: list[str]) -> Tokenizer:
    """The bytes are words of the vocabulary, not special tokens."""
    import json

    content = json.loads(made.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in bytes_]
    return Tokenizer.from_str(json.dumps(content))


def _words(splitter: pre_tokenizers.PreTokenizer) -> list[str]:
    """The corpus's words, in an order that is always the same: what the trainers of these kinds learn is not."""
    return sorted({word for line in CORPUS for word, _ in splitter.pre_tokenize_str(line)})


def _unigrams(splitter: pre_tokenizers.PreTokenizer, bytes_: list[str]) -> list[tuple[str, float]]:
    """A Unigram vocabulary: words are likelier than their characters, bytes least of all."""
    words = _words(splitter)
    characters = sorted(set("".join(words)) - set(words))
    pieces = [(word, -5.0) for word in words] + [(character, -10.0) for character in characters]
    return [(name, 0.0) for name in ["<unk>", *SPECIAL]] + pieces + [(byte, -20.0) for byte in bytes_]


@cache
def metaspace() -> Tokenizer:
    """As T5 and its kin: Unigram with Metaspace."""
    splitter = pre_tokenizers.Metaspace()
    made = Tokenizer(models.Unigram(_unigrams(splitter, []), unk_id=0))
    made.pre_tokenizer = splitter
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<unk>", *SPECIAL])
    return made


@cache
def unigram_bytes() -> Tokenizer:
    """As Unigram models out of sentencepiece that fall back to bytes; it has learnt ASCII only."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = _unigrams(pre_tokenizers.Metaspace(), bytes_)
    known = [(piece, score) for piece, score in vocabulary if piece.replace("▁", "").isascii()]
    made = Tokenizer(models.Unigram(known, unk_id=0, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["<unk>", *SPECIAL])
    made.add_tokens([AddedToken("fox said", special=False)])
    return made


@cache
def word_piece() -> Tokenizer:
    """As BERT's kin: ## for the middle of words, and a decoder that cleans up spaces."""
    splitter = pre_tokenizers.BertPreTokenizer()
    words = _words(splitter)
    characters = sorted(set("".join(words)))
    names = ["[UNK]", *SPECIAL, *words, *characters, *(f"##{character}" for character in characters)]
    made = Tokenizer(models.WordPiece({name: at for at, name in enumerate(dict.fromkeys(names))}, unk_token="[UNK]"))
    made.pre_tokenizer = splitter
    made.decoder = decoders.WordPiece()
    made.add_special_tokens(["[UNK]", *SPECIAL])
    return made


KINDS = {
    "byte level": byte_level,
    "byte fallback": byte_fallback,
    "metaspace": metaspace,
    "unigram bytes": unigram_bytes,
    "word piece": word_piece,
}
