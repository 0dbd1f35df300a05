"""Answers of /v1/chat/completions: messages with content, reasoning and tool calls, whole or in deltas."""

from __future__ import annotations

from typing import Any

from ..generation.choice import Choice, ChoiceUpdate
from ..generation.idempotency import StreamProgress
from ..generation.job import Job
from ..generation.logprobs import chat_logprobs
from ..output.answer import Answer, TextFormat, encode, last_state, usage
from ..output.events import Arguments, CallStart, Content, Piece, ReasoningText, Turn
from .mistral import with_thinking_parts

NO_TEXT = {"content": ""}


class ChatAnswer(TextFormat):
    """Of one conversation or several."""

    before, after = b'{"index":%d,"delta":{"content":', b'},"logprobs":null,"finish_reason":null}'

    def __init__(self, answer: Answer, job: Job, progress: StreamProgress | None = None) -> None:
        super().__init__(answer, job, progress)
        together = answer.wants.continuous_usage or answer.wants.whole_calls
        self._separate = progress is None and not together  # else events are one for each step
        self._plain = not (answer.wants.logprobs or answer.wants.ids)

    # --- whole -----------------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The answer that is not streamed."""
        job = self._job
        choices = [self._whole_choice(choice) for choice in job.choices]
        told = self._prompt(0)
        if len(job.choices) > len(job.params):  # several conversations: each choice tells of its own
            choices = [self._prompt(choice["index"] // len(job.params)) | choice for choice in choices]
            told = {"prompt_logprobs": None, "prompt_token_ids": None}
        head = self._answer.head(False)
        return {**head, "choices": choices, "usage": usage(job), **told, **self._answer.metrics(job)}

    def _prompt(self, prompt: int) -> dict[str, Any]:
        """What is told of a conversation's prompt; its first choice has it."""
        wants, first = self._answer.wants, self._job.choices[prompt * len(self._job.params)]
        told = self._answer.prompt_logprobs_of(prompt)
        ids = first.prompt_ids if wants.prompt_ids else None
        return {"prompt_logprobs": told, "prompt_token_ids": ids, **self._answer.prompt_text(prompt)}

    def _whole_choice(self, choice: Choice) -> dict[str, Any]:
        news, turn = choice.take(), Turn()
        turn.add(news.pieces)
        calls = [
            _call(self._id(choice, index, call.id), call.name, call.arguments) for index, call in enumerate(turn.calls)
        ]
        text = self._answer.echo(choice.index // len(self._job.params)) + turn.content
        content = text if text or not (calls or turn.reasoning) else None
        message: dict[str, Any] = {"role": self._answer.wants.role, "content": content, "refusal": None}
        if calls and self._answer.wants.function:
            message["function_call"] = calls[0]["function"]
        elif calls:  # as with OpenAI: clients ask whether there are calls by whether there is the field
            message["tool_calls"] = calls
        reasoning = turn.reasoning if turn.reasoning and self._answer.wants.reasoning else None
        message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if self._answer.wants.thinking_parts:
            message = with_thinking_parts(message) | {"reasoning": None, "reasoning_content": None}
        body: dict[str, Any] = {"index": choice.index, "message": message, "token_ids": None}
        if self._answer.wants.each_prompt:
            width = len(self._job.params)
            body["prompt_token_ids"] = self._job.choices[choice.index // width * width].prompt_ids
        return {**body, **self._beside(news), **self._ends(choice), **last_state(choice)}

    def _id(self, choice: Choice, index: int, own: str | None) -> str:
        return own or self._answer.call_id(choice.index, index)

    def _beside(self, news: ChoiceUpdate) -> dict[str, Any]:
        """What stands beside a message or delta."""
        wants = self._answer.wants
        logprobs = chat_logprobs(news.logprobs, wants.as_ids, listed=wants.listed) if wants.logprobs else None
        return {"logprobs": logprobs, **({"token_ids": news.ids} if wants.ids else {})}

    def part(self, choice: Choice, begins: bool) -> dict[str, Any]:
        """What is new as one event of a stream, which somebody else sends. `begins`: it is the first."""
        news = choice.take()
        delta = _one([delta for piece in news.pieces if (delta := self._delta(choice, piece))])
        if begins:
            delta = {"role": self._answer.wants.role, "content": "", **delta}
        ends = self._ends(choice) if news.ended else {"finish_reason": None}
        return {"index": choice.index, "delta": delta, **self._beside(news), **ends}

    # --- streamed --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> bytes:
        prompt = choice.index // len(self._job.params)
        delta = {"role": self._answer.wants.role, "content": self._answer.echo(prompt)}
        body = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        beside = b""
        if self._answer.wants.prompt_ids:
            beside = b',"prompt_token_ids":' + encode(choice.prompt_ids)
        if told := self._answer.prompt_text(prompt):
            beside += b',"prompt_text":' + encode(told["prompt_text"])
        return self._events.event(choice, encode(body), first=True, beside=beside)

    def update(self, choice: Choice) -> bytes:
        if self._plain and (text := choice.take_plain()) is not None:
            return self._text(choice, text) if text else b""
        news = choice.take()
        if not news:
            return b""
        pieces = news.pieces
        alone = choice.hidden_states is not None or not self._answer.wants.continuous_usage
        inside = news.ended and not alone  # an event of its own would have no tokens
        if self._plain and not inside and len(pieces) == 1 and isinstance(pieces[0], Content):
            parts = [self._text(choice, pieces[0].text)]
        else:
            parts = self._deltas(choice, news, inside)
        if news.ended and not (inside and parts):
            parts.append(self._last(choice))
        return b"".join(parts)

    def _deltas(self, choice: Choice, news: ChoiceUpdate, inside: bool) -> list[bytes]:
        """`inside`: the last one tells the choice's end, too."""
        deltas = [delta for piece in news.pieces if (delta := self._delta(choice, piece))]
        if not self._separate:
            deltas = [_one(deltas)] if deltas else []
        wants = self._answer.wants
        if not deltas and ((news.logprobs and wants.logprobs) or (news.ids and wants.ids)):
            deltas = [{"content": ""}]
        beside, ends = self._beside(news), self._ends(choice) if inside else {"finish_reason": None}
        events = []
        if wants.thinking_parts:
            deltas = [NO_TEXT | with_thinking_parts(delta) for delta in deltas]
        for delta in deltas:
            body = {"index": choice.index, "delta": delta, **beside, **ends}
            events.append(self._events.event(choice, encode(body), ended=inside))
            beside = self._beside(ChoiceUpdate([], [], [], False)) if wants.ids else {"logprobs": None}
        return events

    def _delta(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        match piece:
            case Content(text=text):
                return {"content": text}
            case ReasoningText(text=text):
                return {"reasoning": text, "reasoning_content": text} if self._answer.wants.reasoning else {}
            case CallStart(name=name) if self._answer.wants.function:
                return {"function_call": {"name": name, "arguments": ""}}
            case Arguments(text=text) if self._answer.wants.function:
                return {"function_call": {"arguments": text}}
            case CallStart(index=index, name=name, id=own):
                return {"tool_calls": [{"index": index, **_call(self._id(choice, index, own), name, "")}]}
            case Arguments(index=index, text=text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}

    def _last(self, choice: Choice) -> bytes:
        beside = self._beside(ChoiceUpdate([], [], [], False)) if self._answer.wants.ids else {}
        delta = last_state(choice) | (NO_TEXT if self._answer.wants.thinking_parts else {})
        body = {"index": choice.index, "delta": delta, **beside, "logprobs": None, **self._ends(choice)}
        return self._events.event(choice, encode(body), ended=True)

    def _ends(self, choice: Choice) -> dict[str, Any]:
        reason = choice.finish_reason
        if reason == "tool_calls" and self._answer.wants.forced:
            reason = "stop"
        elif reason == "tool_calls" and self._answer.wants.function:
            reason = "function_call"
        return {"finish_reason": reason, "stop_reason": choice.stop_reason}


def _call(own_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": own_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _one(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Several deltas as one: texts joined, and of each call the parts."""
    result: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                result[name] = result.get(name, "") + delta[name]
        if "function_call" in delta:
            made = result.setdefault("function_call", {"arguments": ""})
            made |= delta["function_call"] | {"arguments": made["arguments"] + delta["function_call"]["arguments"]}
        for call in delta.get("tool_calls", ()):
            if call["index"] in calls:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
            else:
                calls[call["index"]] = call
    return {**result, **({"tool_calls": list(calls.values())} if calls else {})}
