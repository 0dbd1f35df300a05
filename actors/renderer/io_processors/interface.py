"""What a class of --io-processor-plugin is: vLLM's interface, by its names.

Each renderer makes one. A request's `data` are parsed and made prompts of, the model pools these, and of what it has
pooled the answer is made: by the same renderer, or by another one, or by another life of it, which is given the data
once more. So what an object keeps of a request, by its id, is there when its answer is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

Input = TypeVar("Input")
Output = TypeVar("Output")


@dataclass(frozen=True)
class PooledData:
    """A float32 array: a vector, or a row for each token."""

    data: np.ndarray


@dataclass(frozen=True)
class PoolingOutput:
    """What the model has made of one prompt."""

    request_id: str
    outputs: PooledData
    finished: bool = True


class IOProcessor(ABC, Generic[Input, Output]):
    """Makes prompts of data, and answers of what a model has pooled."""

    def __init__(self, vllm_config: Any, renderer: Any = None) -> None:
        self.vllm_config = vllm_config

    def parse_data(self, data: Any) -> Input:
        """The request's `data`, of JSON, as `pre_process` takes them. ValueError says what a client got wrong."""
        parsed: Input = data
        return parsed

    @abstractmethod
    def pre_process(self, prompt: Input, request_id: str | None = None, **kwargs: Any) -> Any:
        """A prompt or several: texts, token ids, or dicts of `prompt` or `prompt_token_ids`."""

    @abstractmethod
    def post_process(
        self, model_output: Sequence[PoolingOutput], request_id: str | None = None, **kwargs: Any
    ) -> Output:
        """The answer, of which JSON can be made."""
