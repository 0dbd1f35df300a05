"""Our renderers of templates, made without transformers: new processes import them quickly."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.renderer.templates.chat_template import ChatTemplate

from .templates.templates import ALL


class Made(ChatTemplate):
    """A renderer that remembers its model."""

    def __init__(self, text: str, model: ModelInfo) -> None:
        super().__init__(Config(chat_template=text if "{" in text else None), model)
        self.model = model


def make(text: str, folder: Path, **special: str) -> Made:
    """Our renderer of a template; the model's special tokens are those given."""
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    model = ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture="LlamaForCausalLM",
        vocab_size=32,
        max_model_len=64,
        end_tokens=[],
        sampling_defaults={},
    )
    return Made(text, model)


@cache
def known(name: str) -> Made:
    """That of one of ALL, compiled once for all tests."""
    with TemporaryDirectory() as folder:
        return make(ALL[name], Path(folder), bos_token="<s>", eos_token="</s>")
