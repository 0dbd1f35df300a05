"""`LLM.beam_search`: the likeliest answers instead of drawn ones, as HTTP's use_beam_search finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from actorserve.http.errors import ApiError
from actorserve.http.generation.beam_search import Beam, BeamSearch, check_beams
from actorserve.http.generation.prepare import PreparedRequest, ask_completion
from actorserve.http.openai.schemas import CompletionRequest
from actorserve.http.settings import ServedAdapter, Settings

from ...frontend.engine import FrontendEngine
from ..engine import FrontendThread
from ..inputs.lora import LoadedAdapters, LoRARequest, LoRARequests
from ..inputs.media import GivenPictures
from ..inputs.prompts import GivenPrompt, PromptType, given_prompts

LONGEST_S = 3600.0  # of one prompt


class BeamSearchParams(msgspec.Struct):
    """As vLLM has them. Beams have the model's own logprobs, so that `temperature` is 0."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0

    def to_request(self) -> CompletionRequest:
        """The request, without a prompt, that asks for the same; ValueError names what cannot be."""
        if self.temperature != 0:
            raise ValueError("temperature must be 0: beams are compared by the model's own logprobs.")
        for name in ("beam_width", "max_tokens"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {getattr(self, name)!r}.")
        request = CompletionRequest(
            prompt="",
            n=self.beam_width,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            length_penalty=self.length_penalty,
            use_beam_search=True,
        )
        try:
            check_beams(request)
        except ApiError as error:
            raise ValueError(error.message.replace("n (or best_of)", "beam_width")) from None
        return request


@dataclass(frozen=True)
class BeamSearchSequence:
    """One answer: `tokens` and `text` begin with the prompt."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str
    stop_reason: int | str | None = None


@dataclass(frozen=True)
class BeamSearchOutput:
    """The answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearchMethods:
    """What LLM inherits of it."""

    _engine: FrontendThread
    _settings: Settings
    _pictures: GivenPictures
    _adapters: LoadedAdapters

    def _check_usable(self) -> None:
        raise NotImplementedError

    def _check_generates(self) -> None:
        raise NotImplementedError

    def _load_adapter(self, given: LoRARequest) -> ServedAdapter:
        raise NotImplementedError

    def beam_search(
        self,
        prompts: PromptType | Sequence[PromptType],
        params: BeamSearchParams,
        lora_request: LoRARequests = None,
        use_tqdm: bool | Callable[..., Any] = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """The `beam_width` likeliest answers to each prompt; one prompt after the other: no bar is shown, and any
        `concurrency_limit` is kept.
        """
        self._check_generates()
        self._check_usable()
        given = given_prompts(prompts, self._pictures)
        names = self._adapters.load(lora_request, len(given), self._load_adapter)
        asked = [self._asked(index, *one, params) for index, one in enumerate(zip(given, names, strict=True))]
        return [self._beams(*one) for one in zip(given, asked, strict=True)]

    def _asked(
        self, index: int, given: GivenPrompt, adapter: str | None, params: BeamSearchParams
    ) -> tuple[CompletionRequest, PreparedRequest]:
        """The request for a prompt; ValueError says what cannot be, before any is computed."""
        request = params.to_request()
        request.model, request.prompt, request.cache_salt = adapter, given.like, given.cache_salt
        try:
            return request, ask_completion(request, self._settings, "")
        except ApiError as error:
            raise ValueError(f"prompt {index}: {error}") from None

    def _beams(self, given: GivenPrompt, wanted: tuple[CompletionRequest, PreparedRequest]) -> BeamSearchOutput:
        request, asked = wanted
        settings = self._settings

        async def search(frontend: FrontendEngine) -> tuple[list[int], list[Beam]]:
            beams: Any = BeamSearch(frontend, request, asked, settings.end_tokens)
            found: tuple[list[int], list[Beam]] = await beams.run(
                given.prompt, request.max_tokens or 1, settings.max_model_len
            )
            return found

        prompt, beams = self._engine.ask(search, LONGEST_S, "its beams were found")
        return BeamSearchOutput([self._sequence([*prompt, *beam.tokens], beam) for beam in beams])

    def _sequence(self, tokens: list[int], beam: Beam) -> BeamSearchSequence:
        return BeamSearchSequence(tokens, self._engine.decode(tokens), beam.logprob, beam.reason)
