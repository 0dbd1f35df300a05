"""All parameters of one sequence: the table of what requests may say of sampling, and what a slot keeps of it.

Leaf module. A parameter is one field of `SamplingFields`: the name that it has in every API, in LLM's SamplingParams
and in generation_config.json, its type, and a `Parameter` with all else that is to be known of it. HTTP's schemas and
LLM's SamplingParams inherit the fields; checks, /openapi.json, defaults, the arrays of the worker's batch and the table
in tools/docs/api.md are made of them. A field of the same name in `Sampling` or `Generation` takes the value to whoever
heeds it, and has the default, which changes nothing.

Generation and Rendition stand in the request table as msgpack, so whoever takes a sequence over finds them there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import Meta

USUAL_LOGPROBS = 20  # most likely tokens whose logprobs are given beside the token's own
MOST_LOGPROBS = 1024  # with --max-logprobs: of one token all of them cross a lane in one message
MOST_LOGPROB_IDS = 128  # tokens that a request may name to be told of them in place of those
INT31, UINT64 = (1 << 31) - 1, (1 << 64) - 1


@dataclass(frozen=True)
class Range:
    """The numbers that a field may have. As metadata of a struct's field it is checked, and told in /openapi.json."""

    least: float
    most: float = INT31
    above: bool = False  # `least` itself is none of them
    text: str = ""  # where the two numbers would tell less

    def holds(self, value: float) -> bool:
        """Is it one of them? NaN is not."""
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        """What a number must be."""
        if self.text or self.above:
            return self.text or f"greater than {self.least} and at most {self.most}"
        return f"at least {self.least}" if self.most == INT31 else f"between {self.least} and {self.most}"

    def missed_by(self, value: float) -> str:
        """What a number that is none of them must be."""
        too_large = self.most == INT31 and value > INT31 and not self.text
        return f"{'less than 2**31' if too_large else self}, not {value}"


INT32 = Range(-(1 << 31), INT31, text="a 32-bit integer")
INT64 = Range(-(1 << 63), UINT64, text="a 64-bit integer")


@dataclass(frozen=True)
class Parameter:
    """What is to be known of a field of SamplingFields."""

    about: str  # for tools/docs/api.md and /openapi.json
    range: Range | None = None  # of a number; anything else is checked in http/generation/fields/ranges.py
    below_is_off: bool = False  # a number below the default means the default
    row: str = ""  # dtype of its array in the worker's batch, where kernels look for it
    processes: bool = False  # logits are changed for it before a token is drawn: it has no drafts and no beams
    cpu_only: bool = False  # a GPU does nothing of it
    configurable: bool = False  # the operator may set another default
    in_file: bool = True  # and the model's own generation_config.json, too


class WatermarkingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A watermark that is to be found in the answer, by the names of transformers; its detector needs all of them."""

    greenlist_ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.25  # of all words
    bias: Annotated[float, Meta(ge=-100, le=100)] = 2.0
    hashing_key: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 15485863
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: Annotated[int, Meta(ge=1, le=256)] = 1


class SamplingFields(msgspec.Struct, kw_only=True):
    """What a request may say of how tokens are drawn and when they end. null is as if a field was not there."""

    temperature: Annotated[
        float | None,
        Parameter("divides the logits; 0 takes the likeliest token", Range(0, 2), row="float32", configurable=True),
    ] = None
    top_k: Annotated[
        int | None,
        Parameter(
            "only so many of the likeliest tokens; 0 and -1: all",
            Range(-1),
            below_is_off=True,
            row="int64",
            configurable=True,
        ),
    ] = None
    top_p: Annotated[
        float | None,
        Parameter(
            "only the likeliest tokens that together have this probability",
            Range(0, 1, above=True),
            row="float64",
            configurable=True,
        ),
    ] = None
    min_p: Annotated[
        float | None,
        Parameter(
            "only tokens at least so many times as likely as the likeliest",
            Range(0, 1),
            row="float32",
            configurable=True,
        ),
    ] = None
    top_n_sigma: Annotated[
        float | None,
        Parameter(
            "only tokens whose logit is within so many standard deviations of the largest; 0 and -1: all",
            Range(-1, 100),
            below_is_off=True,
            row="float32",
            configurable=True,
        ),
    ] = None
    typical_p: Annotated[
        float | None,
        Parameter(
            "only the tokens whose surprise is nearest to the entropy that together have this probability; 1: all",
            Range(0, 1, above=True),
            row="float64",
            configurable=True,
        ),
    ] = None
    seed: Annotated[
        int | None,
        Parameter("the same seed draws the same tokens; none or -1: another one for each prompt", INT64, row="uint64"),
    ] = None
    min_tokens: Annotated[int | None, Parameter("no end token before so many tokens", Range(0), processes=True)] = None
    repetition_penalty: Annotated[
        float | None,
        Parameter(
            "divides logits above 0 of tokens in prompt or answer, multiplies those below",
            Range(0, 100, above=True),
            processes=True,
            configurable=True,
        ),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Parameter(
            "subtracted from a token's logit for each time that it is in the answer",
            Range(-2, 2),
            processes=True,
            configurable=True,
            in_file=False,
        ),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Parameter(
            "subtracted from a token's logit if it is in the answer",
            Range(-2, 2),
            processes=True,
            configurable=True,
            in_file=False,
        ),
    ] = None
    repeat_last_n: Annotated[
        int | None,
        Parameter(
            "the three penalties count each token among so many last ones of prompt and answer, and no other; "
            "0: there are none; -1: each looks back as it says",
            Range(-1),
            processes=True,
            cpu_only=True,
        ),
    ] = None
    dry_multiplier: Annotated[
        float | None,
        Parameter(
            "DRY: taken from the logits of tokens that would go on with a repetition; 0: nothing",
            Range(0, 100),
            processes=True,
            cpu_only=True,
        ),
    ] = None
    dry_base: Annotated[
        float | None,
        Parameter(
            "so many times that for each token that a repetition is longer than allowed",
            Range(1, 100),
            processes=True,
            cpu_only=True,
        ),
    ] = None
    dry_allowed_length: Annotated[
        int | None,
        Parameter("tokens that a repetition may have for nothing", Range(0), processes=True, cpu_only=True),
    ] = None
    dry_penalty_last_n: Annotated[
        int | None,
        Parameter(
            "repetitions are looked for in so many last tokens of prompt and answer; -1: in all, 0: in none",
            Range(-1),
            processes=True,
            cpu_only=True,
        ),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        Parameter(
            'texts that no repetition goes over, at most 32 of 64 characters; if left out: line ends, `:`, `"` and `*`',
            processes=True,
            cpu_only=True,
        ),
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None, Parameter("added to the logits of these token ids, each -100 to 100", processes=True)
    ] = None
    allowed_token_ids: Annotated[list[int] | None, Parameter("only these tokens", processes=True)] = None
    bad_words: Annotated[list[str] | None, Parameter("texts that the answer must not hold", processes=True)] = None
    watermarking_config: Annotated[
        WatermarkingConfig | None,
        Parameter(
            "a watermark in the answer, by transformers' names, which its detector finds", processes=True, cpu_only=True
        ),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, Parameter("tokens that end the answer, beside the model's end tokens")
    ] = None
    logprob_token_ids: Annotated[
        list[int] | None,
        Parameter("logprobs tell of these tokens, in this order, in place of the likeliest ones"),
    ] = None
    ignore_eos: Annotated[bool | None, Parameter("the model's end tokens do not end the answer")] = None
    include_stop_str_in_output: Annotated[bool | None, Parameter("the text keeps the stop string that ended it")] = None
    skip_special_tokens: Annotated[bool | None, Parameter("special tokens are left out of the text")] = None
    cache_salt: Annotated[
        str | None, Parameter("blocks of the prefix cache are shared with requests of the same salt only")
    ] = None


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
def sampling_parameters() -> dict[str, Parameter]:
    """The table, by name."""
    hints = get_type_hints(SamplingFields, include_extras=True)
    return {
        name: next(one for one in hints[name].__metadata__ if isinstance(one, Parameter)) for name in SAMPLING_FIELDS
    }


@cache
def ranges_of(kind: type[msgspec.Struct]) -> dict[str, Range]:
    """The ranges of a struct's fields, as their metadata say."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for one in getattr(hint, "__metadata__", ()):
            limit = one.range if isinstance(one, Parameter) else one
            if name in kind.__struct_fields__ and isinstance(limit, Range):
                found[name] = limit
    return found


@cache
def row_types() -> dict[str, str]:
    """The parameters that have an array in the worker's batch, with its dtype."""
    return {name: parameter.row for name, parameter in sampling_parameters().items() if parameter.row}


@cache
def default_of(name: str) -> Any:
    """What a parameter is where nothing is said of it; None where that is another thing each time."""
    for kind in (Sampling, Generation):
        for field in msgspec.structs.fields(kind):
            if field.name == name:
                made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
                return None if made is msgspec.NODEFAULT else made
    return None


SAMPLING_FIELDS = SamplingFields.__struct_fields__
PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
DRY = ("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
CPU_ONLY = tuple(name for name, parameter in sampling_parameters().items() if parameter.cpu_only)
PROCESSED = tuple(  # those of them that stand in Sampling
    name
    for name, parameter in sampling_parameters().items()
    if parameter.processes and name in Sampling.__struct_fields__
)
