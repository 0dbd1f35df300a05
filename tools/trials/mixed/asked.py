"""One request, and what the fields of a random one are drawn with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from . import fields
from .fields import Form, one_of, some

NAMES = {  # llama.cpp's, Ollama's and others' names for fields of sampling
    "llamacpp": {"repetition_penalty": "repeat_penalty"},
    "ollama": {"repetition_penalty": "repeat_penalty"},
    "cohere": {"top_k": "k", "top_p": "p"},
    "tgi": {},
    "sglang": {"min_tokens": "min_new_tokens"},
}
PENALTIES = ("repetition_penalty", "frequency_penalty", "repeat_last_n")
TAKEN = {  # which of them these APIs take
    "llamacpp": {*("top_k", "top_p", "min_p", "top_n_sigma", "ignore_eos"), *PENALTIES},
    "ollama": {*("top_k", "top_p", "min_p", "typical_p", "presence_penalty"), *PENALTIES},
    "cohere": {"frequency_penalty", "presence_penalty", "top_p"},
    "tgi": {"repetition_penalty", "frequency_penalty"},
    "sglang": {"top_k", "top_p", "min_p", "min_tokens", "repetition_penalty", "frequency_penalty", "ignore_eos"},
}


@dataclass(frozen=True)
class Asked:
    """One request. `settled`: the same again whenever it is asked; `form`: what its answers have to look like."""

    door: str
    path: str
    body: dict[str, Any]
    settled: bool
    choices: int = 1
    most: int = 0  # tokens of each choice
    form: Form | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> bool:
        if self.door == "tgi":
            return self.path == "/generate_stream"
        return bool(self.body.get("stream", self.door.startswith("ollama")))

    @property
    def tells_ids(self) -> bool:
        """Whole and streamed."""
        return self.door in ("ids", "sglang", "tgi") or bool(self.body.get("return_token_ids"))

    def streamed(self, yes: bool) -> Asked:
        """The same, streamed or not, and sent for the first time."""
        headers = {name: value for name, value in self.headers.items() if name != "Idempotency-Key"}
        if self.door == "tgi":
            return replace(self, path="/generate_stream" if yes else "/generate", headers=headers)
        left_out = () if yes else ("stream_options",)
        body = {name: value for name, value in self.body.items() if name not in left_out}
        return replace(self, body={**body, "stream": yes}, headers=headers)

    def counted(self) -> Asked:
        """The same, with its usage told."""
        if self.stream and self.door in ("completions", "chat", "ids"):
            options = {**self.body.get("stream_options", {}), "include_usage": True}
            return replace(self, body={**self.body, "stream_options": options})
        return self

    def get(self, name: str, default: Any = None) -> Any:
        """A field of sampling, wherever this API has it, and by whichever name."""
        inside = {"sglang": "sampling_params", "ids": "sampling_params", "tgi": "parameters"}.get(self.door, "")
        found = self.body.get(inside, {}) if inside else self.body
        return found.get(name, found.get(NAMES.get(self.door, {}).get(name, name), default))


class Mixture:
    """What a request's fields are drawn with."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.share = rng.choice((0.02, 0.08, 0.2))
        self.most = rng.choice((1, 2, 3, 8, 16, 40, 40, 120))
        kind = rng.random()
        self.heat: dict[str, Any] = {"temperature": 0}
        self.settled = kind < 0.9
        if kind > 0.45:
            self.heat = {"temperature": rng.choice((0.3, 1, 1, 2)), "seed": rng.choice((0, 5, 2**31, 2**63, -7))}
        if not self.settled:
            del self.heat["seed"]

    def chance(self, times: float = 1.0) -> bool:
        return self.rng.random() < self.share * times

    def sampling(self) -> dict[str, Any]:
        found = {**some(self.rng, fields.SAMPLING, self.share), **self.heat}
        if "min_tokens" in found:
            found["min_tokens"] = min(found["min_tokens"], self.most)
        return found

    def sampling_of(self, door: str) -> dict[str, Any]:
        """Those that another API takes, by its names."""
        found = {name: value for name, value in self.sampling().items() if name in TAKEN[door]} | self.heat
        if "seed" in found and door != "sglang":
            found["seed"] %= 2**31  # one below 0 is none to some
        return {NAMES[door].get(name, name): value for name, value in found.items()}

    def stream(self) -> dict[str, Any]:
        if self.rng.random() < 0.5:
            return some(self.rng, {"stream": one_of(False)}, 0.3)
        found: dict[str, Any] = {"stream": True}
        if self.rng.random() < 0.6:
            options = {name: one_of(True, True, False) for name in ("include_usage", "continuous_usage_stats")}
            found["stream_options"] = some(self.rng, {**options, "include_obfuscation": one_of(True, False)}, 0.7)
        return found

    def generation(self) -> dict[str, Any]:
        """What chat and completions have in common."""
        found = {**self.sampling(), **some(self.rng, fields.GENERATION, self.share), **self.stream()}
        found["max_tokens"] = self.most
        if self.chance(2):
            found["n"] = self.rng.choice((1, 2, 3, 4, 9))
        if self.chance() and not found.get("stream"):
            found["prompt_logprobs"] = self.rng.choice((0, 1, 5, 20))
        if self.chance():
            found["truncate_prompt_tokens"] = self.rng.choice((1, 5, 30, -1))
            found |= some(self.rng, {"truncation_side": one_of("left", "right")}, 0.5)
        return found

    def beams(self) -> dict[str, Any]:
        found = {"use_beam_search": True, "n": self.rng.randint(1, 4), "max_tokens": self.most, "temperature": 0}
        self.settled = True
        return {**found, **some(self.rng, {"length_penalty": one_of(0.5, 1, 2), "ignore_eos": one_of(True)}, 0.3)}

    def form(self, *kinds: str) -> Form | None:
        """Now and then a form. It goes before what else steers the answer."""
        return fields.form(self.rng, *kinds) if self.chance(2) else None
