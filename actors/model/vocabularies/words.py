"""tokenizer.json of word lists: vocab.json with merges.txt (GPT-2's kind), and vocab.txt (WordPiece)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from ..gguf.pre_tokenizers import QWEN2
from ..tokenizers.tokenizer_parts import around, byte_level, byte_pairs, in_turn, split_by
from ..values import read_json
from .special import About, AddedTokens

END = "<|endoftext|>"
GPT2 = {"bos_token": END, "eos_token": END, "unk_token": END}
BERT = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}
ROBERTA = {
    **{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "mask_token": "<mask>"},
    **{"cls_token": "<s>", "sep_token": "</s>"},
}
MERGED = {  # classes, and what stands for bos_token and others where the folder does not say
    "GPT2Tokenizer": GPT2,
    "CodeGenTokenizer": GPT2,
    "Qwen2Tokenizer": {"eos_token": END, "unk_token": END, "pad_token": END},
    "RobertaTokenizer": ROBERTA,
}
PIECES = {"BertTokenizer": BERT, "MPNetTokenizer": ROBERTA | {"unk_token": "[UNK]"}}
ALIKE = {  # classes that cut as another does
    **{
        f"{name}Tokenizer": "BertTokenizer"
        for name in (
            "ConvBert DistilBert DPRContextEncoder DPRQuestionEncoder DPRReader Electra LayoutLM Lxmert MobileBert "
            "SqueezeBert"
        ).split()
    },
    **{f"{name}Tokenizer": "RobertaTokenizer" for name in ("Bart", "LED", "Longformer")},
}
BY_MODEL = {
    **dict.fromkeys("gpt2 gpt_bigcode gpt_neo gptj opt phi starcoder2".split(), "GPT2Tokenizer"),
    **dict.fromkeys("qwen2 qwen2_moe qwen3 qwen3_moe".split(), "Qwen2Tokenizer"),
    **dict.fromkeys("roberta roberta-prelayernorm data2vec-text bart led longformer".split(), "RobertaTokenizer"),
    **dict.fromkeys(
        "bert convbert distilbert dpr electra ernie layoutlm lxmert megatron-bert mobilebert nezha nomic_bert qdqbert "
        "squeezebert visual_bert".split(),
        "BertTokenizer",
    ),
    **{"codegen": "CodeGenTokenizer", "mpnet": "MPNetTokenizer"},
}
LONGEST_WORD = 100  # characters, beyond which WordPiece knows none


def from_merges(vocabulary_file: Path, merges_file: Path, about: About) -> dict[str, Any]:
    """ConfigError names what cannot be understood."""
    name = _class(about)
    if name not in MERGED:
        raise _unknown(vocabulary_file, name, MERGED)
    known = read_numbers(vocabulary_file)
    added = AddedTokens(about, known)
    added.add_told(MERGED[name])
    prefix = about.config.flag("add_prefix_space")
    if name == "Qwen2Tokenizer":
        cut = in_turn("pretokenizers", [split_by(QWEN2), byte_level() | {"add_prefix_space": prefix}])
    else:
        cut = byte_level() | {"add_prefix_space": prefix, "use_regex": True, "trim_offsets": True}
    ends = _around_roberta(added) if name == "RobertaTokenizer" else added.ends(begins=False)
    return {
        "added_tokens": added.listed(),
        "normalizer": {"type": "NFC"} if name == "Qwen2Tokenizer" else None,
        "pre_tokenizer": cut,
        "post_processor": ends or byte_level(),
        "decoder": byte_level() | {"use_regex": True},
        "model": byte_pairs(added.words(), _merges(merges_file, known)),
    }


def from_word_pieces(file: Path, about: About) -> dict[str, Any]:
    """BERT's way: words at spaces and signs, each of them from pieces of which the later ones begin with ##."""
    name = _class(about)
    if name not in PIECES:
        raise _unknown(file, name, [*PIECES, *ALIKE])
    known = {line: number for number, line in enumerate(_lines(file))}
    added = AddedTokens(about, known)
    added.add_told(PIECES[name])
    config = about.config
    unknown = (added.named("unk_token", BERT["unk_token"]) or ("", -1))[0]
    if unknown not in known:
        raise ConfigError(f"--tokenizer: {file} lacks {unknown or BERT['unk_token']}, which stands for unknown words")
    accents = config["strip_accents"]
    return {
        "added_tokens": added.listed(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.flag("tokenize_chinese_chars", absent=True),
            "strip_accents": accents if isinstance(accents, bool) else None,
            "lowercase": config.flag("do_lower_case", absent=True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": _around_bert(added) if name == "BertTokenizer" else _around_roberta(added),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            **{"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##"},
            **{"max_input_chars_per_word": LONGEST_WORD, "vocab": added.words()},
        },
    }


def defaults_of(about: About) -> dict[str, str]:
    """bos_token and others of a folder that does not name them."""
    return (MERGED | PIECES).get(_class(about), BERT)


def _class(about: About) -> str:
    given = about.named_class
    name = BY_MODEL.get(about.model_type, given) if given in ("", "PreTrainedTokenizer") else given
    return ALIKE.get(name, name)


def _around_bert(added: AddedTokens) -> dict[str, Any] | None:
    """The second of two texts, and what ends it, is told apart."""
    first, end = added.named("cls_token", BERT["cls_token"]), added.named("sep_token", BERT["sep_token"])
    return around([first, "A", end], [first, "A", end, "B", end], second=1)


def _around_roberta(added: AddedTokens) -> dict[str, Any] | None:
    first, end = added.named("cls_token", ROBERTA["cls_token"]), added.named("sep_token", ROBERTA["sep_token"])
    return around([first, "A", end], [first, "A", end, end, "B", end])


def _unknown(file: Path, name: str, known: Any) -> ConfigError:
    return ConfigError(
        f"--tokenizer: {file} does not say how texts are cut into words, and the class {name or '(none)'} of "
        f"tokenizer_config.json is not known; known are: {', '.join(known)}"
    )


def read_numbers(file: Path) -> dict[str, int]:
    """The words of a vocab.json."""
    known = read_json(file)
    numbers = list(known.values())
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or len(set(numbers)) != len(numbers):
        raise ConfigError(f"--tokenizer: {file} is no object of words, each with a number of its own")
    return known


def _merges(file: Path, known: dict[str, int]) -> list[list[str]]:
    """Pairs of words in the order in which they are merged."""
    found = []
    for number, line in enumerate(_lines(file), 1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        first, _, second = line.partition(" ")
        if first not in known or second not in known or first + second not in known:
            raise ConfigError(
                f"--tokenizer: {file}: line {number}, {line[:60]!r}, is no pair of words of vocab.json that give a word"
            )
        found.append([first, second])
    return found


def _lines(file: Path) -> list[str]:
    """Words may have characters at which only str.splitlines ends a line, as U+2028 of bert-base-chinese."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--tokenizer: {file} cannot be read: {error}") from None
    return lines if lines[-1] else lines[:-1]
