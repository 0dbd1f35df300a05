"""The model's own tokenizer and its special tokens, from the files in its folder. Neither torch nor transformers.

For the renderer (text → ids) and the detokenizer (ids → text).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...options.config import Config, ConfigError
from ..deepseek.chat_template import BY_ARCHITECTURE, template_of
from ..info import ModelInfo, read_json
from .tokenizer_files import ABOUT, check_tokenizer, read_template, special_texts, templates_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNNAMED_CLASS = "PreTrainedTokenizerFast"  # what tokenizer.json is to transformers, if nothing says more
CONTENTS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"  # of what has a text or a picture to see


def load_tokenizer(model: ModelInfo) -> Tokenizer:
    """tokenizer.json, without the truncation and padding that its author's training may have left in it.

    With --skip-tokenizer-init one without any words: no token has a text.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, models

    if not model.tokenizer_folder:
        return Tokenizer(models.BPE())
    path = check_tokenizer(Path(model.tokenizer_folder))
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"--tokenizer: {path} cannot be read: {error}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenizer_config(model: ModelInfo) -> dict[str, Any]:
    """tokenizer_config.json; empty if there is none."""
    if not model.tokenizer_folder:
        return {}
    return read_json(Path(model.tokenizer_folder) / ABOUT, missing_ok=True)


def special_tokens(model: ModelInfo) -> dict[str, str]:
    """bos_token, eos_token and so on, as far as the model names them: what chat templates are given."""
    return special_texts(Path(model.tokenizer_folder)) if model.tokenizer_folder else {}


def find_templates(config: Config, model: ModelInfo) -> dict[str, str]:
    """Templates by name: `default`, and `tool_use` where the model has one. Empty: the model does not chat."""
    return {name: text for name, (_, text) in _placed_templates(config, model).items()}


def template_place(config: Config, model: ModelInfo, name: str) -> str:
    """Where one of them stands, as errors name it."""
    return _placed_templates(config, model)[name][0]


def _placed_templates(config: Config, model: ModelInfo) -> dict[str, tuple[str, str]]:
    if not model.tokenizer_folder:
        return {}
    if config.chat_template is not None:
        return {"default": ("--chat-template", _given_template(config.chat_template))}
    found = template_of(config.tokenizer_mode) or templates_in(Path(model.tokenizer_folder), bool(model.media))
    found = found or template_of(BY_ARCHITECTURE.get(model.architecture))
    if not found and model.pooling is not None and model.pooling.dual is not None:
        return {"default": ("model", CONTENTS)}
    return found


def describe_tokenizer(config: Config, model: ModelInfo) -> dict[str, Any]:
    """tokenizer_config.json as clients read it: with its class, special tokens as plain texts, and one template."""
    about = {"tokenizer_class": UNNAMED_CLASS, **tokenizer_config(model), **special_tokens(model)}
    about.pop("chat_template", None)
    if template := find_templates(config, model).get("default"):
        about["chat_template"] = template
    return about


def _given_template(value: str) -> str:
    """--chat-template: a file, or the text itself, which always has a brace."""
    return value if "{" in value else read_template(Path(value).expanduser(), "--chat-template")
