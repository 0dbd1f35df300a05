"""Answers of Text Generation Inference's API: a text with its tokens, or an event for each token, the last with all."""

from __future__ import annotations

import codecs
from collections.abc import Collection
from typing import Any

from actorserve.actors.protocol.messages import TokenLogprobs

from ..errors import ApiError
from ..generation.choice import Choice, ChoiceUpdate
from ..generation.job import Job
from ..generation.logprobs import LOWEST
from ..openai.schemas import Object
from ..output.answer import encode
from ..output.events import Content
from ..output.writer import AnswerFormat
from .errors import body_of
from .requests import parameters_of
from .schemas import TgiRequest


class TgiAnswer(AnswerFormat):
    """Of one choice."""

    def __init__(self, job: Job, body: TgiRequest, ends: Collection[int], listed: bool = False) -> None:
        """`ends`: ids of tokens that end a text and are none. `listed`: the whole answer stands in a list."""
        self._job, self._body, self._wants = job, body, parameters_of(body)
        self._ends, self._listed = ends, listed
        self._text = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def whole(self) -> Any:
        (choice,) = self._job.choices
        news = choice.take()
        self._add(news)
        told: Object = {"generated_text": self._generated()}
        if self._wants.details:
            tokens = self._tokens(news)
            told["details"] = self._details(choice) | {"prefill": [], "tokens": tokens}
            if self._wants.top_n_tokens:
                told["details"]["top_tokens"] = [self._top(one) for one in news.logprobs]
        return [told] if self._listed else told

    # --- streamed --------------------------------------------------------------------------------------------------

    def update(self, choice: Choice) -> bytes:
        news = choice.take()
        self._add(news)
        before = choice.logprob_tokens - len(news.logprobs)
        events: list[Object] = []
        for number, token in enumerate(self._tokens(news), before + 1):
            events.append({"index": number, "token": token, "generated_text": None, "details": None})
            if self._wants.top_n_tokens:
                events[-1]["top_tokens"] = self._top(news.logprobs[number - before - 1])
        if news.ended:
            if not events:  # it was ended from without
                nothing = {"id": 0, "text": "", "logprob": None, "special": True}
                events.append({"index": before + 1, "token": nothing})
            events[-1]["generated_text"] = self._generated()
            if self._wants.details:
                events[-1]["details"] = self._details(choice) | {"input_length": choice.prompt_tokens}
        return b"".join(map(_event, events))

    def failed(self, error: ApiError) -> bytes:
        return _event(body_of(error))

    # --- parts -----------------------------------------------------------------------------------------------------

    def _add(self, news: ChoiceUpdate) -> None:
        """The text goes on; of what the client has, too."""
        self._text += "".join(piece.text for piece in (*news.skipped, *news.pieces) if isinstance(piece, Content))
        for token in news.passed:
            self._text_of(token)

    def _generated(self) -> str:
        return self._body.inputs + self._text if self._wants.return_full_text else self._text

    def _tokens(self, news: ChoiceUpdate) -> list[Object]:
        """Each with its part of the text: what begins a character is told with the token that ends it."""
        return [self._token(one.id, self._text_of(one), one.logprob) for one in news.logprobs]

    def _text_of(self, token: TokenLogprobs) -> str:
        """What ends it has none, as in the whole text."""
        return "" if token.id in self._ends else self._decoder.decode(token.text)

    def _top(self, token: TokenLogprobs) -> list[Object]:
        return [self._token(id_, text.decode(errors="replace"), logprob) for text, id_, logprob in token.best]

    def _token(self, id_: int, text: str, logprob: float) -> Object:
        return {"id": id_, "text": text, "logprob": max(logprob, LOWEST), "special": id_ in self._ends}

    def _details(self, choice: Choice) -> Object:
        reason = choice.finish_reason
        if reason == "stop":
            reason = "stop_sequence" if isinstance(choice.stop_reason, str) else "eos_token"
        return {"finish_reason": reason, "generated_tokens": choice.tokens, "seed": self._wants.seed}


def _event(body: Object) -> bytes:
    return b"data: " + encode(body) + b"\n\n"
