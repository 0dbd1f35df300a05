"""The command line: every option of Config, three sources of values, and refusals that name the option."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actorserve.actors.cli import main, make_parser
from actorserve.actors.config import Config, ConfigError
from actorserve.actors.options import describe_options, integer, read_config

README = Path(__file__).resolve().parent.parent / "README.md"


def read(*argv: str) -> Config:
    return read_config(make_parser("launch").parse_args(["launch", *argv]))


@pytest.fixture(autouse=True)
def _no_key_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACTORSERVE_API_KEY", raising=False)


def test_nothing_given_is_the_default() -> None:
    assert read() == Config()


def test_every_type_of_option() -> None:
    config = read(
        *("folder", "--port", "0", "--shutdown-timeout", "1.5", "--no-enable-prefix-caching", "--debug"),
        *("--served-model-name", "a", "b", "--dtype", "float16", "--kv-cache-memory-bytes", "2G", "--api-key", "k"),
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
    )


def test_lists_may_be_repeated() -> None:
    assert read("--api-key", "a", "--api-key", "b", "c").api_key == ["a", "b", "c"]


@pytest.mark.parametrize(("text", "value"), [("12", 12), ("3k", 3000), ("3K", 3072), ("1m", 10**6), ("1G", 1 << 30)])
def test_units(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--block-size", "12"), ("--block-size", "multiple of 8")),
        (("--max-num-seqs", "0"), ("--max-num-seqs", ">= 1")),
        (("--port", "70000"), ("--port", "65535")),
        (("--kv-cache-memory-fraction", "1"), ("--kv-cache-memory-fraction", "< 1")),
        (("--max-model-len", "0"), ("--max-model-len", ">= 1")),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    argv: tuple[str, ...], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["launch", *argv]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)


@pytest.mark.parametrize("argv", [["--port", "x"], ["--dtype", "float8"], ["--no-such-option"], ["--max-num", "3"]])
def test_what_is_no_option_is_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["launch", *argv])
    assert refused.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_yaml_and_the_command_line_wins(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1234\nmax-num-seqs: 7\nmax_model_len: 2k\napi_key: one\nenable_prefix_caching: false\n")
    config = read("--config", str(file), "--port", "99")
    assert (config.port, config.max_num_seqs, config.max_model_len) == (99, 7, 2000)
    assert config.api_key == ["one"] and not config.enable_prefix_caching


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-sequences: 7", "max-num-sequences"),
        ("port: eighty", "--port: eighty"),
        ("frontends: 0", "--frontends"),
        ("dtype: 8", "--dtype"),
        ("- a\n- b", "no mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_yaml_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read("--config", str(file))


def test_missing_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config: .* cannot be read"):
        read("--config", str(tmp_path / "none.yaml"))


def test_empty_yaml(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert read("--config", str(tmp_path / "empty.yaml")) == Config()


def test_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORSERVE_API_KEY", "secret")
    assert read().api_key == ["secret"]
    assert read("--api-key", "other").api_key == ["other"]


def test_the_readme_lists_every_option() -> None:
    table = "".join(f"| `{option}` | {text} |\n" for option, text in describe_options())
    assert table in README.read_text(), f"the README's table should be\n{table}"


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
    command = [sys.executable, "-m", "actorserve", "launch", str(tmp_path / "none"), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.strip() == f"actorserve: error: model: there is no folder {tmp_path / 'none'}"
    assert done.stdout == ""
