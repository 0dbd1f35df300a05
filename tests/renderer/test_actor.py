"""The renderer actor over real rings: a test plays frontend and scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from actorserve.actors.model.info import ModelInfo
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.block_hash import extend_hashes
from actorserve.actors.protocol.messages import Admit, Failed, Render, Rendered, ToRenderer
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.calls import Detokenize, Detokenized, Sync, Synced, Tokenize, Tokenized
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from actorserve.actors.protocol.topology import System
from actorserve.actors.renderer.actor import RendererActor
from actorserve.actors.renderer.artifacts import Renditions
from actorserve.actors.runtime.in_flight import MOST_TRIES, Ended
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from tests.support.models.tokenizers_made import byte_level

from .templates.templates import CHATML

LENGTH = 64
PARAMS = msgspec.msgpack.encode(Generation(Sampling(1), request_id="name"))
CHAT = json.dumps([{"role": "user", "content": "hello"}]).encode()
TEXT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


class Bench:
    """The renderer and those around it."""

    def __init__(self, folder: Path, pooling: PoolingSpec | None = None, **options: Any) -> None:
        byte_level().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
        size = byte_level().get_vocab_size()
        model = ModelInfo(
            folder=str(folder),
            tokenizer_folder=str(folder),
            architecture="LlamaForCausalLM",
            vocab_size=size,
            max_model_len=LENGTH,
            end_tokens=[],
            sampling_defaults={},
            pooling=pooling,
        )
        sizes: dict[str, Any] = {"max_num_seqs": 4, "max_num_queued_reqs": 4, "block_size": 8, "max_body_bytes": 4096}
        config = Config(**{"chat_template": CHATML, **sizes, **options})
        self.memory = Memory(System(config, model))
        self.frontend, self.scheduler = self.born("frontend-0"), self.born("scheduler")
        self.table = self.frontend.table
        self.context = self.born("renderer-0")
        self.renderer = RendererActor(self.context)
        self.slot = 0

    def born(self, name: str) -> Context:
        return Context(self.memory.boot(self.memory.system.by_name[name]))

    def restart(self, ended: Ended) -> None:
        self.context.close()
        self.memory.raise_incarnation(self.context.spec, ended)
        self.context = self.born("renderer-0")
        self.renderer = RendererActor(self.context)

    def open(self) -> int:
        self.slot += 1
        return self.table.open_slot(self.slot, PARAMS, 0)

    def ask(self, *messages: ToRenderer) -> list[Any]:
        """Give these to the renderer; what the frontend is told."""
        for message in messages:
            self.renderer.handle(message)
        self.context.flush()
        return self.got(self.frontend)

    def got(self, context: Context) -> list[Any]:
        received: list[Any] = []
        context.inbox.drain(received.append)
        context.inbox.commit()
        return received

    def render(self, prompt: Prompt, **options: Any) -> Any:
        (answer,) = self.ask(Render([self.open()], prompt, **options))
        return answer


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    made = Bench(tmp_path)
    yield made
    made.memory.close()


def ids(text: str) -> list[int]:
    found: list[int] = byte_level().encode(text, add_special_tokens=False).ids
    return found


def test_a_prompt_gets_into_all_its_slots(bench: Bench) -> None:
    refs = [bench.open(), bench.open()]
    answer = bench.ask(Render(refs, ChatPrompt(CHAT), max_tokens=5))
    expected = ids(TEXT)
    assert answer == [Rendered(refs, len(expected))] and bench.got(bench.scheduler) == [Admit(refs)]
    for ref in refs:
        assert bench.table.prompt_length(ref) == len(expected) and bench.table.limit(ref) == 5
        assert list(bench.table.token_ids(ref, 0, len(expected))) == expected
        hashes = extend_hashes(b"", np.array(expected, np.int32).tobytes(), 8)
        assert bytes(bench.table.hashes(ref)) == hashes


@pytest.mark.parametrize(("base", "hashed"), [("", False), ("Qwen3ForCausalLM", True)])
def test_blocks_that_nobody_finds_again_have_no_hashes(base: str, hashed: bool, tmp_path: Path) -> None:
    """Of a model that pools whole prompts; one of whose last token makes the vector shares prefixes."""
    spec = PoolingSpec(
        tasks=["embed"], base=base, methods=["last" if base else "mean"], normalize=True, hidden=8, width=8
    )
    bench = Bench(tmp_path, spec)
    ref = bench.open()
    (answer,) = bench.ask(Render([ref], TextPrompt("a" * 40), pools=True))
    assert isinstance(answer, Rendered) and (bench.table.prompt_length(ref) or 0) > 16
    assert bool(bench.table.hashes(ref)) == hashed
    bench.memory.close()


def test_the_same_message_twice_is_harmless(bench: Bench) -> None:
    message = Render([bench.open()], TextPrompt("hello"))
    first, second = bench.ask(message, message)
    assert first == second == Rendered(message.refs, len(ids("hello")))


@pytest.mark.parametrize(
    ("prompt", "options", "status", "param", "words"),
    [
        (TokenPrompt(list(range(20)) * 4), {}, 400, "prompt", f"{LENGTH} tokens. However, your prompt has 80"),
        (TokenPrompt([5] * LENGTH), {}, 400, "prompt", f"has {LENGTH} tokens"),
        (TokenPrompt([5] * 60), {"max_tokens": 5}, 400, "max_tokens", "requested 65 tokens (60 in the prompt, 5"),
        (TokenPrompt([5, 100_000]), {}, 400, "prompt", "100000 is out of vocabulary"),
        (ChatPrompt(b'[{"role": "user"}]'), {}, 400, "messages", "content"),
        (ChatPrompt(CHAT, context=[5, 100_000]), {}, 400, "context", "100000 is out of vocabulary"),
        (ChatPrompt(CHAT, context=[5] * LENGTH), {}, 400, "messages", f"{LENGTH} tokens. However, your prompt has"),
        (ChatPrompt(CHAT, template_kwargs=b'{"messages": 1}'), {}, 400, "chat_template_kwargs", "must not set"),
        (ChatPrompt(json.dumps([{"role": "user", "content": "x" * 500}]).encode()), {}, 400, "messages", "maximum"),
    ],
)
def test_refusals_say_what_is_wrong(
    bench: Bench, prompt: Prompt, options: dict[str, Any], status: int, param: str, words: str
) -> None:
    answer = bench.render(prompt, **options)
    assert isinstance(answer, Failed)
    assert (answer.status, answer.param) == (status, param) and words in answer.message
    assert answer.code == ("context_length_exceeded" if "maximum context length" in answer.message else None)
    assert (answer.lengths is None) == (answer.code is None)
    assert not bench.got(bench.scheduler)
    assert isinstance(bench.render(TextPrompt("hello")), Rendered)


def test_limits_and_truncation(bench: Bench) -> None:
    answer = bench.render(TokenPrompt([5] * 60))
    assert bench.table.limit(answer.refs[0]) == LENGTH - 60
    assert bench.table.limit(bench.render(TokenPrompt([5] * 60), cap=3).refs[0]) == 3
    assert bench.table.limit(bench.render(TokenPrompt([5] * 60), cap=700).refs[0]) == LENGTH - 60
    assert bench.table.limit(bench.render(TokenPrompt([5] * 60), cap=1, max_tokens=2).refs[0]) == 2
    answer = bench.render(TokenPrompt(list(range(10, 90))), truncate_prompt_tokens=7)
    assert list(bench.table.token_ids(answer.refs[0], 0, 7)) == list(range(83, 90)) and answer.prompt_tokens == 7
    assert bench.render(TokenPrompt([5] * 90), truncate_prompt_tokens=-1).prompt_tokens == LENGTH - 1
    assert bench.render(TokenPrompt([5] * (LENGTH - 1)), max_tokens=1).prompt_tokens == LENGTH - 1


def test_an_empty_prompt_begins_with_the_beginning(bench: Bench) -> None:
    answer = bench.render(TextPrompt(""))
    assert list(bench.table.token_ids(answer.refs[0], 0, 1)) == [byte_level().token_to_id("<s>")]


def test_who_has_gone_is_not_admitted(bench: Bench) -> None:
    gone, here, reused = bench.open(), bench.open(), bench.open()
    bench.table.cancel(gone)
    bench.table.open_slot(bench.slot, PARAMS, 0)
    answers = bench.ask(Render([gone, here, reused], TextPrompt("hello")))
    assert [type(answer) for answer in answers] == [Failed, Rendered]
    assert answers[0].refs == [gone, reused] and answers[1].refs == [here]
    assert bench.got(bench.scheduler) == [Admit([here])]
    (answer,) = bench.ask(Render([gone], TextPrompt("hello")))
    assert answer.status == 499


def test_what_of_a_schema_is_not_enforced_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    model = msgspec.structs.replace(bench.context.model, end_tokens=[byte_level().token_to_id("</s>") or 0])
    bench.renderer.renditions = Renditions(byte_level(), model, 4096)
    schema: dict[str, Any] = {
        "type": "array",
        "uniqueItems": True,
        "items": {
            "not": {"type": "string"},
            "oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "string", "format": "iri"}],
        },
    }
    constraints = [json.dumps({"json_schema": one, "strict": False}).encode() for one in (schema, {"type": "object"})]
    for constraint in (*constraints, *constraints):
        assert isinstance(
            bench.render(TextPrompt("a"), constraint=constraint, constrained_by="response_format"), Rendered
        )
    (record,) = caplog.records
    text = record.getMessage()
    assert "response_format is not strict" in text and record.levelname == "WARNING"
    assert all(word in text for word in ("uniqueItems", "not", "format iri", "oneOf"))


def test_calls(bench: Bench) -> None:
    answers = bench.ask(
        Tokenize(7, TextPrompt("hello"), True), Detokenize(8, ids("hello")), Sync(9), Detokenize(10, [10**6])
    )
    strings = [byte_level().id_to_token(token) or "" for token in ids("hello")]
    assert answers[:3] == [Tokenized(7, ids("hello"), strings), Detokenized(8, "hello"), Synced(9)]
    assert (answers[3].call, answers[3].status, answers[3].param) == (10, 400, "tokens")
    (long,) = bench.ask(Detokenize(11, [ids("hello")[0]] * 2_000_000))
    assert long.status == 413
    told = bench.ask(Detokenize(12, ids("a \xe9"), pieces=True))[0].pieces
    assert b"".join(told) == "a \xe9".encode() and len(told) == len(ids("a \xe9"))


# --- what a renderer dies on -----------------------------------------------------------------------------------------


class Died(BaseException):
    """Stands for kill -9: nothing catches it."""


def die_on(bench: Bench, message: ToRenderer, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(text: str) -> list[int]:
        raise Died

    monkeypatch.setattr(bench.renderer.prompts.segments, "encode", die)
    with pytest.raises(Died):
        bench.renderer.handle(message)


def test_who_hung_is_not_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Render([bench.open()], ChatPrompt(CHAT))
    die_on(bench, message, monkeypatch)
    bench.restart(Ended.HUNG)
    (answer,) = bench.ask(message)
    assert answer.status == 422 and "request name" in answer.message
    assert isinstance(bench.render(ChatPrompt(CHAT)), Rendered)


@pytest.mark.parametrize("call", [True, False])
def test_who_is_deadly_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch, call: bool) -> None:
    message: ToRenderer = Tokenize(3, ChatPrompt(CHAT)) if call else Render([bench.open()], ChatPrompt(CHAT))
    for _ in range(MOST_TRIES):
        die_on(bench, message, monkeypatch)
        bench.restart(Ended.DIED)
    (answer,) = bench.ask(message)
    assert answer.status == 500 and ("call 3" if call else "request name") in answer.message
    assert bench.memory.board.given_up(bench.context.spec.position) == 1
    assert isinstance(bench.render(ChatPrompt(CHAT)), Rendered)


def test_who_was_only_there_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    message, other = Render([bench.open()], ChatPrompt(CHAT)), Render([bench.open()], ChatPrompt(CHAT))
    for _ in range(MOST_TRIES + 2):
        die_on(bench, message, monkeypatch)
        bench.restart(Ended.DIED)
        die_on(bench, other, monkeypatch)
        bench.restart(Ended.DIED)
    assert [type(answer) for answer in bench.ask(message, other)] == [Rendered, Rendered]
