"""The server's output: nobody who reads slowly holds it up, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from actorserve.actors.supervisor.output import LIMIT, LONGEST, Lines, Output, is_journal
from actorserve.actors.telemetry.log_format import (
    JsonFormatter,
    RequestName,
    iso_time,
    json_line,
    local_time,
    message_of,
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def read_all(fd: int, output: Output) -> str:
    """Take everything as a slow reader does, with the writer going on in between."""
    os.set_blocking(fd, False)
    text = b""
    while True:
        try:
            text += os.read(fd, 1 << 16)
        except BlockingIOError:
            return text.decode()
        output.finish(0.01)


def test_a_line_bears_its_name(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    output.line("worker", b"hello")
    output.say("ready")
    assert os.read(pipe[0], 1000) == b"worker        | hello\nsupervisor    | ready\n"


def test_a_line_of_text_begins_with_the_local_time(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert local_time(1e9) == "2001-09-09 03:46:40.000"
    finally:
        monkeypatch.undo()
        time.tzset()
    output = Output(pipe[1], with_time=True)
    output.line("worker", b"hello")
    output.say("two\nlines")
    said = os.read(pipe[0], 1000).decode().splitlines()
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    assert [re.sub(when, "", line) for line in said] == [
        "worker        | hello",
        "supervisor    | two",
        "supervisor    | lines",
    ]
    assert all(re.match(when, line) for line in said)


def test_the_journal_is_known_by_its_file(pipe: tuple[int, int]) -> None:
    file = os.fstat(pipe[1])
    assert is_journal(pipe[1], {"JOURNAL_STREAM": f"{file.st_dev}:{file.st_ino}"})
    assert not is_journal(pipe[1], {"JOURNAL_STREAM": "8:1"}) and not is_journal(pipe[1], {})


def test_a_reader_that_stands_still_gets_all_that_fits_and_a_count_of_the_rest(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    for number in range(100_000):
        output.line("worker", b"line %d" % number)
    text = read_all(pipe[0], output)
    kept = [int(n) for n in re.findall(r"^worker +\| line (\d+)$", text, re.MULTILINE)]
    assert kept == list(range(len(kept))) and LIMIT // 50 < len(kept) < 100_000
    (dropped,) = re.findall(r"^supervisor +\| (\d+) lines were dropped here", text, re.MULTILINE)
    assert len(kept) + int(dropped) == 100_000
    output.line("worker", b"again")
    assert os.read(pipe[0], 1000) == b"worker        | again\n"


def test_the_loop_goes_on_writing_when_the_reader_does(pipe: tuple[int, int]) -> None:
    async def scenario() -> bytes:
        loop = asyncio.get_running_loop()
        output = Output(pipe[1])
        output.watch(loop)
        output.line("a", b"x" * 200_000)
        text = b""
        os.set_blocking(pipe[0], False)
        async with asyncio.timeout(30):
            while text.count(b"x") < 200_000:
                with suppress(BlockingIOError):
                    text += os.read(pipe[0], 1 << 16)
                await asyncio.sleep(0)
        return text

    assert asyncio.run(scenario()).endswith(b"x\n")


def test_nobody_reads_any_more(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1])
    os.close(pipe[0])
    output.say("to nobody")
    output.say("to nobody")
    output.finish(0.01)
    assert not output._waiting and output._size == 0 and output._dropped == 2


def test_a_full_disk_loses_lines_and_says_so() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    output = Output(full)
    output.say("lost")
    output.say("lost")
    os.dup2(writer, full)  # there is room again
    output.say("kept")
    output.finish(0.1)
    text = os.read(reader, 1000).decode()
    assert "kept" in text and "2 lines were dropped" in text
    for fd in (full, reader, writer):
        os.close(fd)


def lines_of(*writes: bytes) -> list[bytes]:
    async def scenario() -> list[bytes]:
        reader, writer = os.pipe()
        taken: list[bytes] = []
        lines = Lines(reader, taken.append)
        for data in writes:
            os.write(writer, data)
            lines.read()
        os.close(writer)
        async with asyncio.timeout(10):
            while lines.open:
                await asyncio.sleep(0)
        return taken

    return asyncio.run(scenario())


def test_lines_are_put_together_and_taken_apart() -> None:
    assert lines_of(b"a\nb", b"c\n\nd") == [b"a", b"bc", b"", b"d"]


def test_a_line_without_end_is_broken() -> None:
    assert lines_of(b"x" * (LONGEST + 1), b"y\n") == [b"x" * LONGEST, b"x", b"y"]


# --- as JSON -----------------------------------------------------------------------------------------------------


def test_objects_pass_and_all_else_becomes_one(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1], as_json=True)
    own = json_line("error", "worker", 7, "a “quoted” word", {"request_id": "r1"})
    assert output.line("worker", own, 7) == "a “quoted” word".encode()
    others = [
        b"plain",
        b"",
        own[:-9],  # its writer was killed
        own + own,
        own.replace(b"word", b"\xff"),
        b'{"time":"now","message":5}',
        b'{"level":"info","message":"a library\'s"}',
        b'{"time":' + b"[" * 10_000,
        b'{"time":NaN,"message":"a"}',
        b"\x00\x1b[31mred\xff\r",
    ]
    for other in others:
        output.line("worker", other, 7)
    output.say("two\nlines", "critical")
    first, *rest, last = os.read(pipe[0], 1 << 20).splitlines()
    assert first == own
    said = [json.loads(line) for line in rest]
    assert {(line["level"], line["actor"], line["pid"]) for line in said} == {("warning", "worker", 7)}
    assert [line["message"] for line in said[:3]] == ["plain", "", own[:-9].decode()]
    assert len(said) == len(others) and said[-1]["message"] == "\x00\x1b[31mred\ufffd"
    assert (json.loads(last)["level"], json.loads(last)["message"]) == ("critical", "two\nlines")


def test_the_count_of_dropped_lines_is_an_object_too(pipe: tuple[int, int]) -> None:
    output = Output(pipe[1], as_json=True)
    for number in range(40_000):
        output.line("worker", b"line %d" % number)
    lines = [json.loads(line) for line in read_all(pipe[0], output).splitlines()]
    (dropped,) = [line["message"] for line in lines if line["actor"] == "supervisor"]
    assert int(dropped.split()[0]) == 40_000 - (len(lines) - 1) > 0


def test_a_line_that_was_lost_in_its_middle_ends_where_the_next_one_begins(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, tries = os.write, iter(range(100))

    def failing(fd: int, data: bytes) -> int:
        match next(tries):
            case 0:
                return write(fd, data[:100])
            case 1:
                raise OSError(errno.ENOSPC, "the disk is full")
        return write(fd, data)

    output = Output(pipe[1], as_json=True)
    monkeypatch.setattr(os, "write", failing)
    output.line("worker", b"y" * 10_000)
    output.line("worker", b"after")
    cut, *whole = os.read(pipe[0], 1 << 16).splitlines()
    assert len(cut) == 100
    said = [json.loads(line)["message"] for line in whole]
    assert said[0] == "after" and said[1].startswith("1 lines were dropped")


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00" * 30_000, "é" * 40_000, "\ud800 half a pair"])
def test_no_object_is_so_long_that_it_is_broken(text: str) -> None:
    line = json_line("info", "worker", 1, text, {"exception": text, "request_id": "r1"})
    assert len(line) <= LONGEST
    said = json.loads(line)
    assert said["actor"] == "worker" and said["message"][0] in (text[0], "?")
    assert message_of(line) is not None
    assert said["request_id"] == "r1" and (len(text) < 100 or len(line) > LONGEST // 4)


def test_a_record_is_one_object_with_its_traceback_and_its_request() -> None:
    try:
        raise ValueError("a\nreason")
    except ValueError:
        record = logging.LogRecord("a", logging.ERROR, "", 0, "%s failed", (RequestName("r1", "0x1"),), sys.exc_info())
    said = json.loads(JsonFormatter("worker").format(record))
    assert (said["level"], said["message"], said["request_id"]) == ("error", "request r1 failed", "r1")
    assert said["exception"].startswith("Traceback") and said["exception"].endswith("ValueError: a\nreason")
    assert message_of(JsonFormatter("worker").format(record).encode()) == "request r1 failed: reason"


def test_a_time_is_written_to_the_millisecond() -> None:
    assert iso_time(0.9999) == "1970-01-01T00:00:00.999Z"
    assert iso_time(1e9) == "2001-09-09T01:46:40.000Z"
