"""What the demo model says to what requests ask, by transformers; and how tests ask a server for it."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import torch

from actorserve.actors.model.info import DEMO_FOLDER

PROMPT = "The capital of France is Paris. The capital of"
HI = [{"role": "user", "content": "What is the capital of France?"}]
COUNT = 12


class Reference:
    """The demo model in transformers, float32."""

    def __init__(self) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.model = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(DEMO_FOLDER)

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text)
        return ids

    def logits(self, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            out: torch.Tensor = self.model(torch.tensor([ids])).logits[0]
        return out

    def greedy(
        self, ids: list[int], repetition: float, frequency: float, presence: float, last: int | None = None
    ) -> list[int]:
        """`last`: all penalties look back on so many tokens alone, prompt or answer."""
        from transformers import RepetitionPenaltyLogitsProcessor

        answer: list[int] = []
        for _ in range(COUNT):
            logits = self.logits(ids + answer)[-1:]
            repeated, counted = (ids + answer, answer) if last is None else [(ids + answer)[-last:]] * 2
            logits = RepetitionPenaltyLogitsProcessor(float(repetition))(torch.tensor([repeated]), logits)[0]
            for token in set(counted):
                logits[token] -= frequency * counted.count(token) + presence
            answer.append(int(logits.argmax()))
        return answer


def ask(client: httpx.Client, **body: Any) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = client.post(path, json={"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client: httpx.Client, **body: Any) -> list[Any]:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    asked = {"temperature": 0, "max_tokens": COUNT, "ignore_eos": True, "stream": True, **body}
    with client.stream("POST", path, json=asked) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def refused(client: httpx.Client, **body: Any) -> str:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = client.post(path, json=body)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["error"]["param"])
