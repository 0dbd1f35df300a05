"""SentencePiece's files of classes that number pieces in ways of their own, against SentencePiece and transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS

from actorserve.actors.detokenizer.decoder import decoder_factory
from actorserve.actors.model.tokenizers.tokenizer_parts import SPACE
from actorserve.actors.model.vocabularies.folder import fast_tokenizer, make
from actorserve.actors.model.vocabularies.numbered import Source, from_numbered, numbering_of
from actorserve.actors.model.vocabularies.proto import CONTROL, NORMAL, Piece, SentencePieceModel, read_sentencepiece
from actorserve.actors.model.vocabularies.special import read_about
from actorserve.actors.options.config import ConfigError

from .test_vocabularies import EXPECTED, FILES, TEXTS, folder_of

pytestmark = pytest.mark.usefixtures("cache")

FILE = FILES / "unigram.model"  # begins with <unk>, <s>, </s>, as those of XLM-RoBERTa and mBART
KINDS = ("T5", "Pegasus", "XLMRoberta", "MBart", "MBart50")
FOREIGN = f"{SPACE}fremd"


def model_of(name: str) -> SentencePieceModel:
    """The file of a class: those of some begin in another way."""
    model = read_sentencepiece(FILE, FILE.read_bytes())
    if name in ("Camembert", "Albert", "DebertaV2"):
        model = model._replace(byte_fallback=False)
    unknown, _, end, *others = model.pieces
    marks = [Piece(text, 0.0, CONTROL) for text in ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "<pad>")]
    if name == "Albert":
        comma = Piece("9,", -1.0, NORMAL)
        return model._replace(pieces=[marks[4], unknown, *marks[:3], *others, comma], unknown=1)
    if name == "DebertaV2":
        pieces = [marks[3], *marks[:2], unknown._replace(text="[UNK]"), *others]
        return model._replace(pieces=pieces, unknown=3)
    if name not in ("T5", "Pegasus"):
        return model
    return model._replace(pieces=[Piece("<pad>", 0.0, CONTROL), end, unknown, *others], unknown=2)


def tokenizer_of(name: str, folder: Path, **config: Any) -> Tokenizer:
    about = read_about(folder_of(folder, FILE.name, "x.model", {"tokenizer_class": f"{name}Tokenizer"} | config))
    kind = numbering_of(about)
    assert kind is not None
    numbers = folder / "vocab.json"
    return Tokenizer.from_str(json.dumps(from_numbered(kind, Source(model_of(name), about, numbers))))


def words_of(name: str) -> list[tuple[str, float]]:
    """By number, as transformers has them."""
    pieces = [(piece.text, piece.score) for piece in model_of(name).pieces]
    converter: Any = SLOW_TO_FAST_CONVERTERS[f"{name}Tokenizer"]
    words: list[tuple[str, float]] = converter.convert_from_spm(vocab=pieces)["vocab"]
    return words


def numbered_folder(folder: Path, name: str) -> Path:
    """With a vocab.json: pieces in another order, a word that is no piece, and what stands beside texts."""
    pieces = [piece.text for piece in model_of(name).pieces if piece.text not in ("<unk>", "<s>", "</s>")]
    random.Random(5).shuffle(pieces)
    words = ["</s>", "<unk>", *pieces[:200], FOREIGN, *pieces[200:], "<s>", ">>fra<<", "<pad>"]
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    assert tokenizer_of(name, tmp_path).get_vocab() == {text: at for at, (text, _) in enumerate(words_of(name))}


@pytest.mark.parametrize("name", [*KINDS, "Nllb", "Marian", "M2M100"])
def test_texts_are_cut_as_sentencepiece_cuts_them(name: str, tmp_path: Path) -> None:
    numbered_folder(tmp_path, name)
    known = tokenizer_of(name, tmp_path)
    pieces = model_of("XLMRoberta").pieces
    for text, ids in zip(TEXTS, EXPECTED["ids"]["unigram"], strict=True):
        if text != "<0x41>":  # which the library takes for a byte's piece
            wanted = [known.token_to_id(pieces[piece].text) for piece in ids]
            assert known.encode(text, add_special_tokens=False).ids == wanted, text


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("language", [None, "ro_RO"])
def test_what_stands_around_texts(name: str, language: str | None, tmp_path: Path) -> None:
    says = {"src_lang": language} if "MBart" in name and language else {}
    ours, theirs = (
        tokenizer_of(name, tmp_path, **says),
        getattr(transformers, f"{name}Tokenizer")(vocab=words_of(name), **says).backend_tokenizer,
    )
    assert ours.encode("the fox").ids == theirs.encode("the fox").ids
    assert ours.encode("the fox", "hello").ids == theirs.encode("the fox", "hello").ids


@pytest.mark.parametrize("name", ["Camembert", "Albert", "DebertaV2"])
@pytest.mark.parametrize("lower", [None, True, False])
def test_texts_of_encoders_are_as_transformers_has_them(name: str, lower: bool | None, tmp_path: Path) -> None:
    """Their numbers, what becomes of letters, and what stands around them, of two texts with their types."""
    says = {} if lower is None else {"do_lower_case": lower}
    ours = tokenizer_of(name, tmp_path, **says)
    theirs: Any = getattr(transformers, f"{name}Tokenizer")(vocab=words_of(name), **says).backend_tokenizer
    assert ours.get_vocab() == theirs.get_vocab()
    for text in ("the fox", "THE Fox  says ``hello'' ", "Grüße 9"):
        assert ours.encode(text).ids == theirs.encode(text).ids, text
        mine, wanted = ours.encode("the fox", text), theirs.encode("the fox", text)
        assert (mine.ids, mine.type_ids) == (wanted.ids, wanted.type_ids), text


@pytest.mark.parametrize("lower", [True, False])
def test_signs_of_debertas_are_words_where_its_folder_says_so(lower: bool, tmp_path: Path) -> None:
    """Each has the space before it that words have."""
    says = {"do_lower_case": lower, "split_by_punct": True}
    ours, whole = tokenizer_of("DebertaV2", tmp_path / "a", **says), tokenizer_of("DebertaV2", tmp_path / "b")
    theirs: Any = transformers.DebertaV2Tokenizer(vocab=words_of("DebertaV2"), **says).backend_tokenizer
    for text in ("the fox", "the fox, hello!", "The FOX (says) 'hello' - 9,5 ... ", "fox ,hello", "(fox)"):
        assert ours.encode(text).tokens == theirs.encode(text).tokens, text
        assert ours.encode("the fox", text).ids == theirs.encode("the fox", text).ids, text
    assert ours.encode("fox,hello").ids != whole.encode("fox,hello").ids


def test_a_digit_is_no_piece_with_its_comma(tmp_path: Path) -> None:
    assert "9," not in tokenizer_of("Albert", tmp_path).encode("9,5").tokens


def test_languages_of_nllb_follow_on_its_pieces(tmp_path: Path) -> None:
    """As of facebook/nllb-200, where eng_Latn is 256047 of 256,000 pieces and 204 others."""
    count, known = len(model_of("Nllb").pieces), tokenizer_of("Nllb", tmp_path)
    places = {"ace_Arab": 1, "eng_Latn": 47, "fra_Latn": 57, "zul_Latn": 202, "<mask>": 203}
    assert {text: (known.token_to_id(text) or 0) - count for text in places} == places
    french = tokenizer_of("Nllb", tmp_path, src_lang="fra_Latn")
    assert known.encode("a").tokens[::2] == ["eng_Latn", "</s>"] and french.encode("a").tokens[0] == "fra_Latn"
    older = tokenizer_of("Nllb", tmp_path, src_lang="fra_Latn", legacy_behaviour=True)
    assert older.encode("a").tokens[1:] == ["</s>", "fra_Latn"]


def test_words_that_are_no_pieces_are_for_answers_alone(tmp_path: Path) -> None:
    known = tokenizer_of("Marian", numbered_folder(tmp_path, "Marian"))
    end, french = (known.token_to_id(text) for text in ("</s>", ">>fra<<"))
    assert known.encode(">>fra<< the fox").ids == [french, *known.encode("the fox").ids]
    assert known.encode("the fox").ids[-1] == end and known.encode("a", "b").ids.count(end) == 1
    foreign = 202
    assert foreign not in known.encode("fremd \U0010ffffremd").ids
    ids = [foreign, *known.encode("the fox").ids]
    assert known.decode(ids, skip_special_tokens=True) == "fremd the fox"
    decoder = decoder_factory(known)(True)
    assert "".join(decoder.push([token]) for token in ids) + decoder.flush() == "fremd the fox"


def test_languages_of_m2m100_follow_on_its_words(tmp_path: Path) -> None:
    numbered_folder(tmp_path, "M2M100")
    count = len(json.loads((tmp_path / "vocab.json").read_text()))
    places = {
        "af": 0,
        "en": 18,
        "fr": 24,
        "zh": 98,
        "zu": 99,
    }  # as of facebook/m2m100_418M, where en is 128022 of 128004
    known, german = tokenizer_of("M2M100", tmp_path), tokenizer_of("M2M100", tmp_path, src_lang="de")
    assert {code: (known.token_to_id(f"__{code}__") or 0) - count for code in places} == places
    assert known.encode("a").tokens[::2] == ["__en__", "</s>"]
    assert german.encode("a", "a").tokens[::3] == ["__de__", "</s>"]
    few = tokenizer_of("M2M100", tmp_path, language_codes="wmt21")
    assert few.token_to_id("__ha__") == count + 1 and few.get_vocab_size() == count + 8
    with pytest.raises(ConfigError, match="src_lang = 'xx'; a language of the model \\(__xx__ is no token of it\\)"):
        tokenizer_of("M2M100", tmp_path, src_lang="xx")


@pytest.mark.parametrize(
    ("names", "config", "model_type"),
    [
        (["spiece.model"], {}, "t5"),
        (["sentencepiece.bpe.model"], {"tokenizer_class": "XLMRobertaTokenizerFast"}, "bert"),
        (["sentencepiece.bpe.model"], {}, "mbart"),
        (["source.spm", "vocab.json"], {}, "marian"),
        (["tokenizer.model"], {"tokenizer_class": "MT5Tokenizer"}, "mt5"),
        (["sentencepiece.bpe.model"], {"tokenizer_class": "NllbTokenizer"}, "m2m_100"),
        (["sentencepiece.bpe.model"], {}, "camembert"),
    ],
)
def test_such_files_are_found(tmp_path: Path, names: list[str], config: dict[str, Any], model_type: str) -> None:
    folder = numbered_folder(tmp_path / "m", "Marian")
    if len(names) == 1:
        (folder / "vocab.json").unlink()
    folder_of(folder, FILE.name, names[0], config)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    made = fast_tokenizer(folder, "auto")
    known = Tokenizer.from_file(str(made / "tokenizer.json"))
    assert known.decode(known.encode("the fox").ids) == "the fox"
    assert json.loads((made / "tokenizer_config.json").read_text())["eos_token"] == "</s>"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no class says how its pieces are numbered (tokenizer_class of tokenizer_config.json)"),
        ({"tokenizer_class": "XLNetTokenizer"}, "the class XLNetTokenizer does not number pieces as its file does"),
        ({"tokenizer_class": "DebertaV2Tokenizer", "split_by_punct": 1}, "split_by_punct = 1; true or false"),
        ({"tokenizer_class": "M2M100Tokenizer"}, "there is no vocab.json with the numbers of its pieces beside it"),
        ({"tokenizer_class": "T5Tokenizer", "extra_ids": -1}, "extra_ids = -1; a whole number from 0 to 1024"),
        ({"tokenizer_class": "MBartTokenizer", "src_lang": "en"}, "src_lang = 'en'; a language of the model"),
    ],
)
def test_what_cannot_be_numbered_is_told(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    folder = folder_of(tmp_path / "m", FILE.name, "spiece.model", config)
    with pytest.raises(ConfigError) as caught:
        make([folder / "spiece.model"])
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("numbers", "config", "said"),
    [
        ({"</s>": 0, "<unk>": 2}, {}, "there are gaps between the numbers of its vocab.json"),
        ({"<unk>": 0}, {}, "it has no </s>, which stands beside texts"),
        ({"</s>": 0}, {"separate_vocabs": True}, "have vocabularies of their own (separate_vocabs)"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_told(
    tmp_path: Path, numbers: dict[str, int], config: dict[str, Any], said: str
) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    with pytest.raises(ConfigError) as caught:
        tokenizer_of("Marian", tmp_path, **config)
    assert said in str(caught.value)
