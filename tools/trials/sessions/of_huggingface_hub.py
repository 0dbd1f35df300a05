"""huggingface_hub: texts as Text Generation Inference goes on with them, whole and streamed, and chats."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "0"  # with it this server is not asked either; nobody else is
from huggingface_hub import InferenceClient
from told import HELLO, MODEL, OSLO, ROOT, URL, told

client = InferenceClient(base_url=ROOT)
chats = InferenceClient(base_url=URL, api_key="none")
PROMPT = "<hello0>"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}


def streamed(**more: Any) -> list[Any]:
    return list(client.text_generation(PROMPT, stream=True, details=True, **more))


def built(parts: list[Any]) -> str:
    """All that is no mark, which the last part has to say, too."""
    text = "".join(part.token.text for part in parts if not part.token.special)
    return text if text == parts[-1].generated_text else repr(parts)


def detailed() -> str:
    told = client.text_generation(PROMPT, details=True, top_n_tokens=2)
    tokens = told.details.tokens
    right = told.details.generated_tokens == len(tokens) and told.details.finish_reason == "eos_token"
    right = right and [len(top) for top in told.details.top_tokens] == [2] * len(tokens)
    return told.generated_text if right else repr(told)


steps: dict[str, Callable[[], Any]] = {
    "text": lambda: client.text_generation(PROMPT),
    "full text": lambda: client.text_generation(PROMPT, return_full_text=True).removeprefix(PROMPT),
    "detailed text": detailed,
    "streamed text": lambda: "".join(client.text_generation(PROMPT, stream=True)),
    "streamed detailed text": lambda: built(streamed()),
    "stop sequence": lambda: client.text_generation(PROMPT, stop=["model"]),
    "length": lambda: streamed(max_new_tokens=3)[-1].details.finish_reason,
    "forced city": lambda: json.loads(client.text_generation("<any0>", grammar={"type": "json", "value": SCHEMA})),
    "chat text": lambda: (
        chats.chat_completion([{"role": "user", "content": "@hello"}], model=MODEL).choices[0].message.content
    ),
    "error": lambda: client.text_generation(PROMPT, temperature=9),
    "typical error": lambda: client.text_generation(PROMPT, stream=True, typical_p=1.5),
}
told(steps, text=HELLO, sequence="Hello from the model", length="length", city=OSLO, error="parameters.t")
