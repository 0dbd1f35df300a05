"""The media actor over real rings and memory: a test plays frontend and renderer, and kills it at every step."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pytest
import torch  # noqa: F401  # before transformers, which would believe for all of this process that there is none

from actorserve.actors.frontend.media import MediaGate, Record
from actorserve.actors.media import actor, requests, steps
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.protocol.media import BASE64, FILE, MediaSource
from actorserve.actors.protocol.messages import Failed, Render
from actorserve.actors.protocol.topics.administration import ForgetMedia, MediaForgotten
from actorserve.actors.protocol.topics.calls import Tokenize, call_numbers
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.actors.runtime.in_flight import MOST_TRIES, Ended
from actorserve.http.errors import ApiError
from actorserve.shm.layout import generation_of, slot_of
from actorserve.shm.media import arena, entries
from tests.shm.aborting import aborted
from tests.support.models.vision.films import film
from tests.support.models.vision.folders import picture

from .played import PART, Bench, source


def test_a_request_goes_on_to_its_renderer_with_its_tensors(bench: Bench) -> None:
    refs = bench.ask(source(1), source(2), source(1), refs=[bench.open(), bench.open()])
    bench.run()
    [message] = bench.rendered()
    assert isinstance(message, Render) and message.refs == refs and message.prompt == TextPrompt("x")
    assert [one.count for one in message.media] == [15, 15, 15]
    assert message.media[0] == message.media[2] != message.media[1]
    assert bench.pixels(message.media[0]).shape == (60, 96)
    for ref in refs:
        held = bench.media.arena.holds(slot_of(ref), generation_of(ref))
        assert [entry for entry, _ in held] == [held[0][0], held[1][0], held[0][0]] and held[0] != held[1]
    bench.gate.done(refs[1])
    assert bench.gate._inbox.used == 0 and not bench.gate._records


def test_a_file_of_bytes_is_the_same_picture(bench: Bench) -> None:
    bench.ask(source(1))
    bench.ask(MediaSource("image", PART, data=picture(40, 24, 1), form=FILE))
    bench.run()
    first, second = bench.rendered()
    assert first.media == second.media


def test_base64_as_clients_write_it(bench: Bench) -> None:
    """Without what fills it up, with other letters, in lines, and as in other addresses."""
    whole = next(data for size in range(3) if len(data := picture(40, 24, 1) + bytes(size)) % 3 == 1)
    plain = base64.b64encode(whole)
    ways = [plain, plain.rstrip(b"="), base64.urlsafe_b64encode(whole), base64.encodebytes(whole)]
    ways.append(plain.replace(b"+", b"%2B").replace(b"/", b"%2f").replace(b"=", b"%3D"))
    for data in ways:
        bench.ask(MediaSource("image", PART, data=data, form=BASE64))
    bench.run()
    first, *others = [message.media for message in bench.rendered()]
    assert len(others) == 4 and all(media == first for media in others)


def test_a_request_that_is_too_long_for_its_renderer_costs_no_actor(bench: Bench) -> None:
    """Pictures and all: it is answered, and a successor does not find it."""
    refs = [bench.open()]
    text = TextPrompt("x" * bench.frontend.outboxes["renderer-0"].max_message)
    record = bench.gate.reserve(Render([], text), [source(1)], len(refs))
    bench.gate.render("renderer-0", record, refs)
    bench.ask(source(2))
    bench.run()
    [failed] = bench.told()
    assert isinstance(failed, Failed) and (failed.refs, failed.status) == (refs, 413)
    assert len(bench.rendered()) == 1 and refs[0] not in bench.media.entries._holders
    bench.restart()
    assert not bench.media._pending


def scene(model: ModelInfo) -> Bench:
    """Two requests wait; a third is done, and ends now."""
    made = Bench(model)
    old = made.ask(source(3))
    made.run()
    made.rendered()
    made.table.write_prompt(old[0], [1], b"", 1)
    made.table.set_finish(old[0], 1)
    made.ask(source(1), source(2))
    made.ask(source(2))
    return made


@pytest.mark.parametrize("stride", [3, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_every_step_its_successor_does_all_that_is_not_done(model: ModelInfo, stride: int) -> None:
    """Each request reaches the renderer at least once, with the right pixels; what is held is held by who runs."""
    reference = scene(model)
    reference.run()
    wanted = [[reference.pixels(one) for one in message.media] for message in reference.rendered()]
    reference.close()
    at, was_aborted, scenes = 0, True, 0
    while was_aborted:
        at += 1 + at // stride
        scenes += 1
        made = scene(model)
        was_aborted = aborted(made.run, at, (actor, requests, entries, arena))
        made.restart()
        made.run()
        assert made.told() == []
        got = {}
        for message in made.rendered():
            got[message.refs[0]] = [made.pixels(one) for one in message.media]
        assert len(got) == 2
        for pictures, expected in zip((got[ref] for ref in sorted(got)), wanted, strict=True):
            assert all(map(np.array_equal, pictures, expected)) and len(pictures) == len(expected)
        assert all(made.media.arena.is_finished(ref) for ref in got)
        made.restart()
        made.run()
        assert made.rendered() == [] and set(made.media.entries._holders) == set(got)
        made.close()
    assert scenes > 12


def test_a_picture_that_kills_costs_its_own_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    [bad] = bench.ask(source(1))
    [good] = bench.ask(source(2))
    process = bench.media.maker.processors["image"].process
    deadly = picture(40, 24, 1)

    class Killed(BaseException):
        """As kill -9 is."""

    def dying(self: Any, data: bytes, given: MediaSource) -> Any:
        if data == deadly:
            raise Killed
        return process(data, given)

    monkeypatch.setattr(type(bench.media.maker.processors["image"]), "process", dying)
    for _ in range(MOST_TRIES):
        with pytest.raises(Killed):
            bench.run()
        bench.restart()
    bench.run()
    [failed] = bench.told()
    assert (failed.refs, failed.status, failed.param) == ([bad], 500, PART)
    assert [message.refs for message in bench.rendered()] == [[good]]


def test_a_picture_that_hangs_is_given_up_at_once(bench: Bench) -> None:
    [bad] = bench.ask(source(1))
    bench.context.in_flight.take(bad)  # it stands still over it, and is killed for that
    bench.restart(Ended.HUNG)
    bench.run()
    [failed] = bench.told()
    assert (failed.refs, failed.status) == ([bad], 422) and "within 10 s" in failed.message


@pytest.mark.parametrize(
    ("given", "status", "said"),
    [
        (MediaSource("image", PART, data=b"%%%", form=BASE64), 400, f"{PART}: its base64 is wrong"),
        (MediaSource("image", PART, data=b"<svg/>", form=FILE), 400, f"{PART}: it is SVG"),
        (source(0, 64, 64), 400, f"{PART}: it takes 64 tokens of the 60 that the model takes"),
        (MediaSource("image", PART, url="http://127.0.0.1/"), 400, f"{PART}: 127.0.0.1 is no public address"),
    ],
)
def test_what_cannot_be_is_refused_and_others_are_not(
    model: ModelInfo, given: MediaSource, status: int, said: str
) -> None:
    bench = Bench(msgspec.structs.replace(model, max_model_len=60))
    [bad], [good] = bench.ask(source(1), given), bench.ask(source(2))
    bench.run()
    [failed] = bench.told()
    assert (failed.refs, failed.status, failed.param) == ([bad], status, PART) and said in failed.message
    assert [message.refs for message in bench.rendered()] == [[good]]
    bench.close()


def test_whose_client_has_gone_is_not_worked_on(bench: Bench) -> None:
    [gone], [new] = bench.ask(source(1)), bench.ask(source(2))
    bench.table.cancel(gone)
    bench.run()
    [failed] = bench.told()
    assert isinstance(failed, Failed) and (failed.refs, failed.status) == ([gone], 499)
    assert [message.refs for message in bench.rendered()] == [[new]]


def test_who_finds_no_memory_waits_for_it_and_is_told_in_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    first = bench.ask(*(source(seed) for seed in range(16)))
    bench.run()
    [second] = bench.ask(source(90))
    for _ in range(5):
        bench.turn()
    assert len(bench.rendered()) == 1 and bench.told() == []
    bench.table.write_prompt(first[0], [1], b"", 1)
    bench.table.set_finish(first[0], 1)
    bench.run()
    assert [message.refs for message in bench.rendered()] == [[second]]
    bench.ask(*(source(seed) for seed in range(100, 115)))
    bench.run()
    bench.rendered()
    [third] = bench.ask(source(120))
    monkeypatch.setattr(actor, "ROOM_S", -1.0)
    bench.run()
    [failed] = bench.told()
    assert (failed.refs, failed.status) == ([third], 503) and "--media-memory-bytes" in failed.message


def test_more_than_all_of_the_memory_is_refused_at_once(model: ModelInfo) -> None:
    bench = Bench(model, mm_processor_kwargs='{"size": {"shortest_edge": 64, "longest_edge": 1000000}}')
    bench.ask(source(1, 500, 300))
    bench.run()
    [failed] = bench.told()
    assert failed.status == 413 and "--media-memory-bytes" in failed.message and failed.param == PART
    bench.close()


def test_what_was_processed_is_found_again_by_a_successor_until_it_is_forgotten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.ask(source(1))
    bench.run()
    bench.restart()
    counted: list[bytes] = []
    process = bench.media.maker.processors["image"].process

    def counting(self: Any, data: bytes, given: MediaSource) -> Any:
        counted.append(data)
        return process(data, given)

    monkeypatch.setattr(type(bench.media.maker.processors["image"]), "process", counting)
    bench.ask(source(1))
    bench.run()
    assert counted == []
    number = next(call_numbers(0, 1))
    bench.frontend.post("media-0", ForgetMedia(number))
    bench.frontend.flush()
    bench.run()
    assert bench.told() == [MediaForgotten(number)]
    bench.ask(source(1))
    bench.run()
    assert len(counted) == 1 and len(bench.rendered()) == 3


def test_a_question_without_a_slot(bench: Bench) -> None:
    number = next(call_numbers(0, 1))
    bench.gate.ask("renderer-0", Tokenize(number, TextPrompt("x")), [source(1)])
    bench.frontend.flush()
    bench.run()
    [message] = bench.rendered()
    assert message.call == number and message.media[0].count == 15
    bench.gate.done(number)
    bench.gate.ask("renderer-0", Tokenize(number + 1, TextPrompt("x")), [MediaSource("image", PART, data=b"")])
    bench.frontend.flush()
    bench.run()
    [failed] = bench.told()
    assert (failed.call, failed.status, failed.refs) == (number + 1, 400, [])


def test_a_record_of_another_life_of_the_frontend_is_not_read(bench: Bench) -> None:
    [old] = bench.ask(source(1))
    bench.gate = MediaGate(bench.frontend)  # a successor's: its region is empty
    [new] = bench.ask(source(2), refs=[bench.open()])
    bench.run()
    assert [message.refs for message in bench.rendered()] == [[new]]
    assert old != new


def film_source(data: bytes) -> MediaSource:
    return MediaSource("video", PART, data=data, form=FILE)


def test_a_film_takes_many_turns_and_pictures_need_not_wait(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PART_S", 0.0)
    [slow] = bench.ask(source(4), film_source(film(10)))
    [quick] = bench.ask(source(1), source(2))
    turns = 1
    while bench.turn() or bench.media._pending:
        turns += 1
    assert [message.refs for message in bench.rendered()] == [[quick], [slow]] and turns > 20


def test_a_film_is_begun_again_by_a_successor(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PART_S", 0.0)
    data = film(10)
    bench.ask(film_source(data))
    bench.run()
    [wanted] = bench.rendered()
    bench.media.entries.forget()
    pixels = bench.pixels(wanted.media[0])
    [ref] = bench.ask(film_source(data))
    for _ in range(6):
        bench.turn()
    assert bench.media._pending[ref].parts[0].work is not None
    bench.restart()
    bench.run()
    [message] = bench.rendered()
    assert message.refs == [ref] and message.media[0].text == wanted.media[0].text
    assert np.array_equal(bench.pixels(message.media[0]), pixels)
    assert message.media[0].digest == wanted.media[0].digest


def test_what_never_has_room_is_told_so_and_what_has_none_now_is_to_wait(model: ModelInfo) -> None:
    bench = Bench(model, max_media_bytes=1024)
    _, room = bench.memory.system.files.media_inbox
    message = Render([], TextPrompt("x"))

    def reserve(size: int, beside: int = 0) -> Record:
        small, large = (MediaSource("image", field, data=bytes(count)) for field, count in (("a", 1), ("b", size)))
        return bench.gate.reserve(message, [small, large], 1, beside)

    with pytest.raises(ApiError) as caught:
        reserve(room)
    assert (caught.value.status, caught.value.param) == (413, "b") and f"at most {room} are taken" in str(caught.value)
    record = reserve(room // 2)
    with pytest.raises(ApiError) as caught:
        reserve(room // 2)
    assert caught.value.status == 503
    with pytest.raises(ApiError) as caught:
        reserve(room // 2, record.taken)
    assert (caught.value.status, caught.value.param) == (413, "b")
    bench.gate.give_back(record)
    assert bench.gate.used == 0 and reserve(room // 2)
    bench.close()
