"""A folder's tokenizer as tokenizer.json, from whatever its vocabulary came in. Neither torch nor transformers.

What is made is kept (cached.py); where there is a tokenizer.json, the folder is used as it is.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...options.choices import TokenizerMode
from ...options.config import ConfigError
from ..cached import cached_folder, file_state
from ..mistral.chat_template import make_template
from ..tokenizers.tokenizer_files import SPECIAL_NAMES, TEMPLATE, read_template, template_files, templates_in
from ..values import Values, read_json
from .byte_ranks import from_tekken, from_tiktoken, looks_like_tiktoken, tekken_names
from .numbered import Source, from_numbered, numbering_of
from .proto import looks_like_sentencepiece, read_sentencepiece
from .sentencepiece import from_sentencepiece, refused, special_of
from .special import read_about
from .words import defaults_of, from_merges, from_word_pieces

FAST = "tokenizer.json"
TEKKEN = "tekken.json"
MODEL = "tokenizer.model"
BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
NUMBERED = (  # SentencePiece's of classes that number pieces in ways of their own
    *(("spiece.model",), ("sentencepiece.bpe.model", "vocab.json"), ("sentencepiece.bpe.model",)),
    *(("source.spm", "vocab.json"), ("spm.model",)),
)
FORMS = (
    f"{FAST}, {MODEL}, spiece.model, sentencepiece.bpe.model, spm.model, source.spm with vocab.json, *.tiktoken, "
    f"tiktoken.model, vocab.json with merges.txt, vocab.txt, {TEKKEN}, {MODEL}.v…"
)
NUMBERED_NAME = re.compile(rf"{re.escape(MODEL)}\.(v\d+)(?:m\d+)?")  # of Mistral's; m: it sees, too
VERSION = 5  # of what is made
LARGEST = 64 << 20  # bytes of a file
Made = tuple[dict[str, Any], dict[str, str]]  # tokenizer.json; bos_token and others


def check_source(folder: Path, mode: TokenizerMode) -> list[Path]:
    """The files of its vocabulary. ConfigError if there are none."""
    files = _source(folder, mode)
    if not files:
        wanted = {"mistral": f"{TEKKEN} or {MODEL}.v…", "slow": FORMS.removeprefix(f"{FAST}, ")}.get(mode, FORMS)
        raise ConfigError(f"--tokenizer: {folder} has none of {wanted} (--tokenizer-mode {mode})")
    return files


def fast_tokenizer(folder: Path, mode: TokenizerMode) -> Path:
    """The folder with tokenizer.json: `folder`, or one that is made of it. ConfigError says what is wrong.

    A tokenizer is made in a process of its own, whose memory is gone with it: vocabularies are large.
    """
    files = check_source(folder, mode)
    if files[0].name == FAST:
        return folder
    for file in files:
        if not file.is_file() or file.stat().st_size > LARGEST:
            raise ConfigError(f"--tokenizer: {file} is no file, or has more than {LARGEST:,} bytes")
    beside = [folder / name for name in BESIDE if (folder / name).is_file()]
    sources = [VERSION, *map(file_state, [*files, *beside, *template_files(folder)])]
    return cached_folder("tokenizers", folder.name, sources, lambda: _made_apart(files))


def make(files: list[Path]) -> dict[str, str]:
    """The texts of the folder that is made of such files, by name."""
    folder = files[0].parent
    made, names = _make(files)
    about = read_about(folder)
    config = {key: value for key, value in about.config.values.items() if key != "auto_map"}
    for name in SPECIAL_NAMES:
        given = name in about.config.values  # null says that there is none
        if (text := about.token(name) or (None if given else names.get(name))) is not None:
            config[name] = text
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    texts = {
        FAST: json.dumps({"version": "1.0", "truncation": None, "padding": None} | made, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(config, ensure_ascii=False),
    }
    texts |= {str(path.relative_to(folder)): read_template(path) for path in template_files(folder)}
    if (template := _template(files[0], made)) is not None and not templates_in(folder, sees=True):
        texts[TEMPLATE] = template
    return texts


def _template(file: Path, made: dict[str, Any]) -> str | None:
    """That of Mistral's own vocabularies, for which its library writes prompts."""
    numbered = NUMBERED_NAME.fullmatch(file.name)
    if file.name != TEKKEN and numbered is None:
        return None
    given = Values(file, read_json(file) if numbered is None else {})
    version = given["config"].get("version") if numbered is None else numbered[1]
    settings = given.object("model_settings_builder") or Values(file, {})
    return make_template(version, {token["content"] for token in made["added_tokens"]}, settings)


def _source(folder: Path, mode: TokenizerMode) -> list[Path]:
    """The files of the vocabulary; empty if there are none."""

    def there(*names: str) -> list[Path]:
        return [folder / name for name in names] if all((folder / name).exists() for name in names) else []

    numbers = sorted(folder.glob(f"{MODEL}.v*"), key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)])
    of_mistral = there(TEKKEN) or numbers[-1:]
    if mode == "mistral":
        return of_mistral or there(MODEL)
    fast = there(FAST) if mode != "slow" else []
    ranks = sorted(folder.glob("*.tiktoken"))[:1] or there("tiktoken.model")
    words = there("vocab.json", "merges.txt") or there("vocab.txt")
    numbered = next(filter(None, (there(*names) for names in NUMBERED)), [])
    return fast or there(MODEL) or numbered or ranks or words or (of_mistral if mode == "auto" else [])


def _made_apart(files: list[Path]) -> dict[str, str]:
    """What `make` gives, from another process."""
    command = [sys.executable, "-m", __name__, *map(str, files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise ConfigError(f"--tokenizer: {files[0]} cannot be read: its reader ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise ConfigError(answer["refused"])
    texts: dict[str, str] = answer["texts"]
    return texts


def _make(files: list[Path]) -> Made:
    first = files[0]
    about = read_about(first.parent)
    if first.name == TEKKEN:
        made = from_tekken(first, read_json(first))
        return made, tekken_names(made)
    if first.name == "vocab.json":
        return from_merges(first, files[1], about), defaults_of(about)
    if first.name == "vocab.txt":
        return from_word_pieces(first, about), defaults_of(about)
    data = first.read_bytes()
    if looks_like_tiktoken(data):
        return from_tiktoken(first, data, about), {}
    if not looks_like_sentencepiece(data):
        raise ConfigError(f"--tokenizer: {first} is neither of SentencePiece nor of tiktoken")
    model = read_sentencepiece(first, data)
    if (kind := numbering_of(about)) is not None:
        return from_numbered(kind, Source(model, about, next(iter(files[1:]), None))), kind.names
    if any(first.name == names[0] for names in NUMBERED) and about.named_class in ("", "PreTrainedTokenizer"):
        raise refused(model, "no class says how its pieces are numbered (tokenizer_class of tokenizer_config.json)")
    return from_sentencepiece(model, about), special_of(model)


def main(names: list[str], write: Callable[[str], object]) -> None:
    """Of the process that makes one."""
    try:
        write(json.dumps({"texts": make([Path(name) for name in names])}))
    except ConfigError as error:
        write(json.dumps({"refused": str(error)}))


if __name__ == "__main__":
    main(sys.argv[1:], sys.stdout.write)
