"""tokenizer.json and chat templates: whether they are there and can be read. What they mean others know."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from ...options.config import ConfigError
from ..values import read_json

LARGEST_TEMPLATE = 4 << 20  # bytes
TEMPLATE = "chat_template.jinja"
MORE = "additional_chat_templates"  # a folder of all but the default one
ABOUT = "tokenizer_config.json"
SPECIAL_MAP = "special_tokens_map.json"
NESTED = ("extra_special_tokens", "model_specific_special_tokens")  # of ABOUT
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
OF_PROCESSORS = ("processor_config.json", "chat_template.json")  # older ones have it as a field of these


class AddedToken(msgspec.Struct):
    """What is read of one that stands for itself."""

    id: int
    content: str


class TokenizerJson(msgspec.Struct):
    """What is read of a tokenizer.json, whose words are skipped."""

    added_tokens: list[AddedToken] | None = None


def check_tokenizer(folder: Path) -> Path:
    """tokenizer.json, which is there and whole as far as its two ends tell: it may have tens of megabytes."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(f"--tokenizer: {path} is missing")
    try:
        with path.open("rb") as file:
            begin = file.read(64).lstrip()
            file.seek(max(0, path.stat().st_size - 64), os.SEEK_SET)
            end = file.read().rstrip()
    except OSError as error:
        raise ConfigError(f"--tokenizer: {path} cannot be read: {error.strerror}") from None
    if not begin.startswith(b"{") or not end.endswith(b"}"):
        raise ConfigError(f"--tokenizer: {path} is no JSON object, or cut off")
    return path


def added_tokens(folder: Path) -> dict[str, int]:
    """The numbers of tokens that stand for themselves."""
    path = check_tokenizer(folder)
    try:
        found = msgspec.json.decode(path.read_bytes(), type=TokenizerJson)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"--tokenizer: {path} cannot be read: {error}") from None
    return {token.content: token.id for token in found.added_tokens or ()}


def special_texts(folder: Path) -> dict[str, str]:
    """bos_token, eos_token and so on, as far as they are named."""
    values = read_json(folder / SPECIAL_MAP, missing_ok=True) | read_json(folder / ABOUT, missing_ok=True)
    found = {}
    for name in SPECIAL_NAMES:
        value = values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def named_tokens(folder: Path) -> dict[str, str]:
    """The special tokens that the tokenizer's settings name, by these names."""
    values = read_json(folder / ABOUT, missing_ok=True)
    for name in NESTED:
        if isinstance(more := values.get(name), dict):
            values = {**values, **more}
    found = {}
    for name, value in values.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def read_template(path: Path, option: str = "model") -> str:
    """The text of a template."""
    try:
        if path.stat().st_size > LARGEST_TEMPLATE:
            raise ConfigError(f"{option}: {path} has more than {LARGEST_TEMPLATE:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error}") from None


def templates_in(folder: Path, sees: bool) -> dict[str, tuple[str, str]]:
    """By name: where it stands, as errors say, and its text. Of a model that `sees` or hears what its processor has
    goes before what its tokenizer has.
    """
    found = {"default": folder / TEMPLATE} if (folder / TEMPLATE).is_file() else {}
    more = {path.stem: path for path in sorted((folder / MORE).glob("*.jinja"))}
    texts = {name: (f"model: {path}", read_template(path)) for name, path in (found | more).items()}
    if found:
        return texts
    for file in (*OF_PROCESSORS, ABOUT) if sees else (ABOUT, *OF_PROCESSORS):
        given = read_json(folder / file, missing_ok=True).get("chat_template")
        if named := named_templates(given, folder / file):
            place = f"model: {folder / file}: chat_template"
            return {name: (place, text) for name, text in named.items()} | texts
    return texts


def template_files(folder: Path) -> list[Path]:
    """The files of templates, beside tokenizer_config.json."""
    files = [folder / name for name in (TEMPLATE, *OF_PROCESSORS)]
    return [path for path in (*files, *sorted((folder / MORE).glob("*.jinja"))) if path.is_file()]


def named_templates(given: Any, file: Path) -> dict[str, str]:
    """`chat_template` of tokenizer_config.json: a text, or names and texts, as a list or an object."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {"default": given}
    if isinstance(given, dict):
        given = [{"name": name, "template": text} for name, text in given.items()]
    if isinstance(given, list):
        pairs = [(entry.get("name"), entry.get("template")) for entry in given if isinstance(entry, dict)]
        texts = {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}
        if len(texts) == len(given):
            return texts
    raise ConfigError(f"model: {file}: chat_template is neither a text nor a list of objects with name and template")
