"""Answers of llama.cpp's /completion: one object, or events of which the last has the counts and times."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.request import DRY, default_of

from ..errors import ApiError
from ..generation.choice import Choice, ChoiceUpdate
from ..generation.job import Job
from ..generation.logprobs import LOWEST
from ..generation.times import JobTimes, PromptProgress
from ..openai.schemas import GenerationFields
from ..output.answer import Answer, encode
from ..output.events import text_of
from ..output.timings import all_read, progress_of, timings_of
from ..output.writer import AnswerFormat
from .errors import body_of
from .schemas import LlamaCompletionRequest

Object = dict[str, Any]
SLOT = (1 << 32) - 1  # the part of a ref that is the slot's number
SETTINGS = {  # by their names there: ours
    **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "top_n_sigma", "typical_p")},
    **{name: name for name in ("xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent")},
    **{name: name for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
    "repeat_penalty": "repetition_penalty",
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repeat_last_n", *DRY)},
}
DRAWN_ANEW = (1 << 32) - 1  # a seed


class LlamaCompletion(AnswerFormat):
    """Of any number of choices."""

    def __init__(
        self,
        answer: Answer,
        job: Job,
        times: Callable[[Job], JobTimes],
        body: LlamaCompletionRequest,
        settings: Object,
        prompts: list[str],
        slots: int,
    ) -> None:
        """`settings`: how it is generated; `prompts`: their texts; `slots`: how many there are, as /props says."""
        self._answer, self._job, self._times, self._body = answer, job, times, body
        self._settings, self._prompts, self._slots = settings, prompts, slots
        self._nothing = body.n_predict == 0  # what was drawn is not for the client
        self._has_line = [False] * len(job.choices)

    def whole(self) -> Any:
        parts = []
        for choice in self._job.choices:
            news = self._take(choice)
            ids = news.ids if self._body.return_tokens else []
            parts.append(self._chosen(self._part(choice, news, ids) | self._end(choice)))
        return parts if len(parts) > 1 else parts[0]

    # --- streamed --------------------------------------------------------------------------------------------------

    def first(self, choice: Choice) -> bytes:
        if not self._body.return_progress:
            return b""
        return self._progress_event(choice, all_read(choice, self._times(self._job)))

    def progress(self, progress: PromptProgress, ns: int) -> bytes:
        """Implements output.writer.ProgressWriter."""
        return self._progress_event(self._job.choices[progress.choice], progress_of(progress, ns))

    def _progress_event(self, choice: Choice, told: Object) -> bytes:
        nothing = self._part(choice, ChoiceUpdate([], [], [], False), [])
        return _event(nothing | {"tokens_predicted": 0, "prompt_progress": told})

    def update(self, choice: Choice) -> bytes:
        news = self._take(choice)
        self._has_line[choice.index] |= "\n" in text_of(news.skipped)
        events = []
        if news.pieces or news.ids or news.logprobs:
            part = self._part(choice, news, news.ids)
            if self._body.timings_per_token:
                part["timings"] = self._timings(choice)
            events.append(_event(part))
        if news.ended:
            last = self._part(choice, ChoiceUpdate([], [], [], True), []) | self._end(choice)
            events.append(_event(self._chosen(last)))
        return b"".join(events)

    def _take(self, choice: Choice) -> ChoiceUpdate:
        news = choice.take()
        return ChoiceUpdate([], [], [], news.ended) if self._nothing else news

    def failed(self, error: ApiError) -> bytes:
        return _event(body_of(error))

    # --- parts -----------------------------------------------------------------------------------------------------

    def _part(self, choice: Choice, news: ChoiceUpdate, ids: list[int]) -> Object:
        text = text_of(news.pieces)
        self._has_line[choice.index] |= "\n" in text
        part: Object = {
            "index": choice.index,
            "content": text,
            "tokens": ids,
            "stop": False,
            "id_slot": (choice.ref & SLOT) % self._slots,
            "tokens_predicted": self._told(choice),
            "tokens_evaluated": choice.prompt_tokens,
        }
        if self._answer.wants.logprobs and news.logprobs:
            part["completion_probabilities"] = [self._probability(one) for one in news.logprobs]
        return part

    def _probability(self, one: TokenLogprobs) -> Object:
        """Of what is drawn from probabilities are told, of the tokens alone that may be drawn."""
        drawn = self._body.post_sampling_probs

        def entry(text: bytes, token: int, logprob: float) -> Object:
            told: Object = {"id": token, "token": text.decode(errors="replace"), "bytes": list(text)}
            return told | ({"prob": math.exp(logprob)} if drawn else {"logprob": max(logprob, LOWEST)})

        best = [entry(*other) for other in one.best if not drawn or other[-1] > LOWEST]
        return entry(one.text, one.id, one.logprob) | {"top_probs" if drawn else "top_logprobs": best}

    def _end(self, choice: Choice) -> Object:
        word = choice.stop_reason if isinstance(choice.stop_reason, str) and not self._nothing else ""
        kinds = {"stop": "word" if word else "eos", "length": "limit"}
        return {
            "stop": True,
            "model": self._answer.model,
            "generation_settings": self._settings,
            "prompt": self._prompts[choice.index // len(self._job.params)],
            "has_new_line": self._has_line[choice.index],
            "truncated": False,
            "stop_type": "limit" if self._nothing else kinds.get(choice.finish_reason or "", "none"),
            "stopping_word": word,
            "tokens_cached": choice.cached_tokens,
            "timings": self._timings(choice),
        }

    def _chosen(self, whole: Object) -> Object:
        """The fields that are asked for, by the paths by which they are; all, if none is."""
        found = {path: _inside(whole, path.split("/")) for path in self._body.response_fields or ()}
        return {path: value for path, value in found.items() if value is not None} if found else whole

    def _told(self, choice: Choice) -> int:
        """Tokens of the answer."""
        return 0 if self._nothing else choice.tokens

    def _timings(self, choice: Choice) -> Object:
        """Of several prompts the times are those of all of them."""
        told = choice.prompt_tokens, choice.cached_tokens, self._told(choice)
        return timings_of(self._times(self._job), *told)


def _inside(value: Any, names: list[str]) -> Any:
    """What stands at the end of a path; None where there is nothing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def settings_of(body: LlamaCompletionRequest, given: GenerationFields, defaults: dict[str, float]) -> Object:
    """How it is generated: as the request has it, or the model's generation_config.json."""
    told = {name: getattr(given, ours) for name, ours in SETTINGS.items()}
    found = default_settings(defaults) | {name: value for name, value in told.items() if value is not None}
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    biases = [{"token": int(token), "bias": bias} for token, bias in (given.logit_bias or {}).items()]
    found |= {"n_predict": 0 if body.n_predict == 0 else given.max_tokens or found["n_predict"], "stop": stops}
    if given.seed is not None:
        found["seed"] = given.seed
    found |= {"stream": bool(body.stream), "ignore_eos": bool(given.ignore_eos), "logit_bias": biases}
    found |= {"n_probs": body.n_probs or 0, "post_sampling_probs": bool(body.post_sampling_probs)}
    return found | {"grammar": body.grammar or ""}


def default_settings(defaults: dict[str, float]) -> Object:
    """What is so where a request says nothing: by the model's generation_config.json, or as it always is."""
    found: Object = {name: defaults.get(ours, default_of(ours)) for name, ours in SETTINGS.items()}
    return found | {"n_predict": int(defaults.get("max_new_tokens", -1)), "seed": DRAWN_ANEW}


def _event(body: Object) -> bytes:
    return b"data: " + encode(body) + b"\n\n"
