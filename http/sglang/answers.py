"""Answers of SGLang's /generate. Each event of a stream says all of a choice that has come so far."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs

from ..errors import ApiError
from ..generation.choice import Choice, ChoiceUpdate, make_state
from ..generation.job import Job
from ..generation.logprobs import ENTRIES, LOWEST
from ..generation.times import JobTimes
from ..openai.schemas import Object
from ..openai.session_turns import TurnFormat
from ..openai.sessions import Continued, Sessions
from ..output.answer import DONE, SECOND, Answer, encode
from ..output.events import text_of
from ..output.turns import Turns
from ..output.writer import AnswerFormat
from ..pooling.written import written
from .requests import is_batch, sampling_of, start_of, wants_logprobs, wants_states
from .schemas import SglangGenerateRequest

NO_PROMPT: Object = {"input_token_logprobs": [], "input_top_logprobs": []}
Entry = tuple[float | None, int, str | None]  # logprob, id, text


@dataclass
class ChoiceResult:
    """All that has come of a choice."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, news: ChoiceUpdate) -> None:
        self.text += text_of(news.skipped) + text_of(news.pieces)
        self.ids += news.ids
        self.logprobs += news.passed + news.logprobs


class SglangAnswer(AnswerFormat):
    """Of any number of prompts and choices."""

    def __init__(self, answer: Answer, job: Job, times: Callable[[Job], JobTimes], body: SglangGenerateRequest) -> None:
        given = sampling_of(body)
        self._answer, self._job, self._times, self._rid = answer, job, times, body.rid
        self._many = is_batch(body) or (given.n or 1) > 1
        self._says_nothing = given.max_new_tokens == 0
        self._logprobs, self._start = wants_logprobs(body), start_of(body)
        self._by_ids, self._with_text = bool(body.token_ids_logprob), bool(body.return_text_in_logprobs)
        self._prompts: dict[int, Object] = {}  # of each prompt its logprobs, once all has come
        self._wants_states = wants_states(body)
        self._at_end = self._wants_states or self._start >= 0  # a stream tells more once all of it has come
        self._states: list[Object] = [{} for _ in job.choices]  # likewise
        self._told = [ChoiceResult() for _ in job.choices]
        self._ended = {choice.index for choice in job.choices if choice.skip_tokens}  # whose last event is out
        for choice in job.choices:  # a successor makes the same events of all that there is
            choice.counts_tokens, choice.skip_tokens = False, 0

    async def write_long(self) -> None:
        """Logprobs of prompts and hidden states, which an answer has at its end alone."""
        turns = Turns(ENTRIES)
        for choice in self._job.choices:
            await self._add_long(choice, turns)

    async def _add_long(self, choice: Choice, turns: Turns) -> None:
        prompt, width = choice.index // len(self._job.params), len(self._job.params)
        if self._logprobs and prompt not in self._prompts:
            self._prompts[prompt] = await self._of_prompt(self._job.choices[prompt * width], turns)
        if self._wants_states:
            self._states[choice.index] = await self._of_states(choice)

    def whole(self) -> Any:
        for choice in self._job.choices:
            self._told[choice.index].add(choice.take())
        parts = [self._part(choice) for choice in self._job.choices]
        return parts if self._many else parts[0]

    # --- streamed --------------------------------------------------------------------------------------------------

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        self._told[choice.index].add(news)
        if not (news.pieces or news.ended):
            return b""
        return self._written(choice)

    def _written(self, choice: Choice) -> bytes:
        part = self._part(choice)
        return _event(part | {"index": choice.index} if self._many else part)

    def state(self, choice: Choice) -> int:
        characters = max(len(self._told[choice.index].text), choice.skip_characters)
        return make_state(characters, int(choice.index in self._ended))

    async def ends(self) -> AsyncIterator[tuple[Choice, bytes]]:
        turns = Turns(ENTRIES)
        for choice in self._job.choices if self._at_end else ():
            if choice.index not in self._ended:
                await self._add_long(choice, turns)
                event, self._states[choice.index] = self._written(choice), {}
                self._ended.add(choice.index)
                yield choice, event

    def closing(self) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return _event(error.body()) + DONE

    # --- parts -----------------------------------------------------------------------------------------------------

    def _part(self, choice: Choice) -> Object:
        told = ChoiceResult() if self._says_nothing else self._told[choice.index]
        about: Object = {
            "id": self.id_of(choice.index),
            "finish_reason": self._reason(choice),
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": 0 if self._says_nothing else choice.tokens,
            "cached_tokens": choice.cached_tokens,
            "weight_version": "default",
        }
        if choice.finish_reason is not None:
            about["e2e_latency"] = self._times(self._job).total / SECOND
        if self._logprobs:
            about |= self._of_tokens("output", told.logprobs)
            about |= self._prompts.get(choice.index // len(self._job.params), NO_PROMPT)
        return {"text": told.text, "output_ids": told.ids, "meta_info": about | self._states[choice.index]}

    def id_of(self, index: int) -> str:
        """Of a choice, by which a session's turn is gone on from."""
        prompt = index // len(self._job.params)
        if isinstance(self._rid, list):
            return self._rid[prompt]
        name = self._rid or f"{self._answer.seed:016x}{self._answer.created:08x}"
        return f"{name}_{index}" if self._many else name

    def _reason(self, choice: Choice) -> Object | None:
        match choice.finish_reason:
            case None:
                return None
            case "length":
                return {"type": "length", "length": 0 if self._says_nothing else choice.tokens}
            case "abort":
                return {"type": "abort", "message": "It was aborted.", "status_code": None, "err_type": None}
            case "stop":
                ids = self._told[choice.index].ids
                matched = choice.stop_reason if choice.stop_reason is not None else ids[-1] if ids else None
                return {"type": "stop", "matched": matched}
        return {"type": choice.finish_reason}

    async def _of_prompt(self, choice: Choice, turns: Turns) -> Object:
        """Logprobs of the prompt from the wanted position on; its first token follows nothing, and has none."""
        if self._start < 0:
            return NO_PROMPT
        found, ids = choice.prompt_logprobs, choice.prompt_ids
        known = [found[at] for at in range(max(1, self._start), choice.prompt_tokens) if at in found]
        is_told = self._start == 0 and bool(ids)
        own = chain([(1, (None, ids[0], None))] if is_told else [], ((1, self._own(one)) for one in known))
        others = ((1 + len(one.best), self._best(one)) for one in known)
        return {
            "input_token_logprobs": await turns.list_as_json(own),
            self._name_of_best("input"): await turns.list_as_json(chain([(1, None)] if is_told else [], others)),
        }

    async def _of_states(self, choice: Choice) -> Object:
        """The prompt's rows as one list, then a row of each token but the last, of which nothing was computed."""
        if choice.hidden_states is None:
            return {}
        rows, columns, floats = choice.hidden_states
        size = len(floats) // rows
        end, split = size * (choice.prompt_tokens + choice.tokens - 1), size * choice.prompt_tokens
        parts = [part for part in (floats[:split], floats[split:end]) if part]
        made = await written([(len(part) // size, columns, part) for part in parts], by_token=True)
        behind = b"".join(b"," + bytes(one)[1:-1] for one in made[1:])
        return {"hidden_states": msgspec.Raw(b"[" + bytes(made[0]) + behind + b"]")}

    def _of_tokens(self, side: str, tokens: list[TokenLogprobs]) -> dict[str, list[Any]]:
        return {
            f"{side}_token_logprobs": [self._own(one) for one in tokens],
            self._name_of_best(side): [self._best(one) for one in tokens],
        }

    def _name_of_best(self, side: str) -> str:
        return f"{side}_token_ids_logprobs" if self._by_ids else f"{side}_top_logprobs"

    def _own(self, one: TokenLogprobs) -> Entry:
        return self._entry(one.text, one.id, one.logprob)

    def _best(self, one: TokenLogprobs) -> list[Entry]:
        return [self._entry(*best) for best in one.best]

    def _entry(self, text: bytes, token: int, logprob: float) -> Entry:
        return max(logprob, LOWEST), token, text.decode(errors="replace") if self._with_text else None


class SglangTurn(TurnFormat):
    """The same of a session's turn."""

    def __init__(self, form: SglangAnswer, job: Job, sessions: Sessions, turn: Continued) -> None:
        super().__init__(form, job, sessions, turn, form.id_of(0))
        self._long = form

    async def write_long(self) -> None:
        await self._long.write_long()

    def ends(self) -> AsyncIterator[tuple[Choice, bytes]]:
        return self._long.ends()


def _event(body: Object) -> bytes:
    return b"data: " + encode(body) + b"\n\n"
