"""Prompts that are embeddings: what transformers makes of the same inputs_embeds, whoever dies, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from actorserve import LLM, SamplingParams
from actorserve.actors.llm.inputs.prompts import PromptType
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topics.prompts import EmbedsPrompt
from actorserve.actors.renderer.embeds import given_rows
from actorserve.shm.table.prompt_embeds import PromptEmbeds
from tests.support.client import http_client
from tests.support.models.checkpoints import checkpoint
from tests.support.models.greedy import reference
from tests.support.selection import slow
from tests.support.server import Server

OPTIONS = ("--device", "cpu", "--dtype", "float32", "--enable-prompt-embeds", "--block-size", "16")
CUT = ("--max-num-batched-tokens", "24", "--max-num-seqs", "4", "--data-parallel-size", "2", "--threads", "1")
COUNT = 12


def saved(tensor: object) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


def text_of(tensor: object) -> str:
    return base64.b64encode(saved(tensor)).decode()


class Embedding(NamedTuple):
    """A server and transformers' model of the same weights."""

    server: Server
    model: Any

    def embeds(self, tokens: int, seed: int = 0) -> torch.Tensor:
        """Near those of tokens, and of none."""
        chance = torch.Generator().manual_seed(seed)
        table: torch.Tensor = self.model.get_input_embeddings().weight.detach()
        rows = table[torch.randint(len(table), (tokens,), generator=chance)]
        return rows + 0.3 * table.std() * torch.randn(rows.shape, generator=chance)

    def ask(self, status: int = 200, **body: Any) -> Any:
        fields = {"max_tokens": COUNT, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
        with http_client(self.server) as client:
            answer = client.post("/v1/completions", json=fields)
        assert answer.status_code == status, answer.text
        return answer.json()

    def logprobs(self, rows: torch.Tensor, drawn: list[int]) -> torch.Tensor:
        """Of transformers, behind the prompt and behind each drawn token but the last."""
        with torch.inference_mode():
            behind = self.model.get_input_embeddings()(torch.tensor(drawn[:-1], dtype=torch.long))
            logits = self.model(inputs_embeds=torch.cat([rows, behind])[None]).logits[0]
        told: torch.Tensor = logits[len(rows) - 1 :].float().log_softmax(-1)
        return told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("qwen2", tmp_path_factory.mktemp("embeds"))


@pytest.fixture(scope="module")
def embedding(folder: Path) -> Iterator[Embedding]:
    with Server(str(folder), *OPTIONS, *CUT, "--max-restarts", "1000") as server:
        yield Embedding(server, reference(folder))


def check(embedding: Embedding, rows: torch.Tensor, choice: dict[str, Any]) -> None:
    """The likeliest tokens of transformers, with their logprobs."""
    told = embedding.logprobs(rows, choice["token_ids"])
    assert choice["token_ids"] == told.argmax(-1).tolist()
    wanted = told.max(-1).values.tolist()
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=4e-5)  # as of ids: float32


def test_texts_are_those_of_transformers(embedding: Embedding) -> None:
    """Of prompts in several parts, of one token, and beside a text; of each type in which tensors are saved."""
    given = [embedding.embeds(count, count) for count in (50, 1, 33)]
    answer = embedding.ask(prompt_embeds=list(map(text_of, given)), prompt="One, two,", logprobs=0)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for rows, choice in zip(given, answer["choices"], strict=False):
        check(embedding, rows, choice)
    assert answer["choices"][3]["text"] == embedding.ask(prompt="One, two,")["choices"][0]["text"]
    half = embedding.embeds(20).to(torch.bfloat16)
    for tensor in (half, half[None]):
        choice = embedding.ask(prompt_embeds=text_of(tensor), logprobs=0, n=2)["choices"][1]
        check(embedding, half.float(), choice)
    alone = embedding.ask(prompt_embeds=text_of(half), prompt="", logprobs=0)  # OpenAI's client needs a prompt
    assert [one["token_ids"] for one in alone["choices"]] == [choice["token_ids"]]


def test_prefixes_are_found_by_what_the_rows_are(embedding: Embedding) -> None:
    rows, others = embedding.embeds(48, 7), embedding.embeds(48, 8)
    first = embedding.ask(prompt_embeds=text_of(rows), logprobs=0, max_tokens=30)
    again = embedding.ask(prompt_embeds=text_of(rows), logprobs=0, max_tokens=30)
    strange = embedding.ask(prompt_embeds=text_of(others), logprobs=0)

    def cached(answer: Any) -> int:
        return int((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    assert first["usage"]["prompt_tokens"] == 48
    assert (cached(first), cached(again), cached(strange)) == (0, 32, 0)
    assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"]
    check(embedding, others, strange["choices"][0])
    assert cached(embedding.ask(prompt=[0] * 48)) == 0  # what stands in the log in their place


@pytest.mark.parametrize("name", ["renderer-0", "scheduler@0", *slow("frontend-0", "worker@0", "detokenizer-0")])
def test_a_death_changes_no_text(embedding: Embedding, name: str) -> None:
    """In a stream; both engines' prompts are begun, so that one of them is that of the dead."""
    rows = [embedding.embeds(40, 20 + seed) for seed in range(4)]
    body: dict[str, Any] = {
        "prompt_embeds": list(map(text_of, rows)),
        "max_tokens": 60,
        "temperature": 0,
        "ignore_eos": True,
    }
    wanted = [choice["text"] for choice in embedding.ask(**body)["choices"]]
    texts = [""] * len(rows)
    killed = False
    with (
        http_client(embedding.server) as client,
        client.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer,
    ):
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if not killed:
                    killed = True
                    os.kill(embedding.server.pids()[name], signal.SIGKILL)
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    texts[choice["index"]] += choice["text"]
    embedding.server.wait_for(f"{name} is up")
    assert texts == wanted


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt_embeds": "%%"}, "prompt_embeds: "),
        ({"prompt_embeds": base64.b64encode(b"text").decode()}, "no tensor as torch.save"),
        ({"prompt_embeds": text_of(torch.zeros(3, 5))}, "its rows have 5 numbers; this model's embeddings have"),
        ({"prompt_embeds": text_of(torch.zeros(3, 64).to_sparse())}, "only tensors are read"),
        ({"prompt_embeds": text_of(torch.zeros(3, 64, dtype=torch.int64))}, "floats, tokens × hidden, are taken"),
        ({"prompt_embeds": text_of(torch.zeros(64))}, "floats, tokens × hidden, are taken"),
        ({"prompt_embeds": text_of(torch.full((2, 64), float("nan")))}, "infinite or none"),
        ({"prompt_embeds": text_of(torch.zeros(5000, 64))}, "maximum context length"),
        ({"prompt_embeds": []}, "must not be an empty list"),
        ({"prompt_embeds": ["é"]}, "prompt_embeds[0]: "),
        ({"prompt_embeds": "AAAA", "echo": True}, "echo does not go with prompt_embeds"),
        ({"prompt_embeds": "AAAA", "prompt_logprobs": 1}, "prompt_logprobs does not go with"),
        ({"prompt_embeds": "AAAA", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens does not go with"),
        ({"prompt_embeds": 3}, "prompt_embeds"),
    ],
)
def test_what_is_wrong_is_said(embedding: Embedding, body: dict[str, Any], said: str) -> None:
    assert said in embedding.ask(400, **body)["error"]["message"]


def test_an_llm_takes_tensors(embedding: Embedding, folder: Path) -> None:
    rows = embedding.embeds(50, 50)
    options: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 2, "device": "cpu", "threads": 1}
    with LLM(str(folder), in_process=True, enable_prompt_embeds=True, **options) as llm:
        params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, repetition_penalty=1.0)
        given: list[PromptType] = [{"prompt_embeds": rows}, {"prompt_embeds": rows[None].numpy()}]
        outputs = llm.generate(given, params, use_tqdm=False)
        expected = embedding.ask(prompt_embeds=text_of(rows))["choices"][0]["token_ids"]
        assert [list(output.outputs[0].token_ids) for output in outputs] == [expected, expected]
        with pytest.raises(ValueError, match=r"prompt 0: prompt_embeds has the shape \[3\]"):
            llm.generate({"prompt_embeds": torch.zeros(3)}, params)
        with pytest.raises(ValueError, match="prompt_logprobs does not go with prompt_embeds"):
            llm.generate({"prompt_embeds": rows}, SamplingParams(prompt_logprobs=1))


def test_rows_are_those_of_this_use_of_the_slot(folder: Path) -> None:
    model = resolve_model(make_config({"model": str(folder), "enable_prompt_embeds": True}))
    rows = torch.randn(5, model.hidden)
    area = PromptEmbeds(PromptEmbeds.create(3, 8 * model.hidden), 3, 8 * model.hidden)
    given = given_rows(EmbedsPrompt(base64.b64encode(saved(rows))), model)
    ref, other = 7 << 32 | 1, 8 << 32 | 1
    given.write(area, [ref])
    assert area.given(ref) == (5, given.digest) and area.given(other) is None
    assert area.some(ref, 2, 3) == rows[2:].numpy().tobytes()
    assert area.some(ref, 3, 3) is None and area.some(other, 0, 1) is None
    assert given_rows(EmbedsPrompt(rows.numpy().tobytes(), model.hidden), model).digest == given.digest
    area.give_back(ref)
