"""An IO processor of tests, as whoever runs a server writes it: which of some texts is nearest to another."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import Any

import numpy as np

from actorserve import IOProcessor


class Nearest(IOProcessor[dict[str, Any], dict[str, Any]]):
    """Of {"text": …, "among": […]}; `fails` names how it fails."""

    def __init__(self, vllm_config: Any, renderer: Any = None) -> None:
        super().__init__(vllm_config, renderer)
        assert vllm_config.model_config.max_model_len
        self.asked: dict[str | None, dict[str, Any]] = {}

    def parse_data(self, data: Any) -> dict[str, Any]:
        if not isinstance(data, dict) or not data.get("text"):
            raise ValueError("a text is needed")
        return data

    def pre_process(self, prompt: dict[str, Any], request_id: str | None = None, **kwargs: Any) -> list[str]:
        if prompt.get("fails") == "before":
            raise RuntimeError("as it was told")
        self.asked[request_id] = prompt
        return [prompt["text"], *prompt["among"]]

    def post_process(self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any) -> dict[str, Any]:
        asked = self.asked.pop(request_id)
        if asked.get("dies") and not os.path.exists(asked["dies"]):
            with open(asked["dies"], "x"):
                os.kill(os.getpid(), signal.SIGKILL)
        if asked.get("fails") == "behind":
            raise RuntimeError("as it was told")
        first, *others = (one.outputs.data for one in model_output)
        scores = np.array([one @ first for one in others])
        return {"nearest": asked["among"][int(scores.argmax())], "scores": scores, "shape": list(first.shape)}
