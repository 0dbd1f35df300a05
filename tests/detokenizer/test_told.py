"""Tokens that are told with their logprobs: exactly once each, whoever dies, and with their own bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer, decoders, models

from actorserve.actors.model.tokenizers.token_bytes import bytes_of_tokens
from actorserve.actors.protocol.messages import Delta, Finish, PromptTokenLogprobs, Resend, Resent, TokenLogprobs
from actorserve.actors.protocol.request import MOST_LOGPROB_IDS, MOST_LOGPROBS, Generation, Sampling
from actorserve.actors.protocol.wire import pack
from actorserve.shm.table.logprobs import ENTRY, LISTED, Logprobs
from actorserve.shm.table.table import slot_of
from tests.support.models.tokenizers_made import byte_fallback, byte_level

from .bench import PROMPT, SLOT, Client, Engine
from .test_actor import make_engine

MOST = 2
IDS = [9, 4, 9]


class Asking(Engine):
    """Requests with logprobs; the area's numbers follow from the position."""

    def write(self, ref: int, start: int, stop: int) -> None:
        area = Logprobs(self.memory.files["logprobs"], *self.memory.system.files.logprobs)
        for position in range(start, stop):
            entries = [(position, -float(position)), (5, -0.5), (6, -0.75)]
            at = area.start(slot_of(ref), position)
            area.map[at : at + 3 * ENTRY.size] = b"".join(ENTRY.pack(*entry) for entry in entries)
            at = area.listed_start + slot_of(ref) * area.listed_stride + position * len(IDS) * LISTED.size
            area.map[at : at + len(IDS) * LISTED.size] = b"".join(LISTED.pack(-position - i) for i in range(len(IDS)))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = make_engine(tmp_path, byte_level(), Asking)
    yield made
    made.close()


def told(engine: Engine) -> dict[int, tuple[bytes, int, float, int, int]]:
    """What a frontend knows of each generated token, by its number."""
    found: dict[int, tuple[bytes, int, float, int, int]] = {}
    for delta in engine.deltas:
        for number, token in enumerate(delta.logprobs, delta.tokens - len(delta.logprobs)):
            entry = (token.text, token.id, token.logprob, token.rank, len(token.best))
            assert found.setdefault(number, entry) == entry
    return found


def answer(engine: Asking, ref: int, ids: list[int], deaths: tuple[int, ...]) -> None:
    """These tokens, one a turn; `deaths`: of the detokenizer, behind which of them."""
    for number, token in enumerate(ids):
        engine.write(ref, len(PROMPT) + number, len(PROMPT) + number + 1)
        engine.advance(ref, [token], Finish.LENGTH if number == len(ids) - 1 else Finish.NONE)
        if number in deaths:
            engine.die()
        else:
            engine.turn()
    engine.turn()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("deaths", [(), (0,), (3,), (1, 4)])
def test_every_token_is_told(engine: Asking, stream: bool, deaths: tuple[int, ...]) -> None:
    ref = engine.open(sampling=Sampling(1, logprobs=MOST), stream=stream)
    ids = engine.ids("Grüße 🦊 and so on, you know")
    answer(engine, ref, ids, deaths)
    found = told(engine)
    assert sorted(found) == list(range(len(ids)))
    assert b"".join(found[number][0] for number in range(len(ids))).decode() == engine.clients[ref].text
    for number, token in enumerate(ids):
        position = len(PROMPT) + number
        assert found[number][1:] == (token, -float(position), position, MOST)


@pytest.mark.parametrize("deaths", [(), (1, 4)])
def test_listed_tokens_are_told_in_place_of_the_likeliest(engine: Asking, deaths: tuple[int, ...]) -> None:
    ref = engine.open(sampling=Sampling(1, logprobs=0, logprob_token_ids=IDS))
    ids = engine.ids("and so on, you know")
    answer(engine, ref, ids, deaths)
    texts = bytes_of_tokens(byte_level())
    for delta in engine.deltas:
        for number, one in enumerate(delta.logprobs, delta.tokens - len(delta.logprobs)):
            position = len(PROMPT) + number
            assert one.best == [(texts(word), word, -position - i) for i, word in enumerate(IDS)]
    assert sorted(told(engine)) == list(range(len(ids)))


def test_a_long_log_is_told_in_pieces_from_its_start(engine: Asking) -> None:
    ref = engine.open(sampling=Sampling(1, logprobs=0), stream=True)
    ids = (engine.ids("word ") * 400)[:400]
    engine.table.append(ref, ids)
    engine.write(ref, len(PROMPT), len(PROMPT) + len(ids))
    engine.advance(ref, [], Finish.LENGTH)
    engine.turn()
    assert max(len(delta.logprobs) for delta in engine.deltas) <= 128 and sorted(told(engine)) == list(range(400))
    assert not any(token.best for delta in engine.deltas for token in delta.logprobs)


def test_of_a_token_that_is_very_long_its_beginning_is_told(tmp_path: Path) -> None:
    """With all that a request may list beside one token, it has to fit into the lane, since it is not divided."""
    text = "a very long word " * 400
    tokenizer, word = with_word(text)
    engine = make_engine(tmp_path, tokenizer, Asking)
    try:
        ref = engine.open(sampling=Sampling(1, logprobs=0, logprob_token_ids=[word] * MOST_LOGPROB_IDS))
        engine.advance(ref, [word], Finish.LENGTH)
        engine.turn()
        ((told_text, *_),) = told(engine).values()
        assert 1024 < len(told_text) < len(text) and text.encode().startswith(told_text)
        assert engine.clients[ref].text == text
    finally:
        engine.close()


@pytest.mark.parametrize("kept", [1, MOST_LOGPROBS])
def test_the_most_likely_that_a_request_may_ask_for_go_with_one_token(tmp_path: Path, kept: int) -> None:
    """However long they are."""
    tokenizer, word = with_word("a very long word " * 400)
    engine = make_engine(tmp_path, tokenizer, Asking, max_logprobs=-1)
    try:
        ref = engine.open(sampling=Sampling(1, logprobs=kept))
        area = Logprobs(engine.memory.files["logprobs"], *engine.memory.system.files.logprobs)
        at = area.start(slot_of(ref), len(PROMPT))
        entries = [(1, -0.5), *((word, -float(index)) for index in range(kept))]
        area.map[at : at + len(entries) * ENTRY.size] = b"".join(ENTRY.pack(*entry) for entry in entries)
        engine.advance(ref, [word], Finish.LENGTH)
        engine.turn()
        ((one,),) = (delta.logprobs for delta in engine.deltas if delta.logprobs)
        assert [value for _, _, value in one.best] == [-float(index) for index in range(kept)]
        assert min(len(text) for text, _, _ in one.best) >= 128
    finally:
        engine.close()


@pytest.mark.parametrize("lags", [False, True])
def test_many_long_tokens_beside_each_are_told_in_several_messages(tmp_path: Path, lags: bool) -> None:
    """All that a request may list, of a word that is long: a message has to fit into its lane."""
    tokenizer, word = with_word("a word that is rather a sentence")
    engine = make_engine(tmp_path, tokenizer, Asking)
    try:
        listed = [word] * MOST_LOGPROB_IDS
        ref = engine.open(sampling=Sampling(1, logprobs=0, logprob_token_ids=listed), interval=1000)
        ids = [word, *engine.ids("and")] * 100
        step = len(ids) if lags else 100
        for start in range(0, len(ids), step):
            engine.advance(ref, ids[start : start + step])
            engine.turn()
        engine.die()
        engine.advance(ref, [], Finish.LENGTH)
        engine.turn()
        found = told(engine)
        assert sorted(found) == list(range(len(ids))) and {entry[-1] for entry in found.values()} == {len(listed)}
        assert b"".join(entry[0] for _, entry in sorted(found.items())).decode() == engine.clients[ref].text
        assert len(engine.deltas) < len(ids)
    finally:
        engine.close()


def test_a_prompt_of_long_tokens_is_told_in_several_messages(tmp_path: Path) -> None:
    tokenizer, word = with_word("long " * 1000)
    engine = make_engine(tmp_path, tokenizer, Asking)
    try:
        params = msgspec.msgpack.encode(Generation(Sampling(1, prompt_logprobs=0)))
        ref = engine.table.open_slot(SLOT, params, 0)
        engine.table.write_prompt(ref, pack([word] * 300), b"", 100)
        engine.clients[ref] = Client()
        engine.advance(ref, engine.ids("word"))
        engine.turn()
        prompts = [message for message in engine.received if isinstance(message, PromptTokenLogprobs)]
        assert [at for one in prompts for at in range(one.start, one.start + len(one.logprobs))] == list(range(1, 300))
        assert all(one.logprobs for one in prompts)
    finally:
        engine.close()


@pytest.mark.parametrize("said_again", [False, True])
def test_a_long_prompt_and_a_long_answer_are_told_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said_again: bool
) -> None:
    """The loop beats between two parts, and none waits for the next one."""
    engine = make_engine(tmp_path, byte_level(), Asking)
    (word, *_), beats, waiting = engine.ids("word"), list[int](), list[int]()
    try:
        params = msgspec.msgpack.encode(Generation(Sampling(1, prompt_logprobs=MOST, logprobs=MOST)))
        ref = engine.table.open_slot(SLOT, params, 0)
        engine.table.write_prompt(ref, pack([word] * 300), b"", 300)
        engine.clients[ref] = Client()
        engine.advance(ref, [word] * (200 if said_again else 1))
        if said_again:
            engine.turn()
            engine.clients[ref] = Client()
            engine.frontend.post("detokenizer-0", Resend([ref]))
            engine.frontend.flush()
        tell, beat = engine.actor.logprobs.tell, engine.context.status.beat
        outbox = engine.context.outboxes["frontend-0"]

        def told_of(*args: Any) -> list[TokenLogprobs]:
            beats.append(0)
            waiting.append(outbox.backlog)
            return tell(*args)

        def beaten() -> None:
            beat()
            beats[-1:] = [1] if beats else []

        monkeypatch.setattr(engine.actor.logprobs, "tell", told_of)
        monkeypatch.setattr(engine.context.status, "beat", beaten)
        engine.turn()
        parts = 3 + (2 if said_again else 1)
        assert beats == [1] * parts and waiting[1:3] == [0, 0]
    finally:
        engine.close()


def with_word(text: str) -> tuple[Tokenizer, int]:
    """A tokenizer of its own, and the id."""
    tokenizer: Tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([text])
    word = tokenizer.token_to_id(text)
    assert word is not None
    return tokenizer, int(word)


@pytest.mark.parametrize("prompt_logprobs", [-1, 0, 2])
def test_prompts_are_told_before_their_answers(engine: Asking, prompt_logprobs: int) -> None:
    ref = engine.open(sampling=Sampling(1, prompt_logprobs=prompt_logprobs))
    engine.write(ref, 1, len(PROMPT))
    engine.advance(ref, [])
    engine.turn()
    assert not engine.received, "they are not computed before the first token"
    engine.advance(ref, engine.ids("word"))
    engine.turn()
    engine.die()
    engine.advance(ref, [], Finish.ABORT)
    engine.turn()
    prompts = [message for message in engine.received if isinstance(message, PromptTokenLogprobs)]
    if prompt_logprobs < 0:
        assert not prompts
        return
    assert isinstance(engine.received[0], PromptTokenLogprobs) and len(prompts) == 1
    assert [token.id for token in prompts[0].logprobs] == PROMPT[1:] and prompts[0].start == 1
    assert [len(token.best) for token in prompts[0].logprobs] == [prompt_logprobs] * 2
    assert any(isinstance(message, Delta) for message in engine.received)


@pytest.mark.parametrize("dies", [False, True])
def test_what_is_said_again_is_told_apart_from_what_was_said_before(engine: Asking, dies: bool) -> None:
    """A new reader of an answer, all of whose text comes at its end, has missed what stands before that."""
    ref = engine.open(sampling=Sampling(1, prompt_logprobs=0), stream=False)
    engine.write(ref, 1, len(PROMPT))
    engine.advance(ref, engine.ids("a word"))
    engine.turn()
    engine.frontend.post("detokenizer-0", Resend([ref]))
    engine.frontend.flush()
    if dies:
        engine.die()
    engine.advance(ref, [], Finish.LENGTH)
    engine.turn()
    said = [type(message) for message in engine.received]
    again = said[said.index(Resent) + 1 :]
    assert said.count(Resent) == 1 and again[0] is PromptTokenLogprobs and Delta in again


def test_the_bytes_of_words() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        of = bytes_of_tokens(tokenizer)
        for text in ("Hello world, 🦊 Grüße", "a b"):
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert b"".join(map(of, ids)).decode().lstrip() == text
        assert of(1 << 20) == b""


def test_the_bytes_of_words_within_a_text() -> None:
    """As llama.cpp tells them, whichever decoder a tokenizer has."""
    words = {"[CLS]": 0, "▁Hello": 1, "s": 2, "Hello": 3, "##s": 4}
    for decoder, wanted in (
        (decoders.Metaspace(), ["[CLS]", " Hello", "s", "Hello", "##s"]),
        (decoders.WordPiece(), ["[CLS]", " ▁Hello", " s", " Hello", "s"]),
    ):
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="s"))
        tokenizer.decoder = decoder
        tokenizer.add_special_tokens(["[CLS]"])
        assert [bytes_of_tokens(tokenizer)(token).decode() for token in range(5)] == wanted
