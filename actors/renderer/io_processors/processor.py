"""The object of --io-processor-plugin, and the calls that go to it."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from ...model.info import ModelInfo
from ...options.config import Config, ConfigError
from ...options.plugins import IO_PROCESSORS, load_callable, load_plugin
from ...protocol.topics.io_processors import PooledPrompt
from ...protocol.topics.prompts import Prompt, TextPrompt, TokenPrompt
from ..refused import RenderRefused
from .interface import PooledData, PoolingOutput

METHODS = ("pre_process", "post_process")
OPTION, FIELD = "--io-processor-plugin", "data"
BEGUN = 4096  # requests whose data the object has seen, and whose answers are still to be made
FAILED = "io_processor_failed"


class IOProcessorCalls:
    """Made at the server's start, and in later lives when the first request comes: what is imported for it may take a
    while.
    """

    def __init__(self, config: Config, model: ModelInfo) -> None:
        kind = load_class(config)
        about = SimpleNamespace(
            model_config=SimpleNamespace(model=config.model, max_model_len=model.max_model_len), actorserve=config
        )
        takes = [one for one in inspect.signature(kind).parameters.values() if one.kind is not one.KEYWORD_ONLY]
        self._plugin: Any = kind(about, None) if len(takes) > 1 else kind(about)
        self._begun: OrderedDict[str, None] = OrderedDict()

    def pre_process(self, request_id: str, data: bytes) -> list[Prompt]:
        """Prompts of a request's data."""
        given = self._plugin.pre_process(self._parsed(data), request_id=request_id)
        self._begun[request_id] = None
        if len(self._begun) > BEGUN:
            self._begun.popitem(last=False)
        several = isinstance(given, Sequence) and not isinstance(given, str) and not _are_ids(given)
        return [_prompt(one) for one in (given if several else [given])]

    def post_process(self, request_id: str, data: bytes, pooled: Sequence[PooledPrompt]) -> bytes:
        """The answer, as JSON. Who has not seen the request's data is given them before."""
        if request_id not in self._begun:
            self.pre_process(request_id, data)
        outputs = [PoolingOutput(f"{request_id}-{index}", PooledData(_array(one))) for index, one in enumerate(pooled)]
        made = self._plugin.post_process(outputs, request_id=request_id)
        self._begun.pop(request_id, None)
        if callable(answer := getattr(self._plugin, "output_to_response", None)):
            made = getattr(answer(made), "data", made)
        return msgspec.json.encode(made, enc_hook=_plain)

    def _parsed(self, data: bytes) -> Any:
        values = msgspec.json.decode(data)
        parse = getattr(self._plugin, "parse_data", None) or getattr(self._plugin, "parse_request", None)
        try:
            return values if parse is None else parse(values)
        except (ValueError, TypeError, LookupError) as error:
            raise RenderRefused(400, f"{FIELD}: {type(error).__name__}: {error}", FIELD) from None


def load_class(config: Config) -> Any:
    """ConfigError says what is wrong with what the option names."""
    given = config.io_processor_plugin
    assert given is not None
    kind = load_plugin(OPTION, given, IO_PROCESSORS)
    if isinstance(kind, str):  # as vLLM's entry points have it: a function's or the class's name
        given = ":".join(kind.rsplit(".", 1))
        kind = load_callable(OPTION, given, IO_PROCESSORS)
    if inspect.isfunction(kind) and not inspect.signature(kind).parameters:  # which says the name of the class
        given = ":".join(str(kind()).rsplit(".", 1))
        kind = load_callable(OPTION, given, IO_PROCESSORS)
    if missing := [name for name in METHODS if not callable(getattr(kind, name, None))]:
        raise ConfigError(f"{OPTION}: {given} has no {missing[0]}, as actorserve.IOProcessor has")
    return kind


def _are_ids(given: Sequence[Any]) -> bool:
    return bool(given) and all(type(one) is int for one in given)


def _prompt(given: Any) -> Prompt:
    if isinstance(given, Mapping):
        ids = given.get("prompt_token_ids")
        given = given.get("prompt") if ids is None else ids
    if isinstance(given, str):
        return TextPrompt(given)
    if isinstance(given, Sequence) and _are_ids(given):
        return TokenPrompt(list(given))
    raise TypeError(f"pre_process has made no prompts: texts or token ids are taken, not {given!r:.80}")


def _array(one: PooledPrompt) -> np.ndarray:
    found = np.frombuffer(one.numbers, np.float32).reshape(one.rows, one.columns)
    return found if one.by_token else found[0]


def _plain(value: Any) -> Any:
    """What JSON has no form of: arrays and numbers of numpy, objects that can say themselves as a dict."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if callable(dump := getattr(value, "model_dump", None)):
        return dump()
    raise TypeError(f"post_process has made a {type(value).__name__}, of which there is no JSON")
