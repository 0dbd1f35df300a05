"""tokenizer.json of SentencePiece's files whose pieces have other numbers than their places.

Words of the class's own stand before and behind the pieces (T5, Pegasus, XLM-RoBERTa, CamemBERT, mBART, NLLB), or
vocab.json numbers them (M2M100; Marian, whose answers are of words that its file for prompts need not have). ALBERT and
DeBERTa have the file's numbers, and prepare texts in their own way.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..tokenizers.tokenizer_parts import (
    WITH_BYTES,
    Token,
    around,
    byte_pairs,
    in_turn,
    normal_form,
    pieces_decoder,
    unigram,
)
from .languages import M2M100, MBART, MBART50, NLLB
from .proto import CONTROL, UNIGRAM, UNKNOWN, UNUSED, USER_DEFINED, SentencePieceModel
from .sentencepiece import ALL, check_pieces, piece_merges, refused
from .special import About, AddedTokens
from .words import read_numbers

Word = tuple[str, float]  # a text and its score
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
OF_ENCODERS = NAMES | {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
OF_ALBERT = OF_ENCODERS | dict.fromkeys(("bos_token", "cls_token"), "[CLS]")
OF_ALBERT |= dict.fromkeys(("eos_token", "sep_token"), "[SEP]") | {"mask_token": "[MASK]"}
OF_DEBERTA = OF_ALBERT | {"unk_token": "[UNK]", "pad_token": "[PAD]"}
QUOTES = [{"type": "Replace", "pattern": {"String": two}, "content": '"'} for two in ("``", "''")]
SIGNS_APART = {"type": "Punctuation", "behavior": "Isolated"}
HIDDEN = "\U0010ffff"  # no text has it: a word behind it is found in no prompt, and shown in answers without it
SHOWN = {"type": "Replace", "pattern": {"String": HIDDEN}, "content": ""}
UNKNOWN_CHARACTER = SHOWN | {"content": "\ufffd"}


class Source(NamedTuple):
    """What a tokenizer is made of."""

    model: SentencePieceModel
    about: About
    numbers: Path | None  # its vocab.json

    def pieces(self, first: int) -> list[Word]:
        """From that one on."""
        return [(piece.text, piece.score) for piece in self.model.pieces[first:]]

    def own(self, *names: str) -> list[Word]:
        """Words that stand for themselves, as the folder calls them."""
        return [(self.about.token(name) or OF_ENCODERS[name], 0.0) for name in names]


class Numbering(NamedTuple):
    """Of a class. In what stands around texts {} is the language that tokenizer_config.json says, or `language`."""

    words: Callable[[Source], list[Word]]  # by number
    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ("</s>",)
    between: tuple[str, ...] = ()  # two texts
    second: int = 0  # the type of the second one
    language: str = "en_XX"
    names: dict[str, str] = NAMES
    first: Callable[[About], list[dict[str, Any]]] = lambda about: []  # what becomes of a text before all else
    apart: Callable[[About], bool] = lambda about: False  # is each sign of punctuation a word?


def numbering_of(about: About) -> Numbering | None:
    """None of a class whose numbers are those of the file, or not known."""
    given = about.named_class.removesuffix("Tokenizer")
    name = BY_MODEL.get(about.model_type, "") if given in ("", "PreTrained") else ALIKE.get(given, given)
    if name == "Nllb" and about.config.flag("legacy_behaviour"):
        return KINDS[name]._replace(before=(), behind=("</s>", "{}"))
    return KINDS.get(name)


def from_numbered(kind: Numbering, source: Source) -> dict[str, Any]:
    """ConfigError names what cannot be had."""
    model, about = source.model, source.about
    check_pieces(model)
    words = kind.words(source)
    added = _added(kind, model, about, words)
    apart = kind.apart(about)
    steps, cut = normal_form(model.characters, model.fewer_spaces, model.dummy_prefix, legacy=not apart)
    steps = [*kind.first(about), *steps]
    if apart:
        cut = in_turn("pretokenizers", [SIGNS_APART, *([] if cut is None else [cut | {"prepend_scheme": "always"}])])
    decoder = pieces_decoder(ALL if model.fewer_spaces else int(model.dummy_prefix))
    if any(text.startswith(HIDDEN) for text, _ in words):
        steps.insert(0, UNKNOWN_CHARACTER)
        decoder["decoders"].insert(0, SHOWN)
    return {
        "added_tokens": added.listed(),
        "normalizer": in_turn("normalizers", steps),
        "pre_tokenizer": cut,
        "post_processor": _around(kind, model, about, added),
        "decoder": decoder,
        "model": _model(kind, model, words, added),
    }


def _model(kind: Numbering, model: SentencePieceModel, words: list[Word], added: AddedTokens) -> dict[str, Any]:
    numbers, unknown = added.words(), added.named("unk_token", kind.names["unk_token"])
    if model.kind != UNIGRAM:
        merges = [pair for pair in piece_merges(model) if {*pair, "".join(pair)} <= numbers.keys()]
        more = {"unk_token": unknown[0] if unknown else None, "byte_fallback": model.byte_fallback}
        return byte_pairs(numbers, merges) | WITH_BYTES | more
    if max(numbers.values()) != len(numbers) - 1:
        raise refused(model, "its folder adds tokens that do not follow on its pieces without a gap")
    return unigram(words, unknown[1] if unknown else -1, model.byte_fallback)


def _added(kind: Numbering, model: SentencePieceModel, about: About, words: list[Word]) -> AddedTokens:
    """Words of the class stand for themselves, as control pieces do."""
    numbers: dict[str, int] = {}
    for number, (text, _) in enumerate(words):
        if text in numbers:
            raise refused(model, f"the word {text!r} would have the numbers {numbers[text]} and {number}")
        numbers[text] = number
    added, pieces = AddedTokens(about, numbers), {piece.text: piece.kind for piece in model.pieces}
    for text, number in numbers.items():
        if not text.startswith(HIDDEN) and pieces.get(text, CONTROL) in (CONTROL, UNKNOWN, USER_DEFINED):
            added.add(number, text, special=pieces.get(text) != USER_DEFINED)
    added.add_told(kind.names)
    return added


def _around(kind: Numbering, model: SentencePieceModel, about: About, added: AddedTokens) -> dict[str, Any] | None:
    own = {kind.names[name]: about.token(name) or kind.names[name] for name in NAMES}
    language = about.config.text("src_lang") or kind.language

    def tokens(texts: tuple[str, ...]) -> list[Token]:
        return [token(own.get(text, text).format(language), "{}" in text) for text in texts]

    def token(text: str, of_language: bool) -> Token:
        found = added.token(text)
        if found is None and of_language:
            raise about.config.wrong("src_lang", f"a language of the model ({text} is no token of it)")
        if found is None:
            raise refused(model, f"it has no {text}, which stands beside texts")
        return found

    before, behind = tokens(kind.before), tokens(kind.behind)
    return around([*before, "A", *behind], [*before, "A", *tokens(kind.between), "B", *behind], kind.second)


def _t5(source: Source) -> list[Word]:
    count = source.about.config.whole("extra_ids", 0, 1 << 10)
    extra = reversed(range(100 if count is None else count))
    return [*source.pieces(0), *((f"<extra_id_{number}>", 0.0) for number in extra)]


def _pegasus(source: Source) -> list[Word]:
    """In place of the file's first two: two of its own, two for what was to be guessed, and others that nobody uses."""
    given = source.about.config
    offset, words = given.whole("offset", 0, 1 << 10), source.own("pad_token", "eos_token")
    if given["mask_token_sent"] is not None or "mask_token_sent" not in given.values:
        guessed = source.about.token("mask_token") or "<mask_2>"
        words += [(given.text("mask_token_sent") or "<mask_1>", 0.0), (guessed, 0.0)]
    unused = range(2, 103 if offset is None else offset)
    return [*words, *((f"<unk_{number}>", -100.0) for number in unused), *source.pieces(2)]


def _fairseq(*languages: str) -> Callable[[Source], list[Word]]:
    """In place of the file's first three: four in another order."""

    def words(source: Source) -> list[Word]:
        first = source.own("bos_token", "pad_token", "eos_token", "unk_token")
        behind = [*((language, 0.0) for language in languages), *source.own("mask_token")]
        return [*first, *source.pieces(3), *behind]

    return words


def _camembert(source: Source) -> list[Word]:
    """In place of the file's first: five, of which three are not used."""
    pad, unknown, mask = source.own("pad_token", "unk_token", "mask_token")
    first = [("<s>NOTUSED", 0.0), pad, ("</s>NOTUSED", 0.0), unknown, ("<unk>NOTUSED", -100.0)]
    return [*first, *source.pieces(1), mask]


def _albert(source: Source) -> list[Word]:
    """A digit is not to be one piece with the comma behind it."""

    def joins(text: str) -> bool:
        return text.endswith(",") and text[-2:-1].isdigit()

    return [(text, score - 100.0 if joins(text) else score) for text, score in source.pieces(0)]


def _prepare_albert(about: About) -> list[dict[str, Any]]:
    plain = [] if about.config.flag("keep_accents") else [{"type": "NFKD"}, {"type": "StripAccents"}]
    return [*QUOTES, *plain, *([{"type": "Lowercase"}] if about.config.flag("do_lower_case", absent=True) else [])]


def _deberta(source: Source) -> list[Word]:
    mask, pieces = source.about.token("mask_token") or OF_DEBERTA["mask_token"], source.pieces(0)
    return pieces if any(text == mask for text, _ in pieces) else [*pieces, (mask, 0.0)]


def _prepare_deberta(about: About) -> list[dict[str, Any]]:
    return [{"type": "Lowercase"}] if about.config.flag("do_lower_case") else []


def _is_apart(about: About) -> bool:
    return about.config.flag("split_by_punct")


def _numbered(source: Source) -> list[Word]:
    """By vocab.json, whose words are for answers alone where they are no pieces and do not stand for themselves."""
    model, about = source.model, source.about
    if source.numbers is None:
        raise refused(model, "there is no vocab.json with the numbers of its pieces beside it")
    if about.config.flag("separate_vocabs"):
        raise refused(model, "what it reads and what it writes have vocabularies of their own (separate_vocabs)")
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind != UNUSED}
    named = {about.token(name) or text for name, text in NAMES.items()}
    known = {number: text for text, number in read_numbers(source.numbers).items()}
    if max(known, default=-1) != len(known) - 1:
        raise refused(model, "there are gaps between the numbers of its vocab.json")
    found: list[Word] = []
    for _, text in sorted(known.items()):
        plain = text in scores or text in named or (text.startswith(">>") and text.endswith("<<"))
        found.append((text if plain else HIDDEN + text, scores.get(text, 0.0)))
    return found


def _m2m100(source: Source) -> list[Word]:
    given = source.about.config
    codes = M2M100.get(given.text("language_codes") or "m2m100")
    if codes is None:
        raise given.wrong("language_codes", " or ".join(M2M100))
    return [*_numbered(source), *((f"__{code}__", 0.0) for code in codes)]


MARKED: dict[str, Any] = {"before": ("[CLS]",), "behind": ("[SEP]",), "between": ("[SEP]",), "second": 1}
KINDS = {
    "T5": Numbering(_t5, between=("</s>",)),
    "Pegasus": Numbering(_pegasus),
    "XLMRoberta": Numbering(_fairseq(), before=("<s>",), between=("</s>", "</s>"), names=OF_ENCODERS),
    "Camembert": Numbering(_camembert, before=("<s>",), between=("</s>", "</s>"), names=OF_ENCODERS),
    "Albert": Numbering(_albert, **MARKED, names=OF_ALBERT, first=_prepare_albert),
    "DebertaV2": Numbering(_deberta, **MARKED, names=OF_DEBERTA, first=_prepare_deberta, apart=_is_apart),
    "Nllb": Numbering(_fairseq(*NLLB), before=("{}",), language="eng_Latn", names=OF_ENCODERS),
    "MBart": Numbering(_fairseq(*MBART), behind=("</s>", "{}"), names=OF_ENCODERS),
    "MBart50": Numbering(_fairseq(*MBART, *MBART50), before=("{}",), names=OF_ENCODERS),
    "M2M100": Numbering(_m2m100, before=("__{}__",), language="en"),
    "Marian": Numbering(_numbered),
}
ALIKE = {"MT5": "T5", "NLLB": "Nllb"}
BY_MODEL = {
    **dict.fromkeys("t5 mt5 umt5 longt5 switch_transformers".split(), "T5"),
    **dict.fromkeys("pegasus pegasus_x bigbird_pegasus".split(), "Pegasus"),
    **{"xlm-roberta": "XLMRoberta", "mbart": "MBart", "m2m_100": "M2M100", "marian": "Marian"},
    **{"camembert": "Camembert", "albert": "Albert", "deberta-v2": "DebertaV2", "nllb-moe": "Nllb"},
}
