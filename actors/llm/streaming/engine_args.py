"""The options of `actorserve launch` as an object, under the names that vLLM's users know."""

from __future__ import annotations

from typing import Any


class EngineArgs:
    """`model`, and options by their names with underscores; they are looked at when an engine is made of them."""

    def __init__(self, model: str = "", **options: Any) -> None:
        self.model = model
        self.options = options

    def __repr__(self) -> str:
        given = {"model": self.model, **self.options}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class AsyncEngineArgs(EngineArgs):
    """The same, for AsyncLLM. `enable_log_requests` is understood, and says nothing here: there is no log of HTTP."""

    def __init__(self, model: str = "", *, enable_log_requests: bool = False, **options: Any) -> None:
        super().__init__(model, **options)
