"""All that crosses a ring: msgspec structs, grouped by the actor that receives them; those of one subject that several
receive are in topics/.

A `ref` names one sequence (one choice of one request): `generation << 32 | slot` of the request table. A message is a
hint; what it speaks of stands in the table (shm/table/table.py), so every message may arrive twice. Steps, with the
arrays in them, are in step.py. Leaf: it knows no actor.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from .media import MediaSource, PreparedMedia
from .request import Think
from .step import KVLayout, Step, StepDone
from .topics.adapters import (
    AdapterChanged,
    AdapterRead,
    AdapterReplaced,
    DropAdapter,
    LoadAdapter,
    ReadAdapter,
    UnloadAdapter,
)
from .topics.administration import (
    AskedOfScheduler,
    CallMethod,
    EngineAnswer,
    ForgetMedia,
    LookAtSleep,
    MediaForgotten,
    MethodCalled,
    Parked,
    Profiled,
    ResetEncoderCache,
    SchedulerAnswer,
    Unloadable,
)
from .topics.calls import Detokenize, Detokenized, Measure, Measured, Sync, Synced, Tokenize, Tokenized
from .topics.io_processors import PostProcess, PostProcessed, PreProcess, PreProcessed
from .topics.prompts import Prompt
from .topics.tiers import BlocksLoaded, Fetched, LoadBlocks
from .topics.tools import ToolCalled, ToolsListed
from .wire import Message as Message  # for whoever sends one


class Finish(IntEnum):
    """Why a sequence ended: the low half of the table's `finish` word."""

    NONE = 0
    STOP = 1  # an end token or one of the request's stop_token_ids; it is the last token of the log
    LENGTH = 2
    STOP_STRING = 3  # the detokenizer found one of the request's stop strings
    ABORT = 4  # cancelled by its frontend
    REJECTED = 5  # the waiting queue was full
    ERROR = 6  # the engine could not go on with it
    GRAMMAR = 7  # its grammar failed on the way: what there is of the answer is no answer
    MEDIA = 8  # of one of its pictures no embeddings can be made
    ADAPTER = 9  # its adapter was unloaded before it was admitted, or can no longer be read
    PLUGIN = 11  # a logits processor of --logits-processors failed, or took too long
    UNHEEDED = 12  # no engine there is does what it asks for
    UNLOADABLE = 13  # its model was to be loaded for it, and cannot be
    REPETITION = 10  # the detokenizer found a pattern that came too often; the table's word is STOP_STRING then


FAILURES = frozenset(  # nobody got anything of it
    {
        *(Finish.REJECTED, Finish.ERROR, Finish.GRAMMAR, Finish.MEDIA, Finish.ADAPTER, Finish.PLUGIN),
        *(Finish.UNHEEDED, Finish.UNLOADABLE),
    }
)


# --- to the renderer ---------------------------------------------------------------------------------------------


class Render(Message, frozen=True, tag=1):
    """Frontend → renderer: put this prompt into the slots of all `refs` and admit them."""

    refs: list[int]
    prompt: Prompt
    max_tokens: int | None = None  # None: up to the model's length
    cap: int | None = None  # where there is no max_tokens: the model's own limit of answers
    truncate_prompt_tokens: int | None = None  # keep only so many of the last; -1: as many as the model takes
    keep_first: bool = False  # truncation keeps the first instead
    cache_salt: str = ""  # only requests with the same one share KV blocks
    adapter: int = 0  # likewise
    bad_words: list[str] = []
    think: Think | None = None
    thinking_budget: int | None = None  # tokens
    constraint: bytes | None = None  # JSON of a Constraint (grammar/compiler.py)
    constrained_by: str = "response_format"  # the field that wants it
    pools: bool = False  # nothing is generated: the prompt may be as long as the model takes
    engine: int | None = None  # that shall compute it; None: whichever costs least
    field: str = ""  # where its prompts stand in the request, if not in `messages` or `prompt`
    media: list[PreparedMedia] = []
    given: list[list[int]] = []  # of each ref, the tokens of its answer that another server has given out
    most_tokens: int | None = None  # that its key has left for prompt and answer together; the answer is cut there
    most_generated: int | None = None  # that its key may have of one answer


ToRenderer = Render | Tokenize | Detokenize | Measure | PreProcess | PostProcess | Sync


# --- to a media actor --------------------------------------------------------------------------------------------


class MediaRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A record of the inbox: what goes on to a renderer once its pictures and sounds are processed."""

    renderer: str
    message: Render | Tokenize
    sources: list[MediaSource]


class Prepare(Message, frozen=True, tag=50):
    """Frontend → media: there is a MediaRequest for this use of a slot, or this call, in the inbox."""

    owner: int  # a ref, or the number of a call
    place: int  # of the inbox's record
    is_call: bool = False


ToMedia = Prepare | ForgetMedia


# --- to the scheduler --------------------------------------------------------------------------------------------


class Admit(Message, frozen=True, tag=10):
    """Renderer → scheduler: these slots hold a prompt."""

    refs: list[int]


class Cancel(Message, frozen=True, tag=11):
    """Frontend → scheduler: the table's cancel word of these slots is set."""

    refs: list[int]


class Stopped(Message, frozen=True, tag=12):
    """Detokenizer → scheduler: the table's stop word of these slots is set."""

    refs: list[int]


class WorkerReady(Message, frozen=True, tag=13):
    """Worker → scheduler: a worker is up, without any KV contents but those that it was left, or (same incarnation)
    answers a Hello.
    """

    incarnation: int
    num_blocks: int
    step: int = 0  # the last step that it ran
    replaced: bool = False  # the one before it was told to end: no request is to blame
    layout: KVLayout = KVLayout()
    drafts: int = 0  # that a row may have in a step
    adapters: list[int] = []  # that it has in memory
    jumps: int = 0  # tokens beside its next one that a row with a grammar may have in a step, without a choice
    kept_since: int = 0  # its KV memory is that of all lives from this one on; 0: it is nobody else's
    joins: bool = False  # it tells of two brief steps at once: a third is to be there meanwhile


class StepFailed(Message, frozen=True, tag=15):
    """Worker → scheduler: this step could not be computed; its KV contents are not to be used."""

    epoch: int
    step: int
    reason: str


ToScheduler = (
    Admit
    | Cancel
    | Stopped
    | AskedOfScheduler
    | WorkerReady
    | StepDone
    | StepFailed
    | MethodCalled
    | Parked
    | Unloadable
    | Fetched
    | BlocksLoaded
    | LoadAdapter
    | UnloadAdapter
    | AdapterRead
    | AdapterReplaced
)


# --- to the worker -----------------------------------------------------------------------------------------------


class Hello(Message, frozen=True, tag=21):
    """Scheduler → worker: a scheduler has started; answer with WorkerReady."""


ToWorker = Step | Hello | ResetEncoderCache | ReadAdapter | DropAdapter | LookAtSleep | CallMethod | LoadBlocks


# --- to the detokenizer ------------------------------------------------------------------------------------------


class Advance(Message, frozen=True, tag=30):
    """Scheduler → detokenizer: the token log or the finish word of these slots has moved."""

    refs: list[int]


class Resend(Message, frozen=True, tag=31):
    """Frontend → detokenizer: say the text of these slots again from its beginning; its reader is another one."""

    refs: list[int]


ToDetokenizer = Advance | Resend


# --- to the frontend ---------------------------------------------------------------------------------------------


class Rendered(Message, frozen=True, tag=40):
    """Renderer → frontend: these slots hold their prompt and were sent to the scheduler."""

    refs: list[int]
    prompt_tokens: int


NO_QUOTA = "insufficient_quota"  # the code of an error: too little is left of a key's budget


class Failed(Message, frozen=True, tag=41):
    """Renderer or media → frontend: these slots were not admitted (or this call failed), and it is done with them."""

    refs: list[int]
    status: int
    message: str
    param: str | None = None
    call: int = 0
    code: str | None = None  # how clients know this error, beside its status
    lengths: tuple[int, int] | None = None  # tokens of a prompt that is too long (or of its beginning), and the most


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A token with its logprob, its rank among all tokens, and the most likely tokens as (bytes, id, logprob)."""

    text: bytes
    id: int
    logprob: float
    rank: int
    best: list[tuple[bytes, int, float]] = []


class Delta(Message, frozen=True, tag=42):
    """Detokenizer → frontend: text of one sequence from character `offset` on.

    After a detokenizer's death text may come again: what lies before the characters already had is dropped.
    `finish` ends the choice for the client; `last`: the scheduler let go of the slot, some time after a stop string.
    """

    ref: int
    offset: int
    text: str
    tokens: int  # generated tokens up to here
    finish: int = 0
    stop_reason: str | int | None = None
    last: bool = False
    thought: int = 0  # tokens of them that are thinking, where that is counted
    logprobs: list[TokenLogprobs] = []  # where logprobs are asked for: those of the last tokens up to `tokens`


class Resent(Message, frozen=True, tag=52):
    """Detokenizer → frontend: from here on all of these slots' text is said, with what comes with it."""

    refs: list[int]


class PromptTokenLogprobs(Message, frozen=True, tag=46):
    """Detokenizer → frontend: logprobs of a prompt's tokens from position `start` on. May come again."""

    ref: int
    start: int
    logprobs: list[TokenLogprobs]


ToFrontend = (
    Rendered
    | Failed
    | Delta
    | Resent
    | PromptTokenLogprobs
    | Tokenized
    | Detokenized
    | Measured
    | PreProcessed
    | PostProcessed
    | Synced
    | SchedulerAnswer
    | MediaForgotten
    | AdapterChanged
    | ToolsListed
    | ToolCalled
)

# --- to the steward, which stands for detokenizers and frontends of servers elsewhere -------------------------------

ToSteward = Advance | EngineAnswer | AdapterChanged | Profiled

ToCaretaker = Sync  # nobody sends it any
