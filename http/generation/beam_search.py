"""Beam search: the likeliest answers instead of drawn ones, by asking for one token after the other.

Each step asks for the likeliest next tokens of all beams at once; what the beams have in common is in the prefix cache.
Score of a beam: sum of its logprobs / (its tokens ** length_penalty), the end token not counted, as in transformers and
in Wu et al. 2016 (GNMT).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import msgspec

from actorserve.actors.accounts.account import Account
from actorserve.actors.model.encoder_decoder.spec import EncoderSpec
from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.request import USUAL_LOGPROBS, Generation, Sampling, default_of
from actorserve.actors.protocol.sampling.fields import sampling_parameters
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TokenPrompt

from ..errors import ApiError, bad_request
from ..openai.schemas import GenerationFields
from .job import Engine, Job
from .prepare import PreparedRequest
from .structured_output import OTHER_NAMES

MAX_WIDTH = USUAL_LOGPROBS // 2
REFUSED = (
    *("stream", "stop", "prompt_logprobs", "response_format", "structured_outputs", "tools", "echo"),
    *("truncate_prompt_tokens", "thinking_token_budget", "return_token_ids", "repetition_detection", *OTHER_NAMES),
    *("logprob_token_ids", "return_hidden_states", "return_prompt_token_ids"),
    *(name for name, parameter in sampling_parameters().items() if parameter.processes),
)
NOTHING: tuple[object, ...] = (None, False, [], {}, 0, "")
NEUTRAL: dict[str, tuple[object, ...]] = {  # values that ask for nothing, where 0 asks for something
    **{name: (None, default_of(name), [], {}) for name, one in sampling_parameters().items() if one.processes},
    "prompt_logprobs": (None,),
    "truncate_prompt_tokens": (None,),
    "thinking_token_budget": (None, -1),
}


@dataclass(frozen=True)
class Beam:
    """An answer so far."""

    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    reason: str = "length"
    told: list[TokenLogprobs] = field(default_factory=list)  # of its tokens, where logprobs are wanted

    def score(self, penalty: float) -> float:
        return self.logprob / float(max(1, len(self.tokens)) ** penalty)


def check_beams(request: GenerationFields) -> None:
    """What goes with beam search."""
    if not request.use_beam_search:
        if request.length_penalty not in (None, 1):
            raise bad_request("length_penalty goes with use_beam_search.", "length_penalty")
        return
    if width_of(request) > MAX_WIDTH:
        raise bad_request(f"use_beam_search takes n (or best_of) of at most {MAX_WIDTH}.", "n")
    if request.length_penalty is not None and not -10 <= request.length_penalty <= 10:
        raise bad_request("length_penalty must be between -10 and 10.", "length_penalty")
    for name in REFUSED:
        value = getattr(request, name, None)
        if value is not False and value not in NEUTRAL.get(name, NOTHING):
            raise bad_request(f"{name} cannot be combined with use_beam_search.", name)


def width_of(request: GenerationFields) -> int:
    """How many beams there are."""
    return max(request.n or 1, request.best_of or 1)


class BeamSearch:
    """One request's."""

    def __init__(
        self,
        engine: Engine,
        request: GenerationFields,
        asked: PreparedRequest,
        end_tokens: list[int],
        encoder: EncoderSpec | None = None,
        account: Account | None = None,
    ) -> None:
        """`encoder`: of a model that reads the prompt apart from what it writes; `account`: whose key asks."""
        self._engine, self._encoder = engine, encoder
        self._width = width_of(request)
        self._most = None if account is None else account.max_tokens
        self._penalty = 1.0 if request.length_penalty is None else request.length_penalty
        own = request.stop_token_ids or []
        self._ends = frozenset([*own, *([] if request.ignore_eos else end_tokens)])
        given = msgspec.msgpack.decode(asked.params[0], type=Generation)
        self._told = given.sampling.logprobs
        drawn = Sampling(0, temperature=0.0, logprobs=max(2 * self._width, self._told))
        self._params = msgspec.msgpack.encode(
            Generation(
                drawn,
                ignore_eos=True,
                priority=given.priority if account is None else account.priority_of(given.priority),
                request_id=given.request_id,
                cache_salt=given.cache_salt,
                adapter=given.adapter,
            )
        )
        self._rendering = {"cache_salt": given.cache_salt, "adapter": given.adapter, "max_tokens": 1}
        self._found: list[tuple[list[int], list[Beam]]] = []  # of each prompt its tokens and its best beams so far

    def used(self, wanted: int) -> tuple[int, int]:
        """Tokens of the prompts, and of so many answers to each, as far as they have come."""
        answers = (beam for _, beams in self._found for beam in beams[:wanted])
        return sum(len(prompt) for prompt, _ in self._found), sum(len(beam.tokens) for beam in answers)

    async def run(self, prompt: Prompt, most: int | None, max_model_len: int) -> tuple[list[int], list[Beam]]:
        """(the prompt's tokens, the best beams, best first)."""
        tokens, _ = await self._engine.tokenize(prompt, False)
        room = max_model_len - len(tokens)
        if self._encoder is not None:
            room = self._encoder.decoder_longest - len(self._encoder.start)
        if room < 1 or (most is not None and most > room):
            text = f"This model's maximum context length is {max_model_len} tokens, and the prompt has {len(tokens)}."
            raise bad_request(text, "messages" if isinstance(prompt, ChatPrompt) else "prompt")
        beams, done = [Beam()], list[Beam]()
        self._found.append((tokens, beams))
        limit = room if most is None else most
        for _ in range(limit if self._most is None else min(limit, self._most)):
            found = await self._step(tokens, beams)
            done = self._best([*done, *(beam for beam in found if beam.reason == "stop")])
            beams = [beam for beam in found if beam.reason != "stop"][: self._width]
            self._found[-1] = tokens, self._best([*done, *beams])
            enough = len(done) == self._width and bool(beams)
            if not beams or (enough and done[-1].score(self._penalty) >= beams[0].score(self._penalty)):
                break
        return self._found[-1]

    def _best(self, beams: list[Beam]) -> list[Beam]:
        """As many as are told, best first: of those who have ended no other is ever among them."""
        return sorted(beams, key=lambda beam: -beam.score(self._penalty))[: self._width]

    def _job(self, prompt: list[int], beams: list[Beam]) -> Job:
        """That makes the next token of each."""
        if self._encoder is None:
            return Job([TokenPrompt(prompt + beam.tokens) for beam in beams], [self._params], self._rendering)
        limit = len(beams[0].tokens) + 1  # what a beam has is as if it had been written in this slot
        job = Job([TokenPrompt(prompt) for _ in beams], [self._params], {**self._rendering, "max_tokens": limit})
        job.given = [beam.tokens for beam in beams]
        return job

    async def _step(self, prompt: list[int], beams: list[Beam]) -> list[Beam]:
        """All beams with one token more, likeliest first: enough of them, though some may have ended."""
        job = self._job(prompt, beams)
        self._engine.submit(job)
        try:
            await asyncio.shield(job.done)
        finally:
            self._engine.release(job)
        longer = []
        for beam, choice in zip(beams, job.choices, strict=True):
            if not choice.logprobs:
                raise ApiError(500, "The engine could not compute this request.")
            best = choice.logprobs[-1].best
            for rank, (text, token, logprob) in enumerate(best, 1):
                whole = beam.logprob + logprob
                if token in self._ends:
                    longer.append(replace(beam, logprob=whole, reason="stop"))
                else:
                    told = [TokenLogprobs(text, token, logprob, rank, best[: self._told])] if self._told >= 0 else []
                    longer.append(Beam([*beam.tokens, token], whole, told=beam.told + told))
        return sorted(longer, key=lambda beam: -beam.logprob)[: 2 * self._width]
