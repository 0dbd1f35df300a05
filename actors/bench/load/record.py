"""What is kept of one request, and what is worked out from it alone.

A chunk may bring several tokens. How many is known where the server counts with each chunk
(`continuous_usage_stats`); otherwise the tokens of the final usage are shared out evenly among the chunks. Without any
usage a chunk counts as one token, which `counted` says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MS = 1000.0


@dataclass(slots=True)
class RequestRecord:
    """One request, from the moment it was sent; times are those of `time.perf_counter`."""

    started: float = 0.0
    ended: float = 0.0
    chunks: list[float] = field(default_factory=list)  # when each chunk that brought tokens came
    sizes: list[int] = field(default_factory=list)  # the tokens it brought, where the server says so
    prompt_tokens: int = 0
    usage_tokens: int | None = None  # the answer's tokens, as the server counts them
    error: str = ""  # its kind, such as `http 503`; empty if it went well
    detail: str = ""
    finish_reason: str = ""  # empty while the answer has not told its end
    cached_tokens: int | None = None  # of the prompt, computed before, where the server says so

    @property
    def counted(self) -> str:
        """How tokens were counted: by `chunk`, by the `total`, or `none`: a chunk is called a token."""
        if self.usage_tokens is None:
            return "none"
        return "chunk" if self.sizes and sum(self.sizes) == self.usage_tokens else "total"

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.chunks) if self.usage_tokens is None else self.usage_tokens

    def chunk_tokens(self) -> list[float]:
        """How many tokens each chunk brought."""
        if self.counted == "chunk":
            return [float(size) for size in self.sizes]
        if not self.chunks:
            return []
        return [max(1.0, self.output_tokens / len(self.chunks))] * len(self.chunks)

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token."""
        return (self.chunks[0] - self.started) * MS if self.chunks else None

    @property
    def e2el_ms(self) -> float:
        """To the end of the stream."""
        return (self.ended - self.started) * MS

    @property
    def tpot_ms(self) -> float | None:
        """Time for each token behind the first chunk; None if there is none."""
        if len(self.chunks) < 2:
            return None
        behind = self.output_tokens - self.chunk_tokens()[0]
        return (self.chunks[-1] - self.chunks[0]) * MS / behind if behind > 0 else None

    def icl_ms(self) -> list[float]:
        """The gaps between chunks, as the client saw them."""
        return [(after - before) * MS for before, after in zip(self.chunks, self.chunks[1:], strict=False)]

    def itl_ms(self) -> list[float]:
        """A gap for each token behind the first chunk: n tokens that come together after g ms are n gaps of g/n."""
        found: list[float] = []
        for gap, tokens in zip(self.icl_ms(), self.chunk_tokens()[1:], strict=True):
            found.extend([gap / tokens] * round(tokens))
        return found
