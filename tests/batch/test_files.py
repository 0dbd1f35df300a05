"""The two files of a batch."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest

from actorserve.actors.batch.files import Answers, BatchError, names, requests
from actorserve.actors.options.config import ConfigError

BODY = {"model": "demo", "prompt": "x", "logit_bias": {"7": 0.1}}


def line(name: str, **other: object) -> str:
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": BODY} | other) + "\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_requests_have_the_numbers_of_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path / "in", line("a") + "\n" + line("b"))
    assert [(number, request.custom_id, request.url) for number, request in requests(path)] == [
        (1, "a", "/v1/completions"),
        (3, "b", "/v1/completions"),
    ]
    assert names(path) == {"a", "b"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "line 1 is no request of a batch"),
        ("[]", "line 1 is no request of a batch"),
        ('{"custom_id": "a", "url": "/v1/x"}', "missing required field `body`"),
        ('{"custom_id": 7, "url": "/v1/x", "body": {}}', r"\$.custom_id"),
        (line("a", body=[]), r"\$.body"),
        (line("a", method="GET"), "method must be POST"),
        (line("a", url="http://elsewhere/v1"), "url must be a path"),
        (line("a", body={"stream": True}), "stream must be false"),
        (line("a") + line("b") + line("a"), 'line 3: custom_id "a" is that of line 1'),
        ("\xff", "no request of a batch"),
        ('{"custom_id": "a", "url": "/v1/x", "body": {"x": ' + "[" * 5000, "no request of a batch: maximum recursion"),
    ],
)
def test_what_is_no_request_is_told_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        names(written(tmp_path / "in", text))


def test_a_missing_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--input-file: .*No such file"):
        names(tmp_path / "none")


def test_a_torn_line_is_dropped_at_each_cut(tmp_path: Path) -> None:
    whole = [json.dumps({"custom_id": name, "response": None}) + "\n" for name in "ab"]
    for cut in range(1, len(whole[1]) + 1):
        path = written(tmp_path / "out", whole[0] + whole[1][:cut])
        with Answers(path, {"a", "b", "c"}) as answers:
            complete = cut == len(whole[1])
            assert answers.done == ({"a", "b"} if complete else {"a"})
            answers.append({"custom_id": "c"})
        kept = [json.loads(kept)["custom_id"] for kept in path.read_text().splitlines()]
        assert kept == (["a", "b", "c"] if complete else ["a", "c"])


def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    for text, said in (("notes\n", "line 1 is no answer"), ('{"custom_id": "z"}\n', "which is not in the input")):
        path = written(tmp_path / "out", text)
        with pytest.raises(ConfigError, match=said), Answers(path, {"a"}):
            pass
        assert path.read_text() == text


def test_one_run_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Answers(path, {"a"}), pytest.raises(ConfigError, match="another run writes"), Answers(path, {"a"}):
        pass
    with Answers(path, {"a"}) as answers:
        assert answers.done == set()


def test_a_full_disk_is_told_and_no_torn_line_is_left(tmp_path: Path) -> None:
    path = tmp_path / "out"
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            with Answers(path, {"a", "b"}) as answers:
                answers.append({"custom_id": "a", "text": "x" * 40})
                answers.append({"custom_id": "b", "text": "x" * 40})
        except BatchError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    (line,) = path.read_bytes().splitlines(keepends=True)
    assert line.endswith(b"}\n")
    with Answers(path, {"a", "b"}) as answers:
        assert answers.done == {"a"}


def test_the_end_of_another_file_is_not_dropped(tmp_path: Path) -> None:
    """It may be without a line's end, as what was torn is."""
    for text in ("notes", '{"id": 1}', "[1]", '{ "a'):
        path = written(tmp_path / "out", text)
        with pytest.raises(ConfigError, match="is no answer of a batch: name a new file"), Answers(path, {"a"}):
            pass
        assert path.read_text() == text
    with pytest.raises(ConfigError, match="is no file"), Answers(Path("/dev/full"), {"a"}):
        pass
