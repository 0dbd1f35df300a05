"""dspy: its adapters, by litellm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import dspy
from told import EMBEDDER, HELLO, MODEL, URL, WIDTH, told

WHERE: dict[str, Any] = {"api_base": URL, "api_key": "none", "num_retries": 0, "cache": False, "max_tokens": 200}


class Ask(dspy.Signature):
    """Answer with the name of a town."""

    question: str = dspy.InputField()
    town: Literal["Oslo"] = dspy.OutputField()


def model(kind: str, **more: Any) -> Any:
    return dspy.LM(f"openai/{MODEL}", model_type=kind, **{**WHERE, **more})


def said(part: Any) -> Any:
    return part["text"] if isinstance(part, dict) else part


def predicted(kind: str, adapter: Any, word: str, program: Any = dspy.Predict, **more: Any) -> Any:
    with dspy.context(lm=model(kind, **more), adapter=adapter):
        return program(Ask)(question=f"@{word}").town


async def streamed(kind: str) -> Any:
    """The last part is the prediction, behind others."""
    with dspy.context(lm=model(kind), adapter=dspy.ChatAdapter()):
        asked = dspy.streamify(dspy.Predict(Ask), stream_listeners=[dspy.streaming.StreamListener("town")])
        parts = [part async for part in asked(question="@fields")]
    return parts[-1].town if len(parts) > 1 else parts


def steps(kind: str) -> dict[str, Callable[[], Any]]:
    found: dict[str, Callable[[], Any]] = {
        f"{kind} chat": lambda: said(model(kind)("@hello")[0]),
        f"{kind} by fields, town": lambda: predicted(kind, dspy.ChatAdapter(), "fields"),
        f"{kind} by JSON, town": lambda: predicted(kind, dspy.JSONAdapter(), "json"),
        f"{kind} by JSON behind fields, town": lambda: predicted(kind, dspy.ChatAdapter(), "json"),
        f"{kind} by tags, town": lambda: predicted(kind, dspy.XMLAdapter(), "tags"),
        f"{kind} error": lambda: predicted(kind, dspy.ChatAdapter(), "fields", temperature=9),
    }
    if kind == "chat":
        found["chat streamed town"] = lambda: streamed(kind)
    return found


def embedded() -> tuple[int, ...]:
    return tuple(dspy.Embedder(f"openai/{EMBEDDER}", api_base=URL, api_key="none", caching=False)(["a", "b"]).shape)


every = {**steps("chat"), **steps("responses"), "embeddings, their shape": embedded}
told(every, chat=HELLO, town="Oslo", error="temperature must be", shape=(2, WIDTH))
