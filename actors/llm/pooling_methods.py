"""The methods of `LLM` for models that pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..protocol.request import CLASSIFY, EMBED, TOKEN_CLASSIFY
from .inputs.prompts import PromptType
from .pooling import (
    ClassificationOutput,
    EmbeddingOutput,
    PooledPrompt,
    PooledPrompts,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    array_output,
    classification_output,
    embedding_output,
)

Prompts = PromptType | Sequence[PromptType]
Params = PoolingParams | Sequence[PoolingParams] | None
Bar = bool | Callable[..., Any]


class PoolingMethods:
    """Outputs come in the order of the prompts."""

    def embed(
        self, prompts: Prompts, *, pooling_params: Params = None, use_tqdm: Bar = True
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """A vector for each prompt."""
        made = self._pooled_prompts().of_task(prompts, pooling_params, EMBED, embedding_output)
        return self._pooled(made, use_tqdm)

    def classify(
        self, prompts: Prompts, *, pooling_params: Params = None, use_tqdm: Bar = True
    ) -> list[PoolingRequestOutput[ClassificationOutput]]:
        """The probabilities of all labels for each prompt."""
        made = self._pooled_prompts().of_task(prompts, pooling_params, CLASSIFY, classification_output)
        return self._pooled(made, use_tqdm)

    def reward(
        self, prompts: Prompts, *, pooling_params: Params = None, use_tqdm: Bar = True
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The scores of each token of each prompt."""
        return self.encode(prompts, pooling_params, pooling_task=TOKEN_CLASSIFY, use_tqdm=use_tqdm)

    def encode(
        self,
        prompts: Prompts,
        pooling_params: Params = None,
        *,
        pooling_task: str = EMBED,
        use_tqdm: Bar = True,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What this task makes, as arrays."""
        made = self._pooled_prompts().of_task(prompts, pooling_params, pooling_task, array_output(pooling_task))
        return self._pooled(made, use_tqdm)

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        *,
        pooling_params: PoolingParams | None = None,
        use_tqdm: Bar = True,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """How near texts are: one with each of the others, or each with its own."""
        return self._pooled(self._pooled_prompts().scores(data_1, data_2, pooling_params), use_tqdm)

    def _pooled_prompts(self) -> PooledPrompts:
        raise NotImplementedError

    def _pooled(self, pooled: list[PooledPrompt], use_tqdm: Bar) -> list[Any]:
        raise NotImplementedError
