"""Tokenizers of GGUF files: their tokens are those of the models' own."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from actorserve.actors.model.gguf.pre_tokenizers import BY_NAME
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.tokenizers.tokenizer import find_templates, load_tokenizer
from actorserve.actors.options.config import make_config
from tests.support.models.gguf.files import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, write
from tests.support.models.gguf.files import tiny_fields as fields
from tests.support.models.gguf.files import tiny_model as model
from tests.support.models.gguf.files import tiny_tensors as tensors
from tests.support.models.tokenizers_made import CL100K, CORPUS, SPECIAL, byte_fallback

from .test_files import find

pytestmark = pytest.mark.usefixtures("cache")

DOCS = Path(__file__).resolve().parents[3] / "tools" / "docs"


MORE = [
    "ﬁne Ⅻ e\u0301 é  tabs\t\tand\r\n\r\nlines \u00a0 nbsp 12345678 x²",
    "IT'S we'll HELLO'LL 'S HelloWorld",
    "𝒳 \U0001f468\u200d\U0001f469",
]


LINES = [line for name in ("api.md", "performance.md") for line in (DOCS / name).read_text().splitlines()]


TEXTS = ["\n".join(LINES[at : at + 12]) for at in range(0, 360, 12)] + CORPUS[:6] + MORE


def splitters() -> dict[str, tuple[Any, Any]]:
    """By `pre`: (normalizer, pre-tokenizer) as libraries have them, which know no GGUF."""
    from transformers.models.qwen2.tokenization_qwen2 import Qwen2Tokenizer

    qwen2 = Qwen2Tokenizer(vocab={"<|endoftext|>": 0}, merges=[]).backend_tokenizer
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    behind = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])
    llama3 = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CL100K), "isolated"), behind])
    threes = pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")
    falcon = [pre_tokenizers.Punctuation("contiguous"), plain, pre_tokenizers.Digits(individual_digits=False), threes]
    bloom = pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated")
    return {
        "falcon": (None, pre_tokenizers.Sequence(falcon)),
        "bloom": (None, pre_tokenizers.Sequence([bloom, behind])),
        "mpt": (None, plain),
        "qwen2": (qwen2.normalizer, qwen2.pre_tokenizer),
        "gpt-2": (None, plain),
        "smollm": (None, digits),
        "llama-bpe": (None, llama3),
    }


@pytest.mark.parametrize("pre", ["qwen2", "gpt-2", "smollm", "llama-bpe", "falcon", "bloom", "mpt"])
def test_tokens_of_bytes_are_those_of_the_models_own_tokenizer(pre: str, tmp_path: Path) -> None:
    """Thousands of them, of many scripts; and the same text comes out again."""
    known = Tokenizer(models.BPE(ignore_merges=pre == "llama-bpe"))
    normalizer, splitter = splitters()[pre]
    known.pre_tokenizer = splitter
    known.decoder = decoders.ByteLevel()
    if normalizer is not None:
        known.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    known.train_from_iterator(TEXTS, trainer)
    made = json.loads(known.to_str())["model"]
    words = sorted(made["vocab"], key=made["vocab"].__getitem__)
    kinds = [CONTROL if word in SPECIAL else NORMAL for word in words]
    others = {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
    others["tokenizer.ggml.merges"] = [" ".join(pair) for pair in made["merges"]]
    ours = load_tokenizer(find(vocabulary(tmp_path, words, kinds, others)))
    compare(ours, known)
    for line in TEXTS:
        ids = ours.encode(line).ids
        assert ours.decode(ids, skip_special_tokens=False) == (normalizer.normalize_str(line) if normalizer else line)


def vocabulary(folder: Path, words: list[str], kinds: list[int], others: dict[str, Any]) -> Path:
    known: dict[str, Any] = {"tokenizer.ggml.tokens": words, "tokenizer.ggml.token_type": kinds}
    known |= {"tokenizer.ggml.bos_token_id": words.index("<s>"), "tokenizer.ggml.eos_token_id": words.index("</s>")}
    return model(folder, known | others, len(words))


def compare(ours: Tokenizer, known: Tokenizer) -> None:
    counted = 0
    for line in [*TEXTS, "\n".join(TEXTS), f"<|im_start|>{TEXTS[0]}<|im_end|>  <s>x</s>"]:
        wanted = known.encode(line, add_special_tokens=False).ids
        assert ours.encode(line, add_special_tokens=False).ids == wanted, line
        counted += len(wanted)
    assert counted > 5000


def score_of(made: dict[str, Any]) -> dict[str, float]:
    """A merge that comes first gives the better piece; characters are no merge's."""
    pairs = [pair if isinstance(pair, list) else pair.split(" ") for pair in made["merges"]]
    return {"".join(pair): -float(number) for number, pair in reversed(list(enumerate(pairs)))}


def sentence_piece(folder: Path, others: dict[str, Any] | None = None) -> tuple[Tokenizer, dict[str, float]]:
    """The tokenizer of a file with the vocabulary of one that falls back to bytes, and the scores of its pieces."""
    made = json.loads(byte_fallback().to_str())["model"]
    scores = score_of(made)
    words = sorted(made["vocab"], key=made["vocab"].__getitem__)
    kinds = [
        UNKNOWN if word == "<unk>" else CONTROL if word in SPECIAL else BYTE if word.startswith("<0x") else NORMAL
        for word in words
    ]
    known: dict[str, Any] = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.unknown_token_id": 0}
    known["tokenizer.ggml.scores"] = [scores.get(word, -1e6) for word in words]
    path = vocabulary(folder, words, kinds, known | (others or {}))
    pairs = zip(words, kinds, strict=True)
    return load_tokenizer(find(path)), {word: scores.get(word, -1e6) for word, kind in pairs if kind == NORMAL}


def merged(line: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's rule: of all pieces that two neighbours give the best, the first of equals, and again."""
    pieces = list("▁" + line.replace(" ", "▁"))
    while True:
        found = [(-scores[a + b], at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not found:
            return pieces
        at = min(found)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def test_tokens_of_scores_are_those_of_sentencepiece(tmp_path: Path) -> None:
    ours, scores = sentence_piece(tmp_path)
    compare(ours, byte_fallback())
    for line in [line for line in TEXTS[:8] if "<|" not in line] + CORPUS[:6] + MORE:
        wanted: list[str] = []
        for piece in merged(line[:400], scores):
            wanted += [piece] if piece in scores else [f"<0x{byte:02X}>" for byte in piece.encode()]
        assert ours.encode(line[:400], add_special_tokens=False).tokens == wanted
        assert ours.decode(ours.encode(line).ids) == line
    assert ours.encode("fox").tokens[0] == "<s>", "files of this kind begin with it, if they say nothing"


def test_gemma_4_merges_characters_in_the_order_of_its_merges(tmp_path: Path) -> None:
    """As its own tokenizer does, which cuts at spaces that are none any more; newlines are merged as all else."""
    made = json.loads(byte_fallback().to_str())["model"]
    known = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    whole = json.loads(known.to_str())
    own = whole | {"model": whole["model"] | {"vocab": made["vocab"], "merges": made["merges"]}}
    theirs = Tokenizer.from_str(json.dumps(own))
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    words = sorted(made["vocab"], key=made["vocab"].__getitem__)
    kinds = [
        UNKNOWN if word == "<unk>" else CONTROL if word in SPECIAL else BYTE if word.startswith("<0x") else NORMAL
        for word in words
    ]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in made["merges"]]
    fields = {"tokenizer.ggml.model": "gemma4", "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.merges": merges}
    ours = load_tokenizer(find(vocabulary(tmp_path, words, kinds, fields)))
    for line in [line for line in TEXTS if "<|" not in line]:
        found = ours.encode(line, add_special_tokens=False)
        assert found.ids == theirs.encode(line).ids and ours.decode(found.ids) == line
    assert ours.encode("fox").tokens[0] == "<s>" and not ours.encode("fox").tokens[1].startswith("▁")
    never = fields | {"tokenizer.ggml.add_bos_token": False}
    assert load_tokenizer(find(vocabulary(tmp_path, words, kinds, never))).encode("fox").tokens[0] == "<s>"


def test_a_text_without_a_space_before_it(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    ours, _ = sentence_piece(tmp_path, flags)
    assert not ours.encode("fox").tokens[0].startswith("▁")
    for line in TEXTS:
        assert ours.decode(ours.encode(line).ids, skip_special_tokens=False) == line


def test_runs_of_spaces_that_are_tokens_of_their_own(tmp_path: Path) -> None:
    """Gemma's user-defined pieces, which converters write with spaces: the longest are cut out before all else."""
    words = ["<unk>", "<s>", "</s>", "▁", "a", "b", "▁a", "  ", "    ", "\n\n"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * 4, *[USER_DEFINED] * 3]
    known = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_space_prefix": False}
    scores = {"tokenizer.ggml.scores": [-float(number) for number in range(len(words))]}
    ours = load_tokenizer(find(vocabulary(tmp_path, words, kinds, known | scores)))
    assert ours.encode("a      a\n\n b").tokens == ["<s>", "a", "    ", "  ", "a", "\n\n", "▁", "b"]
    assert ours.decode(ours.encode("a      a\n\n b").ids) == "a      a\n\n b"


def test_kinds_of_tokens(tmp_path: Path) -> None:
    """Control tokens are left out of answers, what a user defined is not, what is unused is not there."""
    ours = load_tokenizer(find(model(tmp_path)))
    assert ours.encode("ab<x>a<|eot_id|>").ids == [3, 2, 6, 0, 5]
    assert ours.decode([3, 2, 6, 0, 5]) == "ab<x>a"
    assert ours.token_to_id("[PAD]") is None and ours.get_vocab_size() == 7
    both = find(write(tmp_path / "n.gguf", fields({"tokenizer.ggml.add_eos_token": True}), tensors()))
    assert load_tokenizer(both).encode("ab").ids == [3, 2, 4]


def test_templates_with_names(tmp_path: Path) -> None:
    more = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "{{ tools }}"}
    info = find(model(tmp_path, more))
    assert find_templates(make_config({}), info) == {"default": "{{ messages }}", "tool_use": "{{ tools }}"}


def test_phi_3_drops_spaces_behind_its_control_tokens(tmp_path: Path) -> None:
    """As llama.cpp and Phi-3's own tokenizer.json do; others keep them."""
    for architecture, wanted in (("llama", set()), ("phi3", {"<|eot_id|>", "</s>"})):
        path = tmp_path / f"{architecture}.gguf"
        known = {"general.architecture": architecture, "tokenizer.ggml.model": "llama"}
        write(path, fields(known | {"tokenizer.ggml.scores": [-1.0] * 8}), tensors())
        options: dict[str, object] = {"model": str(path), "device": "cpu", "load_format": "dummy"}
        made = json.loads((Path(resolve_model(make_config(options)).folder) / "tokenizer.json").read_text())
        assert {token["content"] for token in made["added_tokens"] if token["rstrip"]} == wanted


@pytest.mark.parametrize(("pre", "tokens"), [("glm4", [5]), ("glm5", [5]), ("llama-bpe", [5]), ("chatglm-bpe", [0, 3])])
def test_words_that_are_tokens_whatever_merges_make_of_them(pre: str, tokens: list[int], tmp_path: Path) -> None:
    """The first merge of `abc` leads away from it."""
    words = ["a", "b", "c", "bc", "ab", "abc", "<s>", "</s>"]
    merges = {"tokenizer.ggml.merges": ["b c", "a b", "ab c"], "tokenizer.ggml.pre": pre}
    kinds = [NORMAL] * 6 + [CONTROL] * 2
    ours = load_tokenizer(find(vocabulary(tmp_path, words, kinds, merges)))
    assert ours.encode("abc", add_special_tokens=False).ids == tokens


@pytest.mark.parametrize(
    ("pre", "line", "words"),
    [
        ("tekken", "HelloWorld 12 a/\n", ["Hello", "World", " ", "1", "2", " a", "/\n"]),
        ("gpt-4o", "HelloWorld'll 1234", ["Hello", "World'll", " ", "123", "4"]),
        ("llama-bpe", "HelloWorld'll 1234\n\n x", ["HelloWorld", "'ll", " ", "123", "4", "\n\n", " x"]),
        ("glm4", "it's 1234", ["it", "'s", " ", "123", "4"]),
        ("seed-coder", "it's 12?!\n", ["it", "'s", " ", "1", "2", "?!", "\n"]),
        ("qwen2", "it's 12?!\n", ["it", "'s", " ", "1", "2", "?!\n"]),
        ("deepseek-r1-qwen", "it's 1234", ["it", "'s", " ", "1", "2", "3", "4"]),
    ],
)
def test_where_texts_are_cut(pre: str, line: str, words: list[str]) -> None:
    cut = pre_tokenizers.Split(Regex(BY_NAME[pre].pattern), "isolated")
    assert [word for word, _ in cut.pre_tokenize_str(line)] == words
