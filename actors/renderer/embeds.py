"""Prompts that are embeddings: read, looked at, and laid where workers find them."""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

import numpy as np

from actorserve.shm.table.prompt_embeds import DIGEST_BYTES, PromptEmbeds

from ..model.info import ModelInfo
from ..model.weights.saved_tensor import UnreadableTensor, read_tensor
from ..protocol.block_hash import Span
from ..protocol.topics.prompts import EmbedsPrompt
from .refused import TOO_LONG, RenderRefused

FIELD = "prompt_embeds"
FILLER = 0  # the id that stands in the log where an embedding is: it is computed of nothing, and counts for nothing


class GivenRows(NamedTuple):
    """Of one prompt."""

    rows: np.ndarray  # float32 [tokens, hidden]
    digest: bytes

    @property
    def tokens(self) -> list[int]:
        """What stands in the log."""
        return [FILLER] * len(self.rows)

    @property
    def span(self) -> Span:
        """What hashes of blocks say beside that."""
        return 0, len(self.rows), self.digest

    def write(self, area: PromptEmbeds, refs: Sequence[int]) -> None:
        """Into these slots, before their prompts are published."""
        for ref in refs:
            area.write_prompt(ref, len(self.rows), self.rows.shape[1], self.rows.tobytes(), self.digest)


def given_rows(prompt: EmbedsPrompt, model: ModelInfo) -> GivenRows:
    """RenderRefused says what is wrong with them."""
    if prompt.columns:
        found = np.frombuffer(prompt.data, np.float32).reshape(-1, prompt.columns)
    else:
        try:
            found = read_tensor(binascii.a2b_base64(prompt.data, strict_mode=True))
        except (binascii.Error, UnreadableTensor) as error:
            raise _refused(f"{str(error).rstrip('.')}.") from None
    if found.ndim == 3 and found.shape[0] == 1:
        found = found[0]
    if found.ndim != 2 or found.dtype.kind != "f":
        raise _refused(f"it has the shape {list(found.shape)} of {found.dtype}: floats, tokens × hidden, are taken.")
    count, columns = found.shape
    if columns != model.hidden:
        raise _refused(f"its rows have {columns} numbers; this model's embeddings have {model.hidden}.")
    if count >= model.max_model_len:
        text = f"it has {count} rows; this model's maximum context length is {model.max_model_len} tokens."
        raise RenderRefused(400, f"{FIELD}: {text}", FIELD, TOO_LONG, (count, model.max_model_len))
    rows = np.ascontiguousarray(found, np.float32)
    if not np.isfinite(rows).all():
        raise _refused("a number is infinite or none.")
    return GivenRows(rows, blake2b(rows.tobytes(), digest_size=DIGEST_BYTES).digest())


def _refused(text: str) -> RenderRefused:
    return RenderRefused(400, f"{FIELD}: {text}", FIELD)
