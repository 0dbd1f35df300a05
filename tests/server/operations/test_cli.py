"""The command line: every option of Config, three sources of values, and refusals that name the option."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec import inspect

from actorserve.__main__ import start
from actorserve.actors.cli import main, make_parser
from actorserve.actors.options.command_line import GROUPS, describe_options, integer, read_config
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.fields import flag, option_fields, plain_type
from tests.support.warm import run_command

from .command_line import read


@pytest.mark.parametrize("option", ["--served-model-name", "--api-key"])
def test_a_list_that_took_the_model(option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (str(tmp_path), "org/some-model.v1"):
        with pytest.raises(ConfigError, match=f"{option} took .* write MODEL before"):
            read(option, "name", model)
        assert read(str(tmp_path), option, "name", model).model == str(tmp_path)
        assert read(option, model).model == Config().model, "one value is the option's own"
    assert read(option, "name", "other").model == Config().model
    monkeypatch.setenv("ACTORSERVE_MODEL", str(tmp_path))
    assert read(option, "name", "org/other").model == str(tmp_path)


def test_nothing_given_is_the_default() -> None:
    assert read() == Config()


def test_every_type_of_option() -> None:
    config = read(
        *("folder", "--port", "0", "--shutdown-timeout", "1.5", "--no-enable-prefix-caching", "--debug"),
        *("--served-model-name", "a", "b", "--dtype", "float16", "--kv-cache-memory-bytes", "2G", "--api-key", "k"),
        *("--cudagraph-capture-sizes", "1", "2k"),
    )
    assert config == Config(
        model="folder",
        port=0,
        shutdown_timeout=1.5,
        enable_prefix_caching=False,
        debug=True,
        served_model_name=["a", "b"],
        dtype="float16",
        kv_cache_memory_bytes=2 << 30,
        api_key=["k"],
        cudagraph_capture_sizes=[1, 2000],
    )


def test_lists_may_be_repeated() -> None:
    assert read("--api-key", "a", "--api-key", "b", "c").api_key == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("12", 12), ("3k", 3000), ("3K", 3072), ("1m", 10**6), ("1G", 1 << 30), ("2t", 2 * 10**12)),
        *(("16Mi", 16 << 20), ("16MiB", 16 << 20), ("16MB", 16 << 20), ("16mB", 16_000_000), ("16 MiB", 16 << 20)),
        *(("4kB", 4000), ("4KB", 4096), ("4Ki", 4096), ("4ki", 4096), ("1.5G", 3 << 29), ("0.5k", 500), ("7B", 7)),
    ],
)
def test_units(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["", "k", "16Mx", "1.5", "1.3K", "0x10", "1e3", "4kk", "4 k i", "many", "٣"])
def test_what_is_no_number_says_what_would_be(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="not a whole number, such as 4096, 4k"):
        integer(text)
    with pytest.raises(SystemExit):
        main(["launch", f"--kv-cache-memory-bytes={text}"])
    assert f"--kv-cache-memory-bytes: {text} is not a whole number, such as 4096, 4k (4000)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--block-size", "12"), ("--block-size", "multiple of 8")),
        (("--max-num-seqs", "0"), ("--max-num-seqs: 0 is out of range (at least 1, at most 4096)",)),
        (("--port", "80000"), ("--port: 80000 is out of range (at least 0, at most 65535)",)),
        (
            ("--kv-cache-memory-fraction", "1"),
            ("--kv-cache-memory-fraction: 1.0 is out of range (more than 0, less than 1)",),
        ),
        (("--max-model-len", "0"), ("--max-model-len", "at least 1")),
        (
            ("--dtype", "float61"),
            ("--dtype: float61 is none of auto, bfloat16, float16, float32; did you mean float16?",),
        ),
        (("--device", "tpu"), ("--device: tpu is none of auto, cpu, cuda\n",)),
        (
            ("--speculative-config", '{"method": "n-gram", "num_speculative_tokens": 3}'),
            (
                "--speculative-config: method: n-gram is none of ngram, suffix, draft_model",
                "dflash; did you mean ngram?",
            ),
        ),
        (
            ("--speculative-config", '{"method": "x9"}'),
            ("method: x9 is none of ngram, suffix, draft_model, eagle, eagle3, mtp",),
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    argv: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *argv]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)


ENDLESS = {"shutdown_timeout": "the server waits for as long as its requests run"}


def test_only_what_may_have_no_end_takes_infinity() -> None:
    """Sockets and the clocks of libraries do not."""
    for name, field in option_fields().items():
        if isinstance(plain_type(field.type), inspect.FloatType):
            for text in ("inf", "nan"):
                if name not in ENDLESS or text == "nan":
                    with pytest.raises(ConfigError, match=f"{flag(name)}: {text} is out of range"):
                        read(flag(name), text)
    assert read("--step-timeout", "1e6").step_timeout == 1_000_000
    with pytest.raises(ConfigError, match=r"out of range \(at least 1, at most 1000000\)"):
        read("--step-timeout", "1e7")


@pytest.mark.parametrize("argv", [["--port", "x"], ["--no-such-option"], ["--max-num", "3"]])
def test_what_is_no_option_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["launch", *argv])
    assert refused.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_an_empty_model_is_not_the_packaged_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable of a shell that is not set."""
    for argv in ([""], ["--model", ""], ["--model-path", ""]):
        with pytest.raises(SystemExit):
            read(*argv)
        assert "MODEL: it is empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-num-seqz", "3"], "--max-num-seqz: no such option; did you mean --max-num-seqs?"),
        (["--max-num-seqz=3"], "--max-num-seqz: no such option; did you mean --max-num-seqs?"),
        (["folder", "--no-enable-prefix-cache"], "did you mean --no-enable-prefix-caching?"),
        (["--quite-other"], "--quite-other: no such option (see"),
        (["folder", "other"], "other: one argument too many"),
    ],
)
def test_the_nearest_name_is_told(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["launch", *argv])
    error = capsys.readouterr().err
    assert refused.value.code == 2 and words in error and error.count("\n") == 1


def test_help_has_groups_and_says_each_default_and_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["launch", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        *("server:", "keys, browsers, TLS:", "rendering:", "engine:", "memory:", "scheduling:", "actors:"),
        "--max-num-seqs N sequences that run at once (default: 64)",
        "--shutdown-timeout SECONDS",
        "--kv-cache-memory-bytes BYTES the size of the KV memory (default: none)",
        "again (default: on)",
        "--frontends N processes that speak HTTP (default: 1)",
        "ACTORSERVE_MAX_NUM_SEQS=16",
    ):
        assert words in text
    for option, _ in describe_options()[1:]:
        assert re.search(rf"{option}(,| )", text)


def test_a_value_in_the_word_of_its_option() -> None:
    parsed = make_parser("bench").parse_args(["bench", "plot", "a.json", "-ob.svg"])
    assert (parsed.files, parsed.output) == (["a.json"], "b.svg")


def test_serve_is_launch() -> None:
    parsed = make_parser("serve").parse_args(["serve", "folder", "--port", "1"])
    assert read_config(parsed) == read("folder", "--port", "1")
    assert parsed.run is make_parser("launch").parse_args(["launch"]).run


def test_groups_begin_at_options_that_there_are() -> None:
    assert GROUPS.keys() <= set(Config.__struct_fields__)


def test_version_and_help_are_quick_and_import_nothing_heavy() -> None:
    code = "import sys; from actorserve.actors import cli; cli.make_parser(None).format_help(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "aiohttp", "asyncio", "yaml"}
    assert not heavy & set(done.stdout.split())


def test_the_command_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("actorserve ")


def test_a_missing_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = run_command("launch", str(tmp_path / "none"), "--port", "0")
    assert done.returncode == 2
    assert done.stderr.strip() == f"actorserve: error: model: there is no folder {tmp_path / 'none'}"
    assert done.stdout == ""


def test_an_interrupt_while_something_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("actorserve.actors.cli.make_parser", interrupted)
    assert main(["check"]) == 130
    monkeypatch.setattr("actorserve.actors.cli.main", interrupted)
    assert start() == 130 and capsys.readouterr().err == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(unbuffered: str) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "actorserve", "systemd-unit"]
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.stderr == "actorserve: error: the output cannot be written: No space left on device\n"
    assert done.returncode == 1


def test_streams_that_are_closed_are_taken_by_no_file(tmp_path: Path) -> None:
    """What is opened first would be printed into."""
    (tmp_path / "options.yaml").write_text("port: 1\n")
    words = f"{sys.executable} -m actorserve systemd-unit --config {tmp_path}/options.yaml --into {tmp_path}"
    done = subprocess.run(["sh", "-c", f"{words} <&- >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "actorserve.service").read_text().startswith("[Unit]")


def test_nobody_reads() -> None:
    """As under `| head`, which has seen enough."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        command = [sys.executable, "-P", "-m", "actorserve", "check"]
        ended = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (1, "")
