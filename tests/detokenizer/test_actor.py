"""The detokenizer on real rings: a test plays the scheduler and a frontend that counts characters."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tokenizers import Tokenizer

from actorserve.actors.detokenizer.stream import TextStream
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.messages import Delta, Finish
from actorserve.actors.protocol.request import Sampling
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.in_flight import MOST_TRIES
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.table.table import make_ref
from tests.support.models.tokenizers_made import byte_fallback, byte_level
from tests.support.selection import pairwise

from .bench import SLOT, Client, Engine

TEXT = "Grüße 🦊𓂀, 你好 🙂👩‍👩‍👧, it said STOP, 🦝 and went on"
END = byte_level().token_to_id("</s>") or 0


Make = Callable[..., Engine]
E = TypeVar("E", bound=Engine)


def make_engine(
    folder: Path,
    tokenizer: Tokenizer,
    kind: type[E] = Engine,  # type: ignore[assignment]
    **options: Any,
) -> E:
    """An engine whose model has this tokenizer."""
    tokenizer.save(str(folder / "tokenizer.json"))
    model = ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(folder),
        architecture="LlamaForCausalLM",
        vocab_size=tokenizer.get_vocab_size() + 8,
        max_model_len=512,
        end_tokens=[END],
        sampling_defaults={},
    )
    return kind(Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2, **options), model)), tokenizer)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A function that makes an engine; it is closed after the test."""
    engines: list[Engine] = []

    def build(tokenizer: Tokenizer | None = None) -> Engine:
        engines.append(make_engine(tmp_path, tokenizer or byte_level()))
        return engines[-1]

    yield build
    for engine in engines:
        engine.close()


def test_text_comes_as_tokens_do(make: Make) -> None:
    engine = make()
    ref, ids = engine.open(), engine.ids(TEXT)
    for token in ids[:-1]:
        engine.advance(ref, [token])
        engine.turn()
    assert all(delta.text and not delta.finish for delta in engine.deltas)
    assert 10 < len(engine.deltas) < len(ids) - 1, "some of them are no whole character"
    engine.advance(ref, ids[-1:], Finish.LENGTH)
    engine.turn()
    assert engine.clients[ref] == Client(TEXT, len(ids), Finish.LENGTH, None, True)
    assert engine.table.text(ref) == len(ids) and not engine.actor.streams and not engine.stopped


def test_told_of_a_text_before_it_begins(make: Make) -> None:
    engine = make()
    ref, ids = engine.open(), engine.ids("a fox")
    for _ in range(2):
        engine.tell(ref)
        engine.turn()
    assert not engine.deltas and list(engine.actor.streams) == [ref]
    engine.advance(ref, ids, Finish.LENGTH)
    engine.turn()
    assert engine.clients[ref].text == "a fox" and not engine.actor.streams


def test_a_step_without_text_sends_nothing(make: Make) -> None:
    engine = make()
    ref, ids = engine.open(), engine.ids("🦊")
    assert len(ids) > 1
    engine.advance(ref, ids[:1])
    engine.tell(ref, ref)
    engine.turn()
    assert not engine.deltas
    engine.advance(ref, [], Finish.ABORT)
    engine.turn()
    assert engine.clients[ref] == Client("\ufffd", 1, Finish.ABORT, None, True)


def test_what_is_not_streamed_comes_at_once(make: Make) -> None:
    engine = make()
    ref, ids = engine.open(stream=False), engine.ids(TEXT)
    for token in ids:
        engine.advance(ref, [token])
        engine.turn()
    engine.die()
    engine.turn()
    assert not engine.deltas
    engine.advance(ref, [END], Finish.STOP)
    engine.turn()
    assert engine.deltas == [Delta(ref, 0, TEXT, len(ids) + 1, Finish.STOP, None, True)]


def test_a_stop_string_ends_the_text_before_the_scheduler_knows(make: Make) -> None:
    engine = make()
    ref, ids = engine.open(stop=["STOP", "never"]), engine.ids(TEXT)
    for token in ids:
        engine.advance(ref, [token])
        engine.turn()
    expected = TEXT[: TEXT.index("STOP")]
    needed = next(n for n in range(len(ids)) if "STOP" in engine.tokenizer.decode(ids[:n]))
    assert engine.clients[ref] == Client(expected, needed, Finish.STOP_STRING, "STOP", False)
    assert engine.stopped == [ref] and engine.table.stop(ref) == needed
    engine.advance(ref, [], Finish.STOP_STRING)
    engine.turn()
    assert engine.deltas[-1] == Delta(ref, len(expected), "", needed, Finish.STOP_STRING, "STOP", True)
    assert engine.stopped == [ref] and not engine.actor.streams


def test_a_stop_string_that_the_end_completes(make: Make) -> None:
    """The scheduler has ended the sequence meanwhile, for another reason: it was the stop string for the client."""
    engine = make()
    ref = engine.open(stop=["STOP"])
    ids = engine.ids("it says STOP at once")
    engine.advance(ref, ids, Finish.LENGTH)
    engine.turn()
    (delta,) = engine.deltas
    assert (delta.text, delta.finish, delta.stop_reason, delta.last) == ("it says ", Finish.STOP_STRING, "STOP", True)


@pytest.mark.parametrize(("own", "reason"), [([5], 5), ([], None)])
def test_the_token_that_ended_it_is_named_if_the_client_did(make: Make, own: list[int], reason: int | None) -> None:
    engine = make()
    ref = engine.open(stop_token_ids=own)
    engine.advance(ref, [*engine.ids("end"), own[0] if own else END], Finish.STOP)
    engine.turn()
    assert (engine.clients[ref].text, engine.clients[ref].reason) == ("end", reason)


def test_what_ended_before_its_first_token(make: Make) -> None:
    engine = make()
    for slot, finish in enumerate((Finish.REJECTED, Finish.ABORT, Finish.ERROR, Finish.GRAMMAR)):
        ref = engine.open(slot)
        engine.advance(ref, [], finish)
        engine.turn()
        assert engine.deltas[-1] == Delta(ref, 0, "", 0, finish, None, True)


def test_messages_of_other_uses_are_passed_over(make: Make) -> None:
    engine = make()
    old = engine.open()
    engine.advance(old, engine.ids("old"))
    engine.turn()
    ref = engine.open()
    seen = len(engine.deltas)
    engine.tell(old, make_ref(99, SLOT), make_ref(1, 3))
    engine.turn()
    assert len(engine.deltas) == seen and not engine.actor.streams
    engine.advance(ref, engine.ids("new"), Finish.LENGTH)
    engine.turn()
    assert engine.clients[ref].text == "new"


def test_a_slot_that_is_reused_while_it_is_looked_at(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A late hint about an ended use: its parameters may go between two looks at the slot."""
    engine = make()
    ref = engine.open()
    engine.advance(ref, engine.ids("old"), Finish.LENGTH)
    engine.turn()
    seen = len(engine.deltas)
    monkeypatch.setattr(engine.context.table, "is_current", lambda ref: True)
    prompt_length = engine.context.table.prompt_length

    def reused(asked: int) -> int | None:
        length = prompt_length(asked)
        engine.open()
        return length

    monkeypatch.setattr(engine.context.table, "prompt_length", reused)
    engine.tell(ref)
    engine.turn()
    assert len(engine.deltas) == seen


def test_what_a_predecessor_has_sent_is_not_sent_again(make: Make) -> None:
    engine = make()
    ref = engine.open()
    engine.advance(ref, engine.ids("one"))
    engine.turn()
    engine.die()
    engine.advance(ref, engine.ids(" two"))
    engine.turn()
    assert [(delta.offset, delta.text) for delta in engine.deltas] == [(0, "one"), (3, " two")]


KINDS = {"byte level": byte_level, "byte fallback": byte_fallback}
STOPPED: dict[str, Any] = {"stop": ["said", "fox!"], "include_stop_str_in_output": True}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stop string": STOPPED,
    "late stop string": {**STOPPED, "sampling": Sampling(1, min_tokens=6)},
    "not streamed": {"stream": False},
    "stop string, not streamed": {**STOPPED, "stream": False},
    "end token": {"stop": ["nowhere to be found"]},
}


def play(engine: Engine, fields: dict[str, Any], deaths: Callable[[], str]) -> Client:
    """One sequence from begin to end; `deaths` says at each turn where the actor dies in it, if at all."""
    ref = engine.open(**fields)
    engine.stopped.clear()
    text = "We said: a fox said 你好🦊 that it was said, 🦝 said he; Grüße, fox!"
    ids = [*engine.ids(text), END]
    rng = random.Random(text)
    while engine.table.generated(ref) < len(ids) and not engine.stopped:
        at = engine.table.generated(ref)
        new = ids[at : at + rng.randrange(1, 4)]
        engine.advance(ref, new, Finish.STOP if at + len(new) == len(ids) else Finish.NONE)
        turn_with_death(engine, deaths())
    if engine.stopped:
        engine.advance(ref, [], Finish.STOP_STRING)
    for _ in range(3):
        turn_with_death(engine, deaths())
    assert set(engine.stopped) <= {ref}
    return engine.clients[ref]


def turn_with_death(engine: Engine, where: str) -> None:
    match where:
        case "before":
            engine.die()
        case "handled":  # nothing was published
            engine.context.inbox.drain(engine.actor.handle)
            engine.die()
        case "flushed":  # published, and the text cursor has not moved
            engine.context.inbox.drain(engine.actor.handle)
            engine.context.flush()
            engine.die()
        case "moved":  # the text cursor has moved, and the messages come again
            engine.context.inbox.drain(engine.actor.handle)
            engine.context.flush()
            engine.actor.published()
            engine.die()
    engine.turn()


@pytest.mark.parametrize(("case", "kind"), pairwise(CASES, KINDS))
def test_a_death_at_any_point_changes_nothing_for_the_client(make: Make, kind: str, case: str) -> None:
    tokenizer, fields = KINDS[kind](), CASES[case]
    engine = make(tokenizer)
    expected = play(engine, fields, lambda: "")
    assert expected.last and expected.finish == (
        Finish.STOP_STRING if "said" in fields.get("stop", ()) else Finish.STOP
    )
    for where in ("before", "handled", "flushed", "moved"):
        for point in range(12):
            turns = iter(range(10**6))
            assert play(engine, fields, lambda: where if next(turns) == point else "") == expected  # noqa: B023


def test_a_text_that_kills_detokenizers_ends_with_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    deadly, other = engine.open(0), engine.open(1)
    push = TextStream.push

    def dies(stream: TextStream, ids: list[int]) -> None:
        if END in ids:
            raise MemoryError("as if it were killed")
        push(stream, ids)

    monkeypatch.setattr(TextStream, "push", dies)
    engine.advance(deadly, engine.ids(TEXT)[:5])
    engine.advance(other, engine.ids(TEXT)[:5])
    engine.turn()
    engine.advance(deadly, [END])
    with pytest.raises(MemoryError):
        engine.turn()
    for _ in range(MOST_TRIES - 1):
        with pytest.raises(MemoryError):
            engine.die()
    engine.die()  # and lives
    engine.turn()
    assert engine.stopped == [deadly] and engine.clients[deadly].finish == Finish.ERROR
    assert not engine.clients[deadly].last
    engine.die()
    engine.advance(deadly, [], Finish.STOP_STRING)
    engine.advance(other, engine.ids(TEXT)[5:], Finish.LENGTH)
    engine.turn()
    assert engine.clients[deadly].last and engine.clients[other].text != ""
    assert engine.clients[other] == Client(TEXT, len(engine.ids(TEXT)), Finish.LENGTH, None, True)
