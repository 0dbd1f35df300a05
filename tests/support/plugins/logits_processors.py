"""Logits processors of tests, as whoever runs a server writes them: `vllm_xargs` says what each does."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from torch import Tensor

from actorserve import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor


class Only(LogitsProcessor):
    """Only this token: {"only": id}; or it fails, in the way that "fails" names."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.max_model_len and str(device) == "cpu" and not is_pin_memory
        self.rows: dict[int, dict[str, Any]] = {}
        self.answers: dict[int, list[int]] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        if (sampling_params.extra_args or {}).get("fails") == "params":
            raise ValueError("it cannot be had")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        for row, params, prompt, answer in batch_update.added if batch_update is not None else ():
            assert prompt
            self.rows[row], self.answers[row] = params.extra_args or {}, answer

    def apply(self, logits: Tensor) -> Tensor:
        for row, asked in self.rows.items():
            if len(self.answers[row]) >= 2:
                self._fail(asked.get("fails", ""), logits[row])
            if "only" in asked:
                kept = logits[row, asked["only"]].item()
                logits[row] = float("-inf")
                logits[row, asked["only"]] = kept
        return logits

    def _fail(self, how: str, logits: Tensor) -> None:
        if how == "raises":
            raise KeyError("nothing")
        if how == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "loops":
            while True:
                pass
        if how == "sleeps":
            time.sleep(600)
        if how == "nothing":
            logits[:] = float("-inf")


class Never(AdapterLogitsProcessor):
    """Not this token: {"never": id}."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Any) -> Any:
        never = (params.extra_args or {}).get("never")
        return None if never is None else Without(never)


class Without:
    """One that requests name, too."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = list(tokens)

    def __call__(self, output_ids: list[int], logits: Tensor) -> Tensor:
        logits[self.tokens] = float("-inf")
        return logits
