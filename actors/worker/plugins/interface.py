"""What a logits processor of --logits-processors is: vLLM's interface, by its names.

Here each row of the batch has an object of its own: it sees a batch of one, told once by `added`, and an error or a
delay in it is its own request's alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

from torch import Tensor

Params = SimpleNamespace  # a request's parameters by their names in the API, and `extra_args`: its vllm_xargs, or None
Added = tuple[int, Params, list[int], list[int]]  # row, parameters, the prompt's tokens, the answer's as they grow
RequestProcessor = Callable[..., Tensor]  # of (output_ids, logits) or (prompt_ids, output_ids, logits) of one row


class MoveDirectionality(Enum):
    UNIDIRECTIONAL = 0
    SWAP = 1


@dataclass(frozen=True)
class BatchUpdate:
    """How the batch has changed."""

    batch_size: int
    removed: Sequence[int] = ()
    added: Sequence[Added] = ()
    moved: Sequence[tuple[int, int, MoveDirectionality]] = ()


class LogitsProcessor(ABC):
    """Changes logits [batch, words] before a token is drawn."""

    @classmethod
    def validate_params(cls, sampling_params: Params) -> None:
        """ValueError for what a request cannot ask for. Most have nothing to say."""
        return None  # noqa: RET501  # a body, since it is not abstract

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None: ...

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """The likeliest token stays so: it is not asked where that is taken."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Before each step; None where nothing has changed but the answers."""

    @abstractmethod
    def apply(self, logits: Tensor) -> Tensor: ...


class AdapterLogitsProcessor(LogitsProcessor):
    """One that is made of a function for each request."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self._rows: dict[int, RequestProcessor] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: Params) -> RequestProcessor | None:
        """Of a request that wants it; None of others."""

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for row in batch_update.removed:
            self._rows.pop(row, None)
        for row, params, prompt, answer in batch_update.added:
            made = self.new_req_logits_processor(params)
            if made is not None:
                self._rows[row] = bound(made, prompt, answer)

    def apply(self, logits: Tensor) -> Tensor:
        for row, process in self._rows.items():
            logits[row] = process(logits[row])
        return logits


def bound(process: RequestProcessor, prompt: list[int], answer: list[int]) -> RequestProcessor:
    """With the tokens that it takes, by how many arguments it has."""
    import inspect

    if len(inspect.signature(process).parameters) == 3:
        return lambda logits: process(prompt, answer, logits)
    return lambda logits: process(answer, logits)
