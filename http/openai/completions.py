"""Answers of /v1/completions: text, whole or in parts; with the prompt before it where it is to be echoed."""

from __future__ import annotations

from typing import Any

from actorserve.actors.protocol.messages import TokenLogprobs

from ..generation.choice import Choice, ChoiceUpdate, likelihood
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..generation.logprobs import LogprobLists, joined
from ..output.answer import Answer, TextFormat, encode, last_state, usage
from ..output.events import Content, text_of


class CompletionAnswer(TextFormat):
    """Of any number of prompts and choices."""

    before, after = b'{"index":%d,"text":', b',"logprobs":null,"finish_reason":null}'

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None = None) -> None:
        super().__init__(answer, job, progress)
        self._logprobs = [LogprobLists(answer.wants.as_ids) for _ in job.choices]
        wants = answer.wants
        self._plain = not (wants.logprobs or wants.ids or wants.nothing)

    # --- whole -----------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""
        choices = self._best() if self._answer.wants.best_of else self._job.choices
        return {
            **self._answer.head(False),
            "choices": [self._whole_choice(choice, index) for index, choice in enumerate(choices)],
            "usage": usage(self._job, self._answer.wants.nothing),
            **self._answer.metrics(self._job),
        }

    def _best(self) -> list[Choice]:
        """Of each prompt's choices the likeliest by token: as many as n."""
        width, wanted = len(self._job.params), self._answer.wants.best_of
        chosen = []
        for first in range(0, len(self._job.choices), width):
            group = self._job.choices[first : first + width]
            chosen += sorted(group, key=likelihood, reverse=True)[:wanted]
        return chosen

    def _whole_choice(self, choice: Choice, index: int) -> dict[str, Any]:
        wants = self._answer.wants
        news = self._take(choice)
        prompt = choice.index // len(self._job.params)
        return {
            **{"index": index, "text": self._echo(choice) + text_of(news.pieces), "token_ids": None},
            **self._beside(choice, news, True),
            **self._ends(choice),
            **last_state(choice),
            "prompt_logprobs": self._answer.prompt_logprobs_of(prompt),
            "prompt_token_ids": choice.prompt_ids if wants.ids else None,
            **self._answer.prompt_text(prompt),
        }

    def _prompt_logprobs(self, choice: Choice) -> dict[int, TokenLogprobs]:
        """The logprobs of its prompt: the prompt's first choice has them."""
        width = len(self._job.params)
        return self._job.choices[choice.index // width * width].prompt_logprobs

    def _take(self, choice: Choice) -> ChoiceUpdate:
        news = choice.take()
        if self._answer.wants.nothing:
            return ChoiceUpdate([], [], [], news.ended)
        return news

    def _ends(self, choice: Choice) -> dict[str, Any]:
        if self._answer.wants.nothing:
            return {"finish_reason": "length", "stop_reason": None}
        return {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}

    def _echo(self, choice: Choice) -> str:
        return self._answer.echo(choice.index // len(self._job.params))

    def _beside(self, choice: Choice, news: ChoiceUpdate, begins: bool) -> dict[str, Any]:
        """What stands beside a text; `begins`: it is the choice's first, so the prompt's tokens come before it."""
        wants, logprobs = self._answer.wants, None
        if wants.logprobs:
            maker = self._logprobs[choice.index]
            before = self._echoed(choice, maker) if wants.echo is not None and not maker.begun else None
            maker.part(news.passed)  # the client has these, and the prompt's, from a predecessor
            part = maker.part(news.logprobs)
            logprobs = joined(before, part) if begins and before is not None else part
        return {"logprobs": logprobs, **({"token_ids": news.ids} if wants.ids else {})}

    def _echoed(self, choice: Choice, maker: LogprobLists) -> dict[str, Any]:
        """The prompt's tokens."""
        tokens = [one for _, one in sorted(self._prompt_logprobs(choice).items())]
        echo = self._echo(choice)
        rest = len(b"".join(one.text for one in tokens).decode(errors="replace"))
        first = echo[: max(0, len(echo) - rest)].encode()
        return joined(maker.first(first, choice.prompt_ids[0] if choice.prompt_ids else 0), maker.part(tokens))

    def part(self, choice: Choice, lists: LogprobLists) -> dict[str, Any]:
        """What is new as one event of a stream, which somebody else sends; `lists` go on from one to the next."""
        news, wants = self._take(choice), self._answer.wants
        text = text_of(news.pieces)
        logprobs = lists.part(news.logprobs) if wants.logprobs else None
        if logprobs is None:
            lists.offset += len(text)
        ids = {"token_ids": news.ids, "prompt_token_ids": choice.prompt_ids or None} if wants.ids else {}
        ends = self._ends(choice) if news.ended else {"finish_reason": None}
        return {"index": choice.index, "text": text, "logprobs": logprobs, **ids, **ends}

    # --- streamed --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> bytes:
        wants = self._answer.wants
        told = self._answer.prompt_text(choice.index // len(self._job.params))
        if wants.echo is None and not wants.ids and not wants.progress and not told:
            return b""
        news = ChoiceUpdate([Content(self._echo(choice))], [], [], False)
        body = {"index": choice.index, "text": self._echo(choice), **self._beside(choice, news, True), **told}
        if wants.ids:
            body["prompt_token_ids"] = choice.prompt_ids
        return self._events.event(choice, encode(body | {"finish_reason": None}), first=True)

    def update(self, choice: Choice) -> bytes:
        if self._plain and (text := choice.take_plain()) is not None:
            return self._text(choice, text) if text else b""
        news = self._take(choice)
        if not news:
            return b""
        ends = self._ends(choice) | last_state(choice) if news.ended else {"finish_reason": None}
        whole = {"index": choice.index, "text": text_of(news.pieces), **self._beside(choice, news, False), **ends}
        return self._events.event(choice, encode(whole), ended=news.ended)
