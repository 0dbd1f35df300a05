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


def read(*argv: str) -> Config:
    return read_config(make_parser("launch").parse_args(["launch", *argv]))


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ACTORSERVE_")]:
        monkeypatch.delenv(name)


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
        ("a: [", r"cannot be read: expected [^\n]* \(line 1\)$"),
        ("port: 1\nmodel: a\nport: 2", r"cannot be read: port is there twice \(line 3\)"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max_num_seqs: it is there twice"),
        ("tp: 2\ntp-size: 4", "tp-size: it is there twice, or by two of its names"),
        ("tensor-parallel-size: 2\ntp: 4", "tp: it is there twice, or by two of its names"),
        ("disable-cuda-graph: true\nenforce-eager: false", "enforce-eager: it is there twice"),
        ("compilation-config: 0\nenforce-eager: false", "enforce-eager: it is there twice"),
        ('warm-up: "maybe"', "--warm-up: maybe is neither true nor false"),
        ('shutdown-timeout: "soon"', "--shutdown-timeout: soon is not a number"),
        ("served-model-name: [a, '']", "--served-model-name: one of the names is empty"),
    ],
)
def test_yaml_that_cannot_be(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read("--config", str(file))


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('warm-up: "true"', "warm_up", True),
        ('warm-up: "0"', "warm_up", False),
        ('shutdown-timeout: "30"', "shutdown_timeout", 30.0),
        ("port: '9000'", "port", 9000),
        ("served-model-name: 7", "served_model_name", ["7"]),
        ("served-model-name: [1.10, on]", "served_model_name", ["1.10", "on"]),
        ("alias: 1.10", "served_model_name", ["1.10"]),
        ("api-key: 012345", "api_key", ["012345"]),
        ("revision: 2e10", "revision", "2e10"),
        ("revision: null", "revision", None),
        ("speculative-config: off", "speculative_config", "none"),
        ("cudagraph-capture-sizes: 8", "cudagraph_capture_sizes", [8]),
        ("cudagraph-capture-sizes: ['1', 2k]", "cudagraph_capture_sizes", [1, 2000]),
        ("enable-lora: true\nlora-modules: [{name: a, path: /x}]", "lora_modules", ['{"name":"a","path":"/x"}']),
        ("enable-lora: true\nlora-modules: {name: a, path: /x}", "lora_modules", ['{"name":"a","path":"/x"}']),
    ],
)
def test_yaml_is_read_as_it_is_meant(tmp_path: Path, text: str, name: str, value: object) -> None:
    """By Helm and envsubst all is quoted, and by others texts that look like numbers are not."""
    (tmp_path / "options.yaml").write_text(text)
    assert getattr(read("--config", str(tmp_path / "options.yaml")), name) == value


def test_missing_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config: .*/none.yaml cannot be read: No such file or directory$"):
        read("--config", str(tmp_path / "none.yaml"))


def test_yaml_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8"):
        read("--config", str(tmp_path / "options.yaml"))


def test_an_empty_model_is_not_the_packaged_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable of a shell that is not set."""
    for argv in ([""], ["--model", ""], ["--model-path", ""]):
        with pytest.raises(SystemExit):
            read(*argv)
        assert "MODEL: it is empty" in capsys.readouterr().err


def test_empty_yaml(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").touch()
    assert read("--config", str(tmp_path / "empty.yaml")) == Config()


def test_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORSERVE_API_KEY", "secret")
    assert read().api_key == ["secret"]
    assert read("--api-key", "other").api_key == ["other"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max_num_seqs", "16", 16),
        ("max_model_len", "2K", 2048),
        ("shutdown_timeout", "1.5", 1.5),
        ("debug", "1", True),
        ("enable_prefix_caching", "False", False),
        ("dtype", "float16", "float16"),
        ("model", "folder", "folder"),
        ("served_model_name", "a, b", ["a", "b"]),
        ("cudagraph_capture_sizes", "1,2k", [1, 2000]),
        ("cudagraph_capture_sizes", "[1, 8]", [1, 8]),
        ("allowed_origins", '["https://a.example", "null"]', ["https://a.example", "null"]),
        ("api_key", "a,b", ["a,b"]),
        ("max_num_seqs", "", 64),
        ("served_model_name", "a, b,", ["a", "b"]),
        ("lora_modules", '{"name":"a","path":"/x"}', ['{"name":"a","path":"/x"}']),
        ("lora_modules", '["b=/y", {"name":"a","path":"/x"}]', ["b=/y", '{"name":"a","path":"/x"}']),
    ],
)
def test_the_environment_sets_any_option(monkeypatch: pytest.MonkeyPatch, name: str, text: str, value: object) -> None:
    monkeypatch.setenv("ACTORSERVE_ENABLE_LORA", "1")
    monkeypatch.setenv(f"ACTORSERVE_{name.upper()}", text)
    assert getattr(read(), name) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("MAX_NUM_SEQS", "many", "many is not a whole number"),
        ("MAX_NUM_SEQS", "0", "0 is out of range (at least 1, at most 4096)"),
        ("SHUTDOWN_TIMEOUT", "soon", "soon is not a number"),
        ("DEBUG", "perhaps", "perhaps is neither 1 nor 0"),
        ("DTYPE", "float8", "float8 is none of auto"),
        ("CUDAGRAPH_CAPTURE_SIZES", "1,x", "not a whole number"),
        ("CUDAGRAPH_CAPTURE_SIZES", "[1", "[1 is no list"),
        ("CONFIG", "/none.yaml", "/none.yaml cannot be read"),
    ],
)
def test_a_variable_that_cannot_be_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
) -> None:
    monkeypatch.setenv(f"ACTORSERVE_{name}", text)
    with pytest.raises(ConfigError, match=f"^ACTORSERVE_{name}: .*{re.escape(words)}"):
        read()


def test_a_variable_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "1")
    assert read() == Config(deterministic=True)
    monkeypatch.setenv("ACTORSERVE_DETERMINISTIC", "0")
    assert read() == Config()
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", "maybe")
    with pytest.raises(ConfigError, match=r"^VLLM_BATCH_INVARIANT: maybe"):
        read()


def test_engines_elsewhere_are_named_as_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ACTORSERVE_ENGINE_SECRET", "sixteen characters")
    expected = read("--engines", "a:1", "b:2").remote_engines
    (tmp_path / "options.yaml").write_text("engines: [a:1, b:2]")
    assert read("--config", str(tmp_path / "options.yaml")).remote_engines == expected == ["a:1", "b:2"]
    monkeypatch.setenv("ACTORSERVE_ENGINES", "a:1,b:2")
    assert read().remote_engines == expected
    monkeypatch.setenv("ACTORSERVE_REMOTE_ENGINES", "c:3")
    assert read().remote_engines == ["c:3"]


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "LLAMA_API_KEY"])
def test_a_key_for_another_server_is_one_where_there_is_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, "theirs")
    assert read().api_key == ["theirs"]
    assert read("--admin-api-key", "admin").api_key == ["theirs"]
    assert read("--api-key", "ours").api_key == ["ours"]
    (tmp_path / "keys").write_text("of-file")
    assert read("--api-key-file", str(tmp_path / "keys")).api_key == ["of-file"]
    (tmp_path / "options.yaml").write_text("api-key: of-yaml")
    assert read("--config", str(tmp_path / "options.yaml")).api_key == ["of-yaml"]
    monkeypatch.setenv("ACTORSERVE_API_KEY", "ours")
    assert read().api_key == ["ours"]


def test_an_unknown_variable_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ACTORSERVE_MAX_NUM_SEQ", "secret")
    monkeypatch.setenv("ACTORSERVE_QUITE_OTHER", "")
    assert read() == Config()
    warned = capsys.readouterr().err
    assert "ACTORSERVE_MAX_NUM_SEQ: there is no such option; did you mean ACTORSERVE_MAX_NUM_SEQS?" in warned
    assert "ACTORSERVE_QUITE_OTHER: there is no such option\n" in warned and "secret" not in warned


def test_what_kubernetes_tells_of_a_service_sets_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a Service named actorserve, and of one named actorserve-http2."""
    told = {"PORT": "tcp://10.0.0.1:80", "PORT_80_TCP": "tcp://10.0.0.1:80", "PORT_80_TCP_PROTO": "tcp"}
    told |= {"SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "80", "SERVICE_PORT_HTTP": "80"}
    for name, text in told.items():
        monkeypatch.setenv(f"ACTORSERVE_{name}", text)
        monkeypatch.setenv(f"ACTORSERVE_HTTP2_{name}", text)
    assert read() == Config()
    assert capsys.readouterr().err == ""


def test_yaml_environment_command_line_in_this_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nfrontends: 1\nrenderers: 1\nserved_model_name: [a, b]\n")
    for name, text in (("FRONTENDS", "2"), ("RENDERERS", "2"), ("SERVED_MODEL_NAME", "c"), ("CONFIG", str(file))):
        monkeypatch.setenv(f"ACTORSERVE_{name}", text)
    config = read("--renderers", "3")
    assert (config.port, config.frontends, config.renderers, config.served_model_name) == (1, 2, 3, ["c"])
    (tmp_path / "other.yaml").write_text("port: 2\n")
    assert read("--config", str(tmp_path / "other.yaml")).port == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-num-seq", "3"], "--max-num-seq: no such option; did you mean --max-num-seqs?"),
        (["--max-num-seq=3"], "--max-num-seq: no such option; did you mean --max-num-seqs?"),
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


def test_the_nearest_name_is_told_for_yaml(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("max_num_seq: 7\n")
    with pytest.raises(ConfigError, match=r"no such option; did you mean max_num_seqs\?"):
        read("--config", str(file))


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
