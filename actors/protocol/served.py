"""The models of one server: MODEL, and those of --also, each with what is its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..model.checks.device import only_on_cpu
from ..model.config_json import find_architecture
from ..model.info import ModelInfo, read_json
from ..options.also import model_configs
from ..options.config import Config
from .request import BY_TOKEN

UNFIT = re.compile(r"[^\w.-]+")  # in names of actors
MOST_LABEL = 24  # characters of a model's name there


class ServedModel(msgspec.Struct, frozen=True):
    """One of the models of a server, with what is its own."""

    index: int
    config: Config  # the server's options, those about a model being this one's
    info: ModelInfo
    engines: range
    label: str  # behind a + in names of actors; the first has none

    @property
    def is_on_cpu(self) -> bool:
        """Whatever GPU there is."""
        return self.config.device == "cpu" or bool(only_on_cpu(self.config, self.info))

    @property
    def yields(self) -> bool:
        """Are GPUs first for models that go on with texts, and for this one where there are more?"""
        return self.info.pooling is not None or self.info.encoder is not None

    @property
    def max_tokens(self) -> int:
        """Of a slot's log. A sequence that pools ends with a token behind its prompt, which may be as long as the model
        takes.
        """
        return self.info.max_model_len + (self.info.pooling is not None)

    @property
    def hears(self) -> bool:
        """Does it write down sounds?"""
        return self.info.encoder is not None and self.info.encoder.speech is not None

    @property
    def writes(self) -> bool:
        """Are its answers texts of its own?"""
        return self.info.pooling is None and not self.hears

    def worker_modules(self) -> list[str]:
        """What its workers import beside what all do, above all transformers: within the worker's package."""
        if self.info.encoder is not None:
            return ["encoder_decoder.load"]
        if self.info.pooling is not None and not self.info.pooling.base:
            return ["pooling.load" if self.info.pooling.dual is None else "pooling.dual_encoder"]
        if self.info.vision is not None:
            return ["vision.start"]
        values = read_json(Path(self.info.folder) / "config.json")
        own = self.info.pooling or find_architecture(values, self.config.model_impl, self.config.quantization)
        return [] if own is not None else ["adapter.load"]

    @property
    def name(self) -> str:
        """The one in answers."""
        return self.config.served_names()[0]


def embedded_numbers(served: ServedModel) -> int:
    """Of each slot, where prompts may be embeddings; else 0."""
    return served.info.max_model_len * served.info.hidden if served.config.enable_prompt_embeds else 0


def hidden_numbers(served: ServedModel) -> int:
    """Of each slot, where requests may be told hidden states; else 0."""
    return served.info.max_model_len * served.info.hidden if served.config.enable_return_hidden_states else 0


def served_models(config: Config, infos: Sequence[ModelInfo]) -> list[ServedModel]:
    """In the order of the options; their engines are numbered one behind the other."""
    found: list[ServedModel] = []
    for index, (own, info) in enumerate(zip(model_configs(config), infos, strict=True)):
        first = found[-1].engines.stop if found else 0
        label = _label(own.served_names()[0], index, {one.label for one in found}) if index else ""
        found.append(ServedModel(index, own, info, range(first, first + own.engines), label))
    return found


def _label(name: str, index: int, taken: set[str]) -> str:
    """A short form of a model's name, which `ps` and logs can show."""
    label = f"+{UNFIT.sub('-', name.rstrip('/').rpartition('/')[2])[:MOST_LABEL] or index}"
    return f"{label}-{index}" if label in taken else label


def pooled_numbers(served: ServedModel) -> int:
    """Of each slot; 0 if the model does not pool."""
    pooling = served.info.pooling
    if pooling is None:
        return 0
    return (served.info.max_model_len if set(pooling.tasks) & set(BY_TOKEN) else 1) * pooling.numbers
