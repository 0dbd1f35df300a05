"""The server's output: nobody who reads slowly holds it up, and nothing is lost in silence."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

from actorserve.actors.supervisor.output import LIMIT, LONGEST, Lines, Output


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
