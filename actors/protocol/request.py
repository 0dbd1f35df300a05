"""All parameters of one sequence: what its frontend writes beside the prompt, and what its renderer makes of them.

Leaf module. Both stand in the request table as msgpack, so whoever takes a sequence over finds them there.
"""

from __future__ import annotations

import msgspec

MOST_LOGPROBS = 20  # most likely words whose logprobs are told beside the token's own


class Sampling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How the worker draws tokens. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 switch the filter off."""

    seed: int  # 64 bits, always set: the frontend draws one where the client gave none
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_tokens: int = 0  # until so many are generated, `suppress` is masked
    suppress: list[int] = []  # end tokens and stop_token_ids, filled only where min_tokens > 0
    repetition: float = 1.0  # divides (or multiplies, below 0) the logits of words of prompt and answer
    frequency: float = 0.0  # taken off for each time that a word is in the answer
    presence: float = 0.0  # taken off if a word is in the answer
    bias: list[tuple[int, float]] = []  # added to the logits of these words
    allowed: list[int] = []  # nothing but these words is drawn, if there are any
    logprobs: int = -1  # of the token and so many of the most likely words; -1: none
    prompt_logprobs: int = -1  # the same for the prompt's tokens

    def is_plain(self) -> bool:
        """No word is treated otherwise than another one."""
        penalties = self.repetition != 1 or self.frequency or self.presence
        return not (penalties or self.bias or self.allowed or self.min_tokens)


class Think(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a model marks its thinking. `always`: its answers begin inside where the prompt leaves that open."""

    start: str
    end: str
    always: bool = False


class Generation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All parameters of one sequence, as its frontend writes them into the slot's parameter area (msgpack)."""

    sampling: Sampling
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    stop: list[str] = []
    include_stop: bool = False  # the stop string (or stop token's text) stays in the output
    skip_special_tokens: bool = True
    priority: int = 0  # lower runs first under --scheduling-policy priority
    stream: bool = True  # False: the detokenizer sends the text only once, at the end
    request_id: str = ""
    interval: int = 1  # tokens that are waited for before text is sent
    think: Think | None = None  # inside of it stop strings do not count, and its tokens are counted
    cache_salt: str = ""


class ThinkBudget(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """After `tokens` of thinking the worker writes its end."""

    tokens: int
    start: list[int]
    end: list[int]


class Rendition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the renderer made of a request's parameters, for the worker and the detokenizer."""

    opened: bool = False  # the answer begins inside the model's thinking
    bad_words: list[list[int]] = []  # sequences of tokens that must not be drawn
    budget: ThinkBudget | None = None
    grammar: bytes = b""  # zlib of what llguidance reads; the answer keeps to it

    def is_plain(self) -> bool:
        """It asks nothing of the worker."""
        return not (self.bad_words or self.budget or self.grammar)
