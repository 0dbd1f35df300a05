"""Which file of a folder is its vocabulary, where what is made of it is kept, and what cannot be read."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.model.tokenizers.tokenizer import find_templates, load_tokenizer, special_tokens
from actorserve.actors.model.vocabularies.folder import fast_tokenizer, make
from actorserve.actors.model.vocabularies.proto import read_sentencepiece
from actorserve.actors.options.choices import TokenizerMode
from actorserve.actors.options.config import Config, ConfigError, make_config

from .test_vocabularies import FILES, FORMS, LLAMA, folder_of

pytestmark = pytest.mark.usefixtures("cache")


def refusal(files: list[Path]) -> str:
    with pytest.raises(ConfigError) as caught:
        make(files)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("mode", "there", "taken"),
    [
        ("auto", ["tokenizer.json", "tokenizer.model", "tekken.json"], "tokenizer.json"),
        ("hf", ["tokenizer.json", "tekken.json"], "tokenizer.json"),
        ("slow", ["tokenizer.json", "tokenizer.model", "tekken.json"], "tokenizer.model"),
        ("mistral", ["tokenizer.json", "tokenizer.model", "tekken.json"], "tekken.json"),
        ("mistral", ["tokenizer.json", "tokenizer.model", "tokenizer.model.v2", "tokenizer.model.v10"], "model.v10"),
        ("auto", ["tekken.json"], "tekken.json"),
        ("auto", ["tokenizer.model.v2", "tokenizer.model.v10"], "model.v10"),
        ("hf", ["tekken.json"], ""),
        ("hf", ["tokenizer.model.v3"], ""),
        ("slow", ["tokenizer.json"], ""),
        ("mistral", ["tokenizer.json"], ""),
        ("auto", ["vocab.json"], ""),
    ],
)
def test_the_mode_says_which_file_is_read(tmp_path: Path, mode: TokenizerMode, there: list[str], taken: str) -> None:
    folder = folder_of(tmp_path / "m", "llama.model", "tokenizer.model", LLAMA)
    (folder / "tokenizer.model").unlink()
    for name in there:
        if name == "tokenizer.json":
            shutil.copy(DEMO_FOLDER / name, folder / name)
        else:
            shutil.copy(FILES / ("tekken.json" if name == "tekken.json" else "llama.model"), folder / name)
    if not taken:
        with pytest.raises(ConfigError, match=rf"^--tokenizer: {folder} has none of .* \(--tokenizer-mode {mode}\)$"):
            fast_tokenizer(folder, mode)
        return
    found = fast_tokenizer(folder, mode)
    assert (found == folder) == (taken == "tokenizer.json")
    sizes = {"tokenizer.json": None, "tekken.json": "[INST]"}
    if taken != "tokenizer.json":
        sources = json.loads((found / "made-of.json").read_text())
        assert sources[1]["path"].endswith(taken)
        known = Tokenizer.from_file(str(found / "tokenizer.json"))
        assert (known.token_to_id("[INST]") is not None) == (sizes.get(taken) is not None)


def test_what_is_made_is_kept_and_made_anew_when_a_file_changes(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", "llama.model", "tokenizer.model", LLAMA)
    first = fast_tokenizer(folder, "auto")
    (first / "mark").touch()
    assert fast_tokenizer(folder, "auto") == first and (first / "mark").exists()
    (folder / "tokenizer_config.json").write_text(json.dumps(LLAMA | {"add_eos_token": True}))
    second = fast_tokenizer(folder, "auto")
    assert second != first and Tokenizer.from_file(str(second / "tokenizer.json")).encode("a").ids[-1] == 2


def test_all_templates_go_with_what_is_made(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", "llama.model", "tokenizer.model", LLAMA)
    (folder / "chat_template.json").write_text('{"chat_template": "{{ a }}"}')
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ b }}")
    made = fast_tokenizer(folder, "auto")
    assert (made / "chat_template.json").read_text() == '{"chat_template": "{{ a }}"}'
    assert (made / "additional_chat_templates" / "rag.jinja").read_text() == "{{ b }}"


def test_a_model_is_found_with_such_a_tokenizer(tmp_path: Path) -> None:
    """The demo's own words as vocab.json and merges.txt have the numbers of its tokenizer.json, and it chats."""
    folder = tmp_path / "model"
    shutil.copytree(DEMO_FOLDER, folder)
    inner = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(inner["model"]["vocab"]))
    (folder / "merges.txt").write_text("\n".join(" ".join(pair) for pair in inner["model"]["merges"]))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    told = {str(token["id"]): token for token in inner["added_tokens"]}
    config |= {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": told}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    options: Config = make_config({"model": str(folder), "device": "cpu"})
    model, demo = find_model(options), find_model(make_config({"device": "cpu"}))
    assert model.folder == str(folder) and model.tokenizer_folder != str(folder)
    assert special_tokens(demo).items() <= special_tokens(model).items()  # GPT-2 names others by itself
    assert find_templates(options, model) == find_templates(options, demo)
    ours, theirs = load_tokenizer(model), load_tokenizer(demo)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.encode("<|user|>Hello<|end|>").ids == theirs.encode("<|user|>Hello<|end|>").ids


@pytest.mark.parametrize(
    ("form", "config", "said"),
    [
        (
            "llama",
            {"tokenizer_class": "BigBirdTokenizer"},
            "the class BigBirdTokenizer does not number pieces as",
        ),
        ("llama", {"tokenizer_class": "XGLMTokenizerFast"}, "the class XGLMTokenizer does not number pieces"),
        ("kimi", {"tokenizer_class": "NewTokenizer"}, "the class NewTokenizer of tokenizer_config.json is not known"),
        ("llama", {"added_tokens_decoder": {"x": {"content": "a"}}}, "says added_tokens_decoder.x, which is no number"),
        ("unigram", {"added_tokens_decoder": {"999": {"content": "<a>"}}}, "do not follow on its pieces without a gap"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, form: str, config: dict[str, Any], said: str) -> None:
    source, name, _ = FORMS[form]
    folder = folder_of(tmp_path / "m", source, name, config)
    assert said in refusal([folder / name])


@pytest.mark.parametrize("form", ["llama", "kimi", "tekken"])
def test_files_of_strangers_are_read_or_refused(tmp_path: Path, form: str) -> None:
    """Cut off anywhere, and with bytes changed: never anything but a refusal in one line, or a vocabulary."""
    source, name, config = FORMS[form]
    folder = folder_of(tmp_path / "m", source, name, config)
    whole, dice = (FILES / source).read_bytes(), random.Random(3)
    refused = []
    for number in range(60):
        data = bytearray(whole[: dice.randrange(len(whole))] if number % 2 else whole)
        for _ in range(dice.randint(0, 3) if number % 2 else 3):
            data[dice.randrange(len(data))] = dice.randrange(256)
        (folder / name).write_bytes(data)
        try:
            make([folder / name])
        except ConfigError as error:
            refused.append(str(error))
    assert len(refused) > 20 and all("\n" not in said and str(folder) in said for said in refused)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it has no pieces"),
        (b"\n\x7f", "it ends inside a field"),
        (b"\n" + b"\xff" * 11, "a number has more than 64 bits"),
        (b"\x0b", "a field of the unknown kind 3"),
        (b"\x08\x01", "a number stands where a text or message is needed"),
        (b"\n\x07\n\x01a\x15\x00\x00\xc0\x7f", "it ends inside a field"),
        (b"\n\x08\n\x01a\x15\x00\x00\xc0\x7f", "the score of 'a' is no number (NaN)"),
        (b"\n\x05\n\x01a\x18\x09", "'a' is of the unknown kind 9"),
        (b"\n\x03\n\x01\xff", "can't decode byte"),
    ],
)
def test_broken_files_of_sentencepiece(data: bytes, said: str) -> None:
    with pytest.raises(ConfigError, match=r"^--tokenizer: /x is broken or cut off: ") as caught:
        read_sentencepiece(Path("/x"), data)
    assert said in str(caught.value)


def test_neither_of_the_two(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_text("something else")
    assert "tokenizer.model is neither of SentencePiece nor of tiktoken" in refusal([tmp_path / "tokenizer.model"])
