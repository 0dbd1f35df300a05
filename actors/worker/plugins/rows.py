"""Logits processors of whoever runs the server, row by row: loaded once, made for each row, called within a budget.

What one raises, or takes too long for, ends the request whose row it is. The budget is kept by a signal where this is
the process' main thread, so that Python code that never ends is stopped, too; code in C is measured when it comes back.
"""

from __future__ import annotations

import importlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor

from ...model.info import ModelInfo
from ...options.config import Config
from ...options.plugins import LOGITS_PROCESSORS, load_callable
from ...protocol.request import PluginRequest, Sampling
from .interface import AdapterLogitsProcessor, BatchUpdate, LogitsProcessor, Params, bound

T = TypeVar("T")
log = logging.getLogger("plugins")
OPTION = "--logits-processors"
MAKE_TIMES = 10  # to be made, one may take so many times as long as for a step


class TookTooLong(BaseException):
    """No handler of a plugin's own errors may take it for one."""


class PluginTrouble(Exception):
    """A row cannot go on; the message names the plugin."""


class RowPlugins:
    """Those of one row."""

    def __init__(self, made: list[tuple[str, LogitsProcessor]], limit: float, greedy: bool) -> None:
        self._limit = limit
        self._made = [(name, one) for name, one in made if not (greedy and one.is_argmax_invariant())]
        self.problem = ""  # it was known before the first step that it cannot go on
        self._told = True  # `added` was, when it was made

    def apply(self, logits: Tensor) -> None:
        """Change the row's logits [words] in place; PluginTrouble leaves them as they were."""
        if self.problem:
            raise PluginTrouble(self.problem)
        try:
            self._apply(logits)
        except PluginTrouble as error:
            self.problem = str(error)  # the step that is planned already asks none of them again
            raise

    def _apply(self, logits: Tensor) -> None:
        for name, one in self._made:
            changed = within(self._limit, name, partial(self._step, one, logits.clone()[None]))
            if not isinstance(changed, Tensor) or changed.numel() != logits.numel():
                raise PluginTrouble(f"{name} has not returned logits of the shape that it was given")
            row = changed.reshape(-1)
            if bool(torch.isnan(row).any()) or float(row.max()) in (float("inf"), float("-inf")):
                raise PluginTrouble(f"{name} has left no token, or logits that are no numbers")
            logits.copy_(row)
        self._told = False

    def _step(self, one: LogitsProcessor, logits: Tensor) -> Tensor:
        if not self._told:
            one.update_state(None)
        return one.apply(logits)


class Plugins:
    """Of one worker."""

    def __init__(self, config: Config, model: ModelInfo) -> None:
        self._classes = [(given, load_callable(OPTION, given, LOGITS_PROCESSORS)) for given in config.logits_processors]
        self._limit = config.logits_processor_timeout
        self._config = SimpleNamespace(
            model_config=SimpleNamespace(model=config.model, max_model_len=model.max_model_len),
            scheduler_config=SimpleNamespace(max_num_seqs=config.max_num_seqs),
            actorserve=config,
        )

    def of_row(self, sampling: Sampling, prompt: list[int], answer: list[int]) -> RowPlugins | None:
        """Made for a sequence that takes a row; `answer` is the list that grows. None if there are none for it."""
        asked = msgspec.json.decode(sampling.plugins, type=PluginRequest) if sampling.plugins else PluginRequest()
        if not self._classes and not asked.processors:
            return None
        fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__ if name != "plugins"}
        params = SimpleNamespace(**fields, extra_args=asked.extra_args)
        made: list[tuple[str, LogitsProcessor]] = []
        problem = ""
        try:
            for name, kind in self._classes:
                make = self._maker(kind, params, prompt, answer)
                made.append((name, within(self._limit * MAKE_TIMES, name, make)))
            for named in asked.processors:
                make = _by_name(named.qualname, named.args, named.kwargs, prompt, answer)
                made.append((named.qualname, within(self._limit * MAKE_TIMES, named.qualname, make)))
        except PluginTrouble as error:
            problem = str(error)
        row = RowPlugins(made, self._limit, sampling.temperature == 0)
        row.problem = problem
        return row

    def _maker(self, kind: Any, params: Params, prompt: list[int], answer: list[int]) -> Callable[[], LogitsProcessor]:
        def make() -> LogitsProcessor:
            if hasattr(kind, "validate_params"):
                kind.validate_params(params)
            one: LogitsProcessor = kind(self._config, torch.device("cpu"), False)
            one.update_state(BatchUpdate(1, added=[(0, params, prompt, answer)]))
            return one

        return make


class _Named(AdapterLogitsProcessor):
    """What a request has named: a function of its own row."""

    def __init__(self, process: Callable[[Tensor], Tensor]) -> None:
        self._rows = {0: process}

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: Params) -> None:
        return None


def _by_name(
    qualname: str, args: list[Any], kwargs: dict[str, Any], prompt: list[int], answer: list[int]
) -> Callable[[], LogitsProcessor]:
    def make() -> LogitsProcessor:
        module, _, name = qualname.rpartition(".")
        found = getattr(importlib.import_module(module), name)
        process = found(*args, **kwargs) if isinstance(found, type) or args or kwargs else found
        return _Named(bound(process, prompt, answer))

    return make


def within(limit: float, name: str, work: Callable[[], T]) -> T:
    """What it returns. PluginTrouble if it raises, or takes longer than so many seconds."""
    began = time.monotonic()
    try:
        result = _timed(limit, work)
    except TookTooLong:
        raise PluginTrouble(f"{name} has taken longer than {limit:g} s") from None
    except Exception as error:
        log.exception("the logits processor %s failed", name)
        raise PluginTrouble(f"{name} has raised {type(error).__name__}") from None
    if time.monotonic() - began > limit:
        raise PluginTrouble(f"{name} has taken longer than {limit:g} s")
    return result


def _timed(limit: float, work: Callable[[], T]) -> T:
    if threading.current_thread() is not threading.main_thread():
        return work()
    before = signal.signal(signal.SIGALRM, _too_long)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        return work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TookTooLong
