"""A field of SGLang's that its clients send to OpenAI's paths, and what it stands for there."""

from __future__ import annotations

from ..llamacpp.names import LlamaFields


class SglangFields(LlamaFields, kw_only=True):
    """Of chats and completions."""

    request_id: str | None = None
    rid: str | list[str] | None = None  # the same; of several names the first

    def __post_init__(self) -> None:
        given = self.rid[:1] if isinstance(self.rid, list) else [self.rid]
        self.request_id = self.request_id or next(iter(given), None)
