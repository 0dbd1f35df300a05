"""All parameters of one sequence, as a slot keeps them: what the frontend was asked (those of sampling by the table in
sampling/fields.py), and what the renderer made of it.

Leaf module. Generation and Rendition stand in the request table as msgpack, so whoever takes a sequence over finds them
there.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from .sampling.fields import WatermarkingConfig, row_types, sampling_parameters

USUAL_LOGPROBS = 20  # most likely tokens whose logprobs are given beside the token's own
MOST_LOGPROBS = 1024  # with --max-logprobs: of one token all of them cross a lane in one message
MOST_LOGPROB_IDS = 128  # tokens that a request may name to be told of them in place of those


class Pooling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the worker makes of a prompt in place of a token: one vector, or one for each token."""

    task: str  # of POOLING_TASKS
    dimensions: int = 0  # so many of a vector's first numbers; 0: all
    activation: str = ""  # NORMALIZE, SIGMOID or SOFTMAX; none if empty
    whole: bool = False  # the prompt cannot be computed in parts, nor behind a cached prefix


EMBED, TOKEN_EMBED, CLASSIFY, TOKEN_CLASSIFY = "embed", "token_embed", "classify", "token_classify"
POOLING_TASKS = (EMBED, TOKEN_EMBED, CLASSIFY, TOKEN_CLASSIFY)
BY_TOKEN = (TOKEN_EMBED, TOKEN_CLASSIFY)  # they make something of each token
NORMALIZE, SIGMOID, SOFTMAX = "normalize", "sigmoid", "softmax"  # the length of a vector becomes 1; of labels' scores


class NamedProcessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Code that a request names: a function of tokens and logits, or what makes one."""

    qualname: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class PluginRequest(msgspec.Struct, frozen=True):
    """What a request says to logits processors of whoever runs the server."""

    extra_args: dict[str, Any] | None = None
    processors: list[NamedProcessor] = []


class Sampling(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How the worker draws tokens. temperature 0 is greedy; defaults switch a filter off."""

    seed: int  # 64 bits, always set: the frontend draws one where the client gave none
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    top_n_sigma: float = 0.0
    typical_p: float = 1.0
    min_tokens: int = 0  # until so many are generated, `suppress` is masked
    suppress: list[int] = []  # end tokens and stop_token_ids, filled only where min_tokens > 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: list[tuple[int, float]] = []
    allowed_token_ids: list[int] = []
    logprobs: int = -1  # of the token and so many of the most likely tokens; -1: none
    prompt_logprobs: int = -1  # the same for the prompt's tokens
    pooling: Pooling | None = None  # no token is drawn: the sequence ends with its prompt
    logprob_token_ids: list[int] = []  # where logprobs are told: of these tokens in place of the most likely ones
    plugins: bytes = b""  # JSON of PluginRequest
    watermarking_config: WatermarkingConfig | None = None
    repeat_last_n: int = -1  # never 0, nor another one where there are no penalties
    dry_multiplier: float = 0.0  # 0: all of these are as they are here
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: list[str] = []
    post_sampling_probs: bool = False  # logprobs are of what is drawn from, where they are told
    xtc_probability: float = 0.0  # 0: the threshold is as it is here
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0  # likewise
    dynatemp_exponent: float = 1.0
    lists_prompt: bool = False  # logprob_token_ids are told beside the prompt's tokens, too
    mirostat: int = 0  # 1 or 2: its version; these are then all that is heeded of filters
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    hidden_states: bool = False  # of each token that is computed the last layer's output is told

    def is_plain(self) -> bool:
        """Its logits are not changed before a token is drawn."""
        return not self.plugins and all(getattr(self, name) == default_of(name) for name in PROCESSED)

    def cpu_only(self) -> list[str]:
        """What it asks for that a GPU does nothing of."""
        return [name for name in CPU_ONLY if getattr(self, name) != default_of(name)]

    def row(self) -> dict[str, float]:
        """By name, what the arrays of the worker's batch have of it."""
        return {name: getattr(self, name) for name in row_types()}


class Think(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """How a model marks its thinking. `always`: its answers begin inside where the prompt leaves that open. `closing`:
    what is written before the end where its budget is used up.
    """

    start: str
    end: str
    always: bool = False
    closing: str = ""


class RepeatLimit(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A text ends where `least` to `most` tokens have come so many times in a row."""

    least: int
    most: int
    times: int


class Generation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """All parameters of one sequence, as its frontend writes them into the slot's parameter area (msgpack)."""

    sampling: Sampling
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    stop: list[str] = []
    include_stop_str_in_output: bool = False  # or a stop token's text
    skip_special_tokens: bool = True
    priority: int = 0  # lower runs first under --scheduling-policy priority
    stream: bool = True  # False: the detokenizer sends the text only once, at the end
    request_id: str = ""
    interval: int = 1  # tokens that are waited for before text is sent
    think: Think | None = None  # inside of it stop strings do not count, and its tokens are counted
    cache_salt: str = ""
    adapter: int = 0  # the id of its load (shm/adapters/registry.py); 0: none
    repeats: RepeatLimit | None = None
    kv_peer: str = ""  # host:port of the server that has computed the prompt


class ThinkBudget(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """After `tokens` of thinking the worker writes its end."""

    tokens: int
    start: list[int]
    end: list[int]
    closing: list[int] = []  # what it writes in place of the end alone


class Hearing(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a model that listens has to write in front of its text, and whether timestamps go with the text."""

    detects: bool = False  # the first token is the likeliest of its languages
    forced: list[int] = []  # then these
    timestamps: bool = False
    language: str = ""  # its code, where the prompt says it


class Rendition(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What the renderer made of a request's parameters, for the worker and the detokenizer."""

    opened: bool = False  # the answer begins inside the model's thinking
    bad_words: list[list[int]] = []  # sequences of tokens that must not be drawn
    budget: ThinkBudget | None = None
    grammar: bytes = b""  # zlib of what llguidance reads; the answer keeps to it
    second: int = 0  # of a pair of texts, where the second begins, for models that tell them apart; 0: there is one
    encoder: int = 0  # tokens at the log's beginning that an encoder reads; fillers follow up to a block's end
    hearing: Hearing | None = None

    def is_plain(self) -> bool:
        """It asks nothing of the worker."""
        return not (self.bad_words or self.budget or self.grammar or self.second or self.hearing)


@cache
def default_of(name: str) -> Any:
    """What a parameter is where nothing is said of it; None where that is another thing each time."""
    for kind in (Sampling, Generation):
        for field in msgspec.structs.fields(kind):
            if field.name == name:
                made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
                return None if made is msgspec.NODEFAULT else made
    return None


PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
CPU_ONLY = tuple(name for name, parameter in sampling_parameters().items() if parameter.cpu_only)
OF_ONE_MACHINE = ("mirostat",)  # whose state is not told to engines on others
PROCESSED = tuple(  # those of them that stand in Sampling
    name
    for name, parameter in sampling_parameters().items()
    if parameter.processes and name in Sampling.__struct_fields__
)
