"""What pooling models make of prompts, for scripts: under the names that vLLM's users know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.ranges import check_ranges
from actorserve.http.generation.job import Job
from actorserve.http.pooling.answers import matrix, numbers, pair_scores
from actorserve.http.pooling.pairs import Comparison, comparison_of, pair_prompts, pairs
from actorserve.http.pooling.plugin import PLUGIN
from actorserve.http.pooling.prepare import (
    PoolingWork,
    check_task,
    classification,
    embedding,
    pooling_of,
    prompt_named,
    score_of,
    work,
)
from actorserve.http.pooling.schemas import EmbeddingRequest, PairFields
from actorserve.http.settings import Settings

from ..model.pooling.spec import PoolingSpec
from ..protocol.request import BY_TOKEN, EMBED, TOKEN_EMBED, Pooling
from ..protocol.topics.prompts import Prompt, TextPrompt
from .inputs.media import GivenPictures
from .inputs.prompts import Cut, GivenPrompt, PromptType, given_prompts
from .inputs.tokenization import cut_of, tokenized

if TYPE_CHECKING:
    import numpy as np

    from .batch import Decode

T = TypeVar("T")
EXTRA = ("max_tokens_per_query", "max_tokens_per_doc", "chat_template_kwargs")
Each = Sequence["PoolingParams"]


class PoolingParams(msgspec.Struct, kw_only=True, frozen=True):
    """What is to be made of a prompt. `prompt_name`: a prompt of sentence-transformers' that stands before it;
    `instruction`: by what pairs are compared, for a model that is told so.
    """

    task: str | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    use_activation: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_name: str | None = None
    instruction: str | None = None
    extra_kwargs: dict[str, Any] | None = None  # of scores: max_tokens_per_query, max_tokens_per_doc and so on (EXTRA)


P = TypeVar("P", "PoolingParams | None", "PoolingParams | Sequence[PoolingParams] | None")


def cut_at(params: P, most: int | None) -> P:
    """The same, with prompts cut at so many tokens, if any are said."""
    if most is None:
        return params
    if isinstance(params, Sequence):
        return [msgspec.structs.replace(one, truncate_prompt_tokens=most) for one in params]
    return msgspec.structs.replace(params or PoolingParams(), truncate_prompt_tokens=most)


@dataclass(frozen=True)
class PoolingOutput:
    """A float32 array: a vector, or a row for each token."""

    data: np.ndarray


@dataclass(frozen=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class ClassificationOutput:
    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclass(frozen=True)
class ScoringOutput:
    score: float


@dataclass(frozen=True)
class PoolingRequestOutput(Generic[T]):
    """What was made of one prompt."""

    request_id: str
    outputs: T
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    """Of `LLM.embed`."""


class ClassificationRequestOutput(PoolingRequestOutput[ClassificationOutput]):
    """Of `LLM.classify`."""


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    """Of `LLM.score`."""


KINDS: dict[type, type[PoolingRequestOutput[Any]]] = {
    EmbeddingOutput: EmbeddingRequestOutput,
    ClassificationOutput: ClassificationRequestOutput,
    ScoringOutput: ScoringRequestOutput,
}


@dataclass(frozen=True)
class PooledPrompt:
    """One prompt with what is asked of it: a batch has it as a PromptRequest."""

    request_id: str
    asked: PoolingWork
    make: Callable[[Job], Any]

    @property
    def sequences(self) -> int:
        """How many prompts the engine is given for it."""
        return len(self.asked.prompts)

    def new_job(self) -> Job:
        """To be made in the event loop."""
        return Job(self.asked.prompts, [self.asked.params], self.asked.rendering, wants_ids=True)

    def output(self, job: Job, decode: Decode) -> PoolingRequestOutput[Any]:
        """What has come of it."""
        ids = [token for choice in job.choices for token in choice.prompt_ids]
        made = self.make(job)
        kind = KINDS.get(type(made), PoolingRequestOutput)
        return kind(self.request_id, made, ids, num_cached_tokens=job.cached_tokens)


class PooledPrompts:
    """Makes them of what scripts give."""

    def __init__(self, settings: Settings, next_id: Callable[[], str], pictures: GivenPictures | None = None) -> None:
        self._settings, self._next_id, self._pictures = settings, next_id, pictures

    def of_task(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: PoolingParams | Each | None,
        task: str | None,
        make: Callable[[str], Callable[[Job], Any]],
        tokenization: Mapping[str, Any] | None = None,
    ) -> list[PooledPrompt]:
        """One for each prompt; of this task, if that is given, else of the parameters' or the model's first. `make`: an
        output of a task.
        """
        spec = self._spec()
        given = tokenized(given_prompts(prompts, self._pictures), tokenization)
        each = list(params) if isinstance(params, Sequence) else [params or PoolingParams()] * len(given)
        if len(each) != len(given):
            raise ValueError(f"{len(given)} prompts and {len(each)} pooling_params do not match")
        return [self._one(index, *one, task, make, spec) for index, one in enumerate(zip(given, each, strict=True))]

    def task_of(self, task: str) -> str:
        """The task, or what the model is for, where that of a plugin is asked for."""
        return self._spec().tasks[0] if task == PLUGIN else task

    def made(self, prompts: list[Prompt], params: PoolingParams | Each | None, task: str) -> list[PooledPrompt]:
        """One for each prompt that a plugin has made; ValueError if there are none."""
        if not prompts:
            raise ValueError("the plugin has made no prompts of the data")
        if isinstance(params, Sequence):
            raise ValueError("pooling_params of data are those of all its prompts: one is taken")
        body, spec = _body(params or PoolingParams()), self._spec()
        try:
            wanted = _wanted(body, spec, task)
            return [self._prompt([prompt], body, wanted, "data", array_output(task)) for prompt in prompts]
        except ApiError as error:
            raise ValueError(error.message) from None

    def scores(
        self,
        data_1: str | list[str],
        data_2: str | list[str],
        params: PoolingParams | None,
        tokenization: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> list[PooledPrompt]:
        """One for each pair of texts; `template` makes one text of both."""
        spec, params = self._spec(), params or PoolingParams()
        first, second = ([data] if isinstance(data, str) else data for data in (data_1, data_2))
        body = _body(params, cut_of(tokenization))
        try:
            wanted = score_of(body, spec)
            if params.task not in (None, wanted.task):
                raise ValueError(f"the task of pooling_params is {params.task}, and scores are of {wanted.task}")
            compared = pairs(first, second, ("data_1", "data_2"))
            fields = _pair_fields(params, body.truncate_prompt_tokens)
            how = comparison_of(fields, spec, template or "")
            body.truncate_prompt_tokens = fields.truncate_prompt_tokens
            return [self._pair(pair, body, wanted, spec, how) for pair in compared]
        except ApiError as error:
            raise ValueError(error.message) from None

    def _pair(
        self, pair: tuple[str, str], body: EmbeddingRequest, wanted: Pooling, spec: PoolingSpec, how: Comparison
    ) -> PooledPrompt:
        prompts, _ = pair_prompts([pair], [("data_1", "data_2")], spec, how)
        return self._prompt(
            prompts, body, wanted, "data_2", lambda job: ScoringOutput(pair_scores(job, [pair], spec, how.most)[0])
        )

    def _one(
        self,
        index: int,
        given: GivenPrompt,
        params: PoolingParams,
        task: str | None,
        make: Callable[[str], Callable[[Job], Any]],
        spec: PoolingSpec,
    ) -> PooledPrompt:
        body = _body(params, given.cut)
        if given.cache_salt is not None:
            raise ValueError(f"prompt {index}: cache_salt is for prompts of which text is generated")
        if task and params.task and task != params.task:
            raise ValueError(f"prompt {index}: the task of pooling_params is {params.task}, and {task} is asked for")
        task = task or params.task or spec.tasks[0]
        try:
            wanted = _wanted(body, spec, task)
            prompt = given.prompt
            if isinstance(prompt, TextPrompt):
                prompt = msgspec.structs.replace(prompt, text=prompt_named(body, spec) + prompt.text)
            return self._prompt([prompt], body, wanted, "prompt", make(task))
        except ApiError as error:
            raise ValueError(f"prompt {index}: {error.message}") from None

    def _prompt(
        self, prompts: list[Prompt], body: EmbeddingRequest, wanted: Pooling, field: str, make: Callable[[Job], Any]
    ) -> PooledPrompt:
        request_id = self._next_id()
        return PooledPrompt(request_id, work(body, self._settings, prompts, wanted, (request_id, "", field)), make)

    def _spec(self) -> PoolingSpec:
        try:
            return pooling_of(self._settings)
        except ApiError:
            raise ValueError("this model generates text; LLM(..., runner='pooling') makes vectors of it") from None


def _body(params: PoolingParams, cut: Cut | None = None) -> EmbeddingRequest:
    """The same as a request has it."""
    names = ("dimensions", "normalize", "use_activation", "truncate_prompt_tokens", "prompt_name")
    body = EmbeddingRequest(**{name: getattr(params, name) for name in names})
    if cut is not None:
        body.truncate_prompt_tokens, body.truncation_side = cut
    return body


def _pair_fields(params: PoolingParams, keep: int | None) -> PairFields:
    """With what extra_kwargs say of pairs; ValueError for what they cannot."""
    extra = params.extra_kwargs or {}
    if unknown := next((name for name in extra if name not in EXTRA), None):
        raise ValueError(f"extra_kwargs: {unknown} is none of {', '.join(EXTRA)}")
    given = {"instruction": params.instruction, "truncate_prompt_tokens": keep, **extra}
    try:
        fields = msgspec.convert(given, PairFields)
    except msgspec.ValidationError as error:
        raise ValueError(f"extra_kwargs: {error}") from None
    check_ranges(fields)
    return fields


def _wanted(body: EmbeddingRequest, spec: PoolingSpec, task: str) -> Pooling:
    check_task(spec, task, "task")
    return embedding(body, spec, task) if task in (EMBED, TOKEN_EMBED) else classification(body, spec, task)


def embedding_output(task: str) -> Callable[[Job], EmbeddingOutput]:
    return lambda job: EmbeddingOutput(numbers(job.choices[0]))


def classification_output(task: str) -> Callable[[Job], ClassificationOutput]:
    return lambda job: ClassificationOutput(numbers(job.choices[0]))


def array_output(task: str) -> Callable[[Job], PoolingOutput]:
    """Of one task: a vector, or a matrix of one with a row for each token."""

    def make(job: Job) -> PoolingOutput:
        import numpy as np

        rows, columns, data = matrix(job.choices[0])
        made = np.frombuffer(data, np.float32).reshape(rows, columns)
        return PoolingOutput(made if task in BY_TOKEN else made[0])

    return make
