"""What is told of lines that are none of a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.batcher import validation
from actorserve.actors.batcher.validation import Checked, check_lines, lines_of
from actorserve.actors.files.threads import on_disk
from tests.batcher.scene import ENDPOINT, LONGEST, line


async def checked(tmp_path: Path, text: str, longest: int = LONGEST) -> Checked:
    path = tmp_path / "in"
    path.write_text(text)
    return await check_lines(path, ENDPOINT, longest)


async def test_lines_are_counted_and_the_model_is_found(tmp_path: Path) -> None:
    found = await checked(tmp_path, line("a") + "\n" + line("b"))
    assert found == Checked(2, "m", 1, [])
    assert await checked(tmp_path, line("a", body={})) == Checked(1, None, 1, [])


@pytest.mark.parametrize(
    ("text", "code", "param", "number"),
    [
        ("", "empty_file", None, None),
        ("\n \n", "empty_file", None, None),
        (line("a") + "{", "invalid_json_line", None, 2),
        ("\xff", "invalid_json_line", None, 1),
        ("[]\n", "invalid_json_line", None, 1),
        (line("a", body={"x": "y" * LONGEST}), "invalid_json_line", None, 1),
        ('{"custom_id": "a", "url": "/v1/completions"}', "missing_required_parameter", "body", 1),
        (line("a", custom_id=7), "invalid_type", "custom_id", 1),
        (line("a", body=[]), "invalid_type", "body", 1),
        (line("a", method="GET"), "invalid_method", "method", 1),
        (line("a") + line("b", url="/v1/embeddings"), "invalid_url", "url", 2),
        (line("a") + line("b") + "\n" + line("a"), "duplicate_custom_id", "custom_id", 4),
        (line("a") + line("b", body={"model": "n"}), "mismatched_model", "body.model", 2),
        (line("a") + line("b", body={}), "mismatched_model", "body.model", 2),
        (line("a" * 513), "invalid_custom_id", "custom_id", 1),
        (line("a", url="/v1/embeddings") + line("b"), "invalid_url", "url", 1),  # nor is the model of others wrong
        (line("a", method="GET") + line("b"), "invalid_method", "method", 1),
    ],
)
async def test_what_is_wrong_is_told_by_its_line(
    tmp_path: Path, text: str, code: str, param: str | None, number: int | None
) -> None:
    (error,) = (await checked(tmp_path, text)).errors
    assert (error.code, error.param, error.line) == (code, param, number) and error.message


async def test_what_is_told_has_a_length(tmp_path: Path) -> None:
    """However long what clients send is: it stands in the batch's state, which is read with each list."""
    long = "n" * 500
    found = await checked(tmp_path, line(long) + line(long) + line("b", body={"model": long}), 10_000)
    assert [error.code for error in found.errors] == ["duplicate_custom_id", "mismatched_model"]
    assert all(len(error.message) < 200 for error in found.errors)
    assert await checked(tmp_path, line("a", body={"model": "n" * 513})) == Checked(1, None, 1, [])


async def test_so_many_errors_are_told_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_ERRORS", 3)
    found = await checked(tmp_path, "{\n" * 10)
    assert [error.line for error in found.errors] == [1, 2, 3]


async def test_a_batch_has_so_many_lines_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "MOST_LINES", 2)
    assert not (await checked(tmp_path, line("a") + line("b"))).errors
    found = await checked(tmp_path, line("a") + line("b") + line("c"))
    assert [error.code for error in found.errors] == ["too_many_tasks"]


async def test_a_line_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"a" * 35 + b"\n" + b"b" * 10 + b"\n" + b"c" * 9 + b"\nd")
    found = [(number, len(text)) async for number, text in lines_of(path, 10)]
    assert found == [(1, 11), (2, 11), (3, 10), (4, 1)]


@pytest.mark.parametrize(
    ("content", "lines"), [(b"a" * 1000, 1), (b"a\n" * 100, 100), (b"a" * 99 + b"\n" + b"b" * 900, 2)]
)
async def test_lines_are_read_some_at_a_time_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, lines: int
) -> None:
    """However long they are: others have their turns between."""
    monkeypatch.setattr(validation, "TURN", 100)
    monkeypatch.setattr(validation, "LEAST", 10)
    (tmp_path / "in").write_bytes(content)
    reads: list[bool] = []

    async def count(work: Callable[..., Any], *given: object) -> Any:
        def made(*given: object) -> Any:
            reads.append(threading.current_thread() is threading.main_thread())
            return work(*given)

        return await on_disk(made, *given)

    monkeypatch.setattr(validation, "on_disk", count)
    assert len([number async for number, _ in lines_of(tmp_path / "in", 20)]) == lines
    assert len(reads) >= 8 and not any(reads)
