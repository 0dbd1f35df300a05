"""Waiting for a batch, with a bar that shows how many prompts have ended and how many tokens come in a second."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .batch import PromptBatch
from .outputs import RequestOutput


class ProgressBar:
    """`use_tqdm`: False for no bar, or a callable to make one in tqdm's place."""

    def __init__(self, batch: PromptBatch, use_tqdm: bool | Callable[..., Any]) -> None:
        self._batch = batch
        self._bar: Any = None
        if use_tqdm:
            self._bar = _make(use_tqdm)(total=len(batch.wanted), desc="Processed prompts", unit="prompt")
        self._began = time.monotonic()
        self._read = self._written = 0
        self._shown = 0

    @property
    def left(self) -> int:
        """Prompts that have not ended."""
        return len(self._batch.wanted) - len(self._batch.ended)

    def next(self, timeout: float | None) -> None:
        """Wait for one; TimeoutError if none has ended in time, or the error that ended all of them."""
        try:
            self._batch.news.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self.left} prompts have not ended") from None
        if self._batch.failure is not None:
            raise self._batch.failure
        self._show()

    def _show(self) -> None:
        """What has ended since the last time."""
        indices = self._batch.ended[self._shown :]
        self._shown += len(indices)
        if self._bar is None or not indices:
            return
        for output in filter(None, (self._batch.outputs[index] for index in indices)):
            self._read += len(output.prompt_token_ids)
            if isinstance(output, RequestOutput):
                self._written += sum(len(one.token_ids) for one in output.outputs)
        seconds = max(time.monotonic() - self._began, 1e-6)
        speed = f"input: {self._read / seconds:.1f} tokens/s, output: {self._written / seconds:.1f} tokens/s"
        self._bar.set_postfix_str(speed, refresh=False)
        self._bar.update(len(indices))

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._batch.news.put(None)  # another thread may wait for the same: what it waits for was taken here
        if self._bar is not None:
            self._show()
            self._bar.close()


def _make(use_tqdm: bool | Callable[..., Any]) -> Any:
    if callable(use_tqdm):
        return use_tqdm
    from tqdm.auto import tqdm

    return tqdm
