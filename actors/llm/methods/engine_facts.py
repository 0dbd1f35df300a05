"""What scripts for vLLM read of an LLM's engine: `llm.llm_engine.model_config.max_model_len` and the like."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...model.info import ModelInfo
from ...options.config import Config
from ..engine import FrontendThread


class ModelConfig:
    """Of the model as it is served, by vLLM's names."""

    def __init__(self, config: Config, info: ModelInfo) -> None:
        self._info = info
        self.model = config.model or info.folder
        self.tokenizer = config.tokenizer or self.model
        self.served_model_name = config.served_names()[0]
        self.architecture = info.architecture
        self.max_model_len = info.max_model_len
        self.trust_remote_code = config.trust_remote_code
        self.seed = config.seed
        self.revision = config.revision
        self.tokenizer_mode = config.tokenizer_mode
        self.skip_tokenizer_init = config.skip_tokenizer_init
        self.enforce_eager = config.enforce_eager
        self.max_logprobs = config.max_logprobs
        self.runner_type = "generate" if info.pooling is None else "pooling"
        self.is_encoder_decoder = info.encoder is not None
        self.is_multimodal_model = bool(info.media)

    @property
    def architectures(self) -> list[str]:
        """One: that which is served."""
        return [self.architecture]

    @cached_property
    def hf_config(self) -> Any:
        """The model's config.json, as transformers reads it."""
        from transformers import AutoConfig

        return AutoConfig.from_pretrained(
            self._info.folder, trust_remote_code=self.trust_remote_code, local_files_only=True
        )

    @property
    def hf_text_config(self) -> Any:
        """The part of it that is of texts."""
        return self.hf_config.get_text_config()

    def get_vocab_size(self) -> int:
        return self._info.vocab_size


@dataclass(frozen=True)
class EngineFacts:
    """In place of an engine of vLLM's."""

    model_config: ModelConfig


class EngineFactsMethods:
    """What LLM inherits of them."""

    config: Config
    _engine: FrontendThread

    @cached_property
    def model_config(self) -> ModelConfig:
        """The model as it is served."""
        return ModelConfig(self.config, self._engine.model)

    @property
    def llm_engine(self) -> EngineFacts:
        """The engine, as far as it can be read; requests are added to one by LLMEngine."""
        return EngineFacts(self.model_config)
