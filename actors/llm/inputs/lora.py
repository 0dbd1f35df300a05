"""Adapters for prompts of an LLM: loaded when a call first names them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actorserve.http.settings import AdapterNames, ServedAdapter

from ...options.lora import trouble_with_name


@dataclass(frozen=True)
class LoRARequest:
    """An adapter by its name, in PEFT's format at a path. The number is vLLM's, and means nothing here."""

    lora_name: str
    lora_int_id: int = 1
    lora_path: str = ""
    load_inplace: bool = False  # read its files again

    def __post_init__(self) -> None:
        if problem := trouble_with_name(self.lora_name):
            raise ValueError(f"lora_name: {problem}")


LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None


class LoadedAdapters(AdapterNames):
    """Those that were asked for."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._found: dict[str, ServedAdapter] = {}

    def find(self, name: str) -> ServedAdapter | None:
        return self._found.get(name)

    def load(self, given: LoRARequests, count: int, load: Callable[[LoRARequest], ServedAdapter]) -> list[str | None]:
        """The names for so many prompts; `load` has one read."""
        if given is None:
            return [None] * count
        if not self.enabled:
            raise ValueError("lora_request: adapters are not enabled; make the LLM with enable_lora=True")
        each = [given] * count if isinstance(given, LoRARequest) else list(given)
        if len(each) != count:
            raise ValueError(f"{count} prompts and {len(each)} lora_request do not match")
        for one in dict.fromkeys(one for one in each if one is not None):
            self._found[one.lora_name] = load(one)
        return [None if one is None else one.lora_name for one in each]
