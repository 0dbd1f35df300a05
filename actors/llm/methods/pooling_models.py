"""The methods of `LLM` for models that pool."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...frontend.rpc import CALL_S
from ...protocol.request import BY_TOKEN, CLASSIFY, EMBED, TOKEN_CLASSIFY
from ...protocol.topics.io_processors import PooledPrompt as PooledNumbers
from ..engine import FrontendThread
from ..inputs.prompts import PromptType
from ..inputs.tokenization import FIELD
from ..pooling import (
    ClassificationRequestOutput,
    EmbeddingRequestOutput,
    PooledPrompt,
    PooledPrompts,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
    array_output,
    classification_output,
    cut_at,
    embedding_output,
)

Prompts = PromptType | Sequence[PromptType]
Params = PoolingParams | Sequence[PoolingParams] | None
Bar = bool | Callable[..., Any]


class PoolingMethods:
    """Outputs come in the order of the prompts."""

    _engine: FrontendThread

    def embed(
        self,
        prompts: Prompts,
        *,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: Bar = True,
    ) -> list[EmbeddingRequestOutput]:
        """A vector for each prompt."""
        params = cut_at(pooling_params, truncate_prompt_tokens)
        made = self._pooled_prompts().of_task(prompts, params, EMBED, embedding_output, tokenization_kwargs)
        return self._pooled(made, use_tqdm)

    def classify(
        self,
        prompts: Prompts,
        *,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: Bar = True,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of all labels for each prompt."""
        params = cut_at(pooling_params, truncate_prompt_tokens)
        made = self._pooled_prompts().of_task(prompts, params, CLASSIFY, classification_output, tokenization_kwargs)
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
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: Bar = True,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """What this task makes, or that of the parameters, or else the model's first, as arrays. Of `{"data": …}` with
        io_processor_plugin: one output, whose `outputs` are what the plugin makes of JSON and of what the model has
        pooled.
        """
        pooling_params = cut_at(pooling_params, truncate_prompt_tokens)
        if isinstance(prompts, Mapping) and "data" in prompts:
            if tokenization_kwargs:
                raise ValueError(f"{FIELD}: of data the plugin makes the prompts; truncate_prompt_tokens cuts them")
            data = dict(prompts)["data"]
            return [self._of_plugin(data, pooling_params, pooling_task or EMBED, use_tqdm)]
        made = self._pooled_prompts().of_task(prompts, pooling_params, pooling_task, array_output, tokenization_kwargs)
        return self._pooled(made, use_tqdm)

    def score(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        *,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        use_tqdm: Bar = True,
    ) -> list[ScoringRequestOutput]:
        """How near texts are: one with each of the others, or each with its own. `chat_template` makes one text of both
        for a model that looks at both, of messages of a `query` and a `document`.
        """
        params = cut_at(pooling_params, truncate_prompt_tokens)
        made = self._pooled_prompts().scores(data_1, data_2, params, tokenization_kwargs, chat_template)
        return self._pooled(made, use_tqdm)

    def _of_plugin(self, data: Any, params: Params, task: str, use_tqdm: Bar) -> PoolingRequestOutput[Any]:
        made, own, given = self._pooled_prompts(), f"llm-{uuid.uuid4().hex}", msgspec.json.encode(data)
        task = made.task_of(task)
        prompts = self._engine.ask(lambda to: to.pre_process(own, given), 2 * CALL_S, "prompts were made of the data")
        pooled = self._pooled(made.made(prompts, params, task), use_tqdm)
        arrays = [np.atleast_2d(one.outputs.data) for one in pooled]
        found = [PooledNumbers(len(one), one.shape[1], one.tobytes(), task in BY_TOKEN) for one in arrays]
        output = self._engine.ask(lambda to: to.post_process(own, given, found), 2 * CALL_S, "an answer was made")
        ids = [token for one in pooled for token in one.prompt_token_ids]
        return PoolingRequestOutput(own, msgspec.json.decode(output), ids)

    def _pooled_prompts(self) -> PooledPrompts:
        raise NotImplementedError

    def _pooled(self, pooled: list[PooledPrompt], use_tqdm: Bar) -> list[Any]:
        raise NotImplementedError
