"""The units that `actorserve systemd-unit` prints, and a real server as a service: ready once it has made a token, its
port kept by the manager while it is started again.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from actorserve.actors.cli import main
from actorserve.actors.commands.systemd.quoting import argument, line, path, word
from tests.support.client import http_client
from tests.support.manager import FakeServiceManager, PassedSocket
from tests.support.server import LAUNCH, Server

EXPOSURE = 20  # tenths, of 100; the network and JIT compilers are what is left
MODEL = Path(__file__).resolve().parents[3] / "actors" / "model" / "demo"
BODY = b'{"model": "actorserve-demo", "prompt": "Hello", "max_tokens": 3, "ignore_eos": true}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)
SMALL = ("--worker", "scripted", "--max-num-seqs", "2", "--max-num-queued-reqs", "2", "--max-model-len", "128")


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ACTORSERVE_")]:
        monkeypatch.delenv(name)


def settings(text: str, name: str) -> list[str]:
    """All values of a setting."""
    return re.findall(rf"^{name}=(.*)$", text, re.MULTILINE)


def unit(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["systemd-unit", *arguments]) == 0
    return capsys.readouterr().out


# --- units -------------------------------------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The service would not start; a name of the hub is looked for at its start."""
    for model, warned in ((str(tmp_path / "none"), True), (str(MODEL), False), ("org/model", False)):
        assert main(["systemd-unit", "--user", "me", model]) == 0
        assert (f"model: there is no {model}: the service does not start" in capsys.readouterr().err) == warned


def test_a_service_that_fails_is_tried_again_for_ever(capsys: pytest.CaptureFixture[str]) -> None:
    """Its hub may be there again at any time; options are what they are (status 2)."""
    text = unit(capsys, str(MODEL))
    assert settings(text, "StartLimitIntervalSec") == ["0"] and not settings(text, "StartLimitBurst")
    assert settings(text, "Restart") == ["on-failure"] and settings(text, "RestartPreventExitStatus") == ["2"]


def test_the_command_says_the_same_in_another_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODEL, "my model")
    Path("options.yaml").write_text("port: 1234\n")
    Path("keys").write_text("k\n")
    given = ["my model", "--config", "options.yaml", "--api-key-file", "keys", "--no-enable-prefix-caching", "--debug"]
    text = unit(capsys, *given, "--served-model-name", "a b", "100%", "$HOME", '"\\', "-tp", "2")
    (command,) = settings(text, "ExecStart")
    assert command == (
        f"{sys.executable} -P -m actorserve launch --config={tmp_path}/options.yaml"
        f' "{tmp_path}/my model" --api-key-file={tmp_path}/keys --no-enable-prefix-caching --debug'
        r' "--served-model-name=a b" "--served-model-name=100%%" "--served-model-name=$$HOME"'
        r' "--served-model-name=\"\\" --tensor-parallel-size=2'
    )
    bound = settings(text, "BindReadOnlyPaths")  # pytest's folders lie in /tmp
    assert {f'"{tmp_path}/my model"', f"{tmp_path}/keys", f"{tmp_path}/options.yaml"} <= set(bound)


def test_paths_in_a_file_of_options_are_said_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODEL, "mine")
    Path("options.yaml").write_text(f"model: mine\nport: 1234\nweights_folder: [mine, {tmp_path}]\nrecord: a\n")
    text = unit(capsys, "--config", "options.yaml", "--record", "b")
    assert settings(text, "ExecStart")[0].endswith(
        f"--config={tmp_path}/options.yaml --record={tmp_path}/b {tmp_path}/mine "
        f"--weights-folder={tmp_path}/mine --weights-folder={tmp_path}"
    )


def test_what_the_server_writes_is_bound_to_be_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("dumps", "kv", "kv/model"):
        Path(folder).mkdir()
    shutil.copytree(MODEL, "kv/model", dirs_exist_ok=True)
    given = ("--dump-dir", "dumps", "--kv-offload", "folder:kv:1Gi", "--profile-dir", "/var/lib", "--user", "llm")
    text = unit(capsys, "kv/model", *given)
    assert f"--dump-dir={tmp_path}/dumps" in text and f"--kv-offload=folder:{tmp_path}/kv:1Gi" in text
    assert settings(text, "BindPaths") == [f"{tmp_path}/dumps", f"{tmp_path}/kv"]
    assert settings(text, "ReadWritePaths") == ["/var/lib"]
    assert not [one for one in settings(text, "BindReadOnlyPaths") if one.startswith(str(tmp_path))]
    assert main(["systemd-unit", "--uds", "own.sock"]) == 0
    assert f"has to be able to write in {tmp_path}" in capsys.readouterr().err


def test_a_folder_below_run_is_made_at_each_start(capsys: pytest.CaptureFixture[str]) -> None:
    """It is in memory: a boot leaves none. One that is there, and is not the service's own, is not for it to remove."""
    for folder in ("/run/actorserve", "/var/run/of-ours"):
        text = unit(capsys, "--uds", f"{folder}/http.sock")
        assert settings(text, "RuntimeDirectory") == [folder.rpartition("/")[2]]
        assert not settings(text, "ReadWritePaths") and f"--uds={folder}/http.sock" in text
    assert settings(unit(capsys, "--host", "/run/actorserve/http.sock"), "RuntimeDirectory") == ["actorserve"]
    text = unit(capsys, "--uds", "/run/lock/http.sock")
    assert settings(text, "ReadWritePaths") == ["/run/lock"] and not settings(text, "RuntimeDirectory")


def test_an_interpreter_behind_links_is_bound_on_the_way(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As uv makes them: the python of a virtual environment is a link to a link to one."""
    (real := tmp_path / "pythons" / "3" / "bin" / "python3").parent.mkdir(parents=True)
    real.touch()
    (between := tmp_path / "bin" / "python3").parent.mkdir()
    between.symlink_to("../pythons/3/bin/python3")
    (own := tmp_path / "venv" / "bin" / "python").parent.mkdir(parents=True)
    own.symlink_to(between)
    monkeypatch.setattr(sys, "executable", str(own))
    bound = settings(unit(capsys), "BindReadOnlyPaths")
    assert {str(between), f"{tmp_path}/pythons/3"} <= set(bound)


def test_what_the_environment_says_is_in_the_unit_but_keys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service has another one: its socket must be that of the options that were looked at."""
    monkeypatch.chdir(tmp_path)
    Path("options.yaml").write_text("port: 1234\nmax-num-seqs: 2\n")
    for name, value in (("CONFIG", "options.yaml"), ("PORT", "81"), ("THREADS", "auto"), ("DEBUG", "0"), ("SEED", "1")):
        monkeypatch.setenv(f"ACTORSERVE_{name}", value)
    for name in ("API_KEY", "ENGINE_SECRET"):
        monkeypatch.setenv(f"ACTORSERVE_{name}", "never told, of none")
    assert main(["systemd-unit", "--seed", "2", "--socket"]) == 0
    said = capsys.readouterr()
    (command,) = settings(said.out, "ExecStart")
    assert command.endswith(
        f"launch --config={tmp_path}/options.yaml --no-debug --port=81 --seed=2 --threads=auto"
    ) and settings(said.out, "ListenStream") == ["127.0.0.1:81"]
    assert "never told" not in said.out + said.err
    assert "ACTORSERVE_API_KEY: it is not in the unit" in said.err and "ACTORSERVE_ENGINE_SECRET: " in said.err


def test_who_may_not_read_is_warned_of(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (keys := tmp_path / "keys").write_text("k\n")
    keys.chmod(0o600)
    assert main(["systemd-unit", "--api-key-file", str(keys)]) == 0
    assert f"{keys}: only its owner may read it" in capsys.readouterr().err
    assert main(["systemd-unit", "--api-key-file", str(keys), "--user", "llm"]) == 0
    keys.chmod(0o644)
    assert main(["systemd-unit", "--api-key-file", str(keys)]) == 0
    assert capsys.readouterr().err == ""


def test_models_of_links_and_parts_are_bound_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(MODEL, tmp_path / "hub" / "blobs")
    (snapshot := tmp_path / "hub" / "snapshots" / "1").mkdir(parents=True)
    for file in (tmp_path / "hub" / "blobs").iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    Path("model").symlink_to(snapshot)
    Path("gguf").mkdir()
    text = unit(capsys, "model", "--also", "gguf/*.gguf,tokenizer=model")
    assert settings(text, "ExecStart")[0].endswith(f' {snapshot} "--also={tmp_path}/gguf/*.gguf,tokenizer={snapshot}"')
    bound = {place for place in settings(text, "BindReadOnlyPaths") if str(tmp_path) in place}
    assert bound == {str(snapshot), f"{tmp_path}/hub/blobs", f"{tmp_path}/gguf"}


def test_how_words_are_quoted() -> None:
    assert [argument(text) for text in ("a", "", "a b", "50%", "$x", "'", ";", "\\", '"', "a\nb", "é")] == [
        *("a", '""', '"a b"', '"50%%"', '"$$x"', '"\'"', '";"', r'"\\"', r'"\""', r'"a\nb"', '"é"')
    ]
    assert word("$x") == '"$x"' and path("/a:b c") == '"/a:b c"' and line("50%\na") == "50%% a"


def test_times_follow_from_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    (short,) = settings(unit(capsys, "--shutdown-timeout", "0"), "TimeoutStopSec")
    (long,) = settings(unit(capsys, "--shutdown-timeout", "600"), "TimeoutStopSec")
    assert int(long) == int(short) + 600
    assert settings(unit(capsys, "--shutdown-timeout", "inf"), "TimeoutStopSec") == ["infinity"]


def test_devices_are_only_those_that_compute(capsys: pytest.CaptureFixture[str]) -> None:
    cpu, gpu = unit(capsys, "--device", "cpu"), unit(capsys, "--device", "cuda")
    assert settings(cpu, "PrivateDevices") == ["yes"] and not settings(cpu, "DeviceAllow")
    assert "char-nvidia-uvm rw" in settings(gpu, "DeviceAllow") and not settings(gpu, "PrivateDevices")
    assert "nvidia-persistenced.service" in settings(gpu, "After")[0].split(), "which loads the driver"


def test_what_lies_in_a_home_is_bound(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "a:b" / "model")
    bound = settings(unit(capsys, str(tmp_path / "a:b" / "model")), "BindReadOnlyPaths")
    assert f'"{tmp_path}/a:b/model"' in bound
    assert settings(unit(capsys), "ProtectHome") == ["tmpfs"]


def test_users(capsys: pytest.CaptureFixture[str]) -> None:
    assert settings(unit(capsys), "DynamicUser") == ["yes"]
    named = unit(capsys, "--user", "llm", "--name", "chat", "--environment-file", "/etc/my 1% keys")
    assert settings(named, "User") == ["llm"] and not settings(named, "DynamicUser")
    assert settings(named, "EnvironmentFile") == ["-/etc/my 1%% keys"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--api-key", "secret"], "--api-key: everybody can read a unit"),
        (["--admin-api-key", "secret"], "ACTORSERVE_ADMIN_API_KEY"),
        (["--socket", "--port", "0"], "--port: a socket unit"),
        (["--name", "a/b"], "--name: a/b"),
        (["--user", "a b"], "--user: a b"),
        (["--into", "/none"], "--into: /none/actorserve.service cannot be written"),
        (["--block-size", "12"], "--block-size"),
        (["--record", "/none/a"], "--record: there is no folder /none"),
        (["--dump-dir", "/tmp/no such"], "--dump-dir: there is no folder /tmp/no such, and the service cannot make it"),
        (["--uds", "/tmp/a.sock"], "--uds: /tmp/a.sock: the service has a /tmp of its own"),
        (["--host", "::1,/tmp/a.sock"], "--host: /tmp/a.sock: the service has a /tmp of its own"),
    ],
)
def test_what_is_refused(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["systemd-unit", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err and "secret" not in said.err + said.out and said.out == ""


def test_the_socket_unit(capsys: pytest.CaptureFixture[str]) -> None:
    text = unit(capsys, "--socket", "--host", "::", "--port", "80", "--name", "chat")
    service, _, own = text.partition("# chat.socket\n")
    assert settings(own, "ListenStream") == ["[::]:80"] and settings(own, "BindIPv6Only") == ["both"]
    assert settings(service, "Requires") == ["chat.socket"]
    assert "chat.socket" not in unit(capsys, "--name", "chat")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_systemd_finds_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str) -> None:
    shutil.copytree(MODEL, tmp_path / "a: 1% model")
    odd = ("--environment-file", "/etc/my 1% keys", "--served-model-name", "a b%$;", "\\", "é")
    unit(capsys, str(tmp_path / "a: 1% model"), "--device", device, "--socket", "--into", str(tmp_path), *odd)
    units = [str(tmp_path / f"actorserve.{kind}") for kind in ("service", "socket")]
    checked = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")
    secure = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", "--no-pager", units[0]]
    checked = subprocess.run(secure, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# --- a service ---------------------------------------------------------------------------------------------------


def test_ready_after_a_token_and_clients_wait_for_the_next_life() -> None:
    """Two lives on one socket: between them a client connects and sends its request, which the second life answers."""
    held = PassedSocket(socket.create_server(("127.0.0.1", 0)))
    command = (*held.command, *LAUNCH)
    try:
        with FakeServiceManager() as manager:
            with Server(*SMALL, command=command, env=held.env | manager.env) as server:
                manager.wait_for("READY", "1")
                with http_client(server) as asking:
                    counted = asking.get("/metrics").text
                (tokens,) = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", counted, re.MULTILINE)
                assert float(tokens) >= 1.0
                assert manager.wait_for("STATUS", "ready: ").endswith("restarts")
                assert server.stop() == 0
            with socket.create_connection(held.listener.getsockname()) as client:
                client.sendall(REQUEST)
                client.settimeout(60)
                with Server(*SMALL, command=command, env=held.env | manager.env):
                    answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 200 ") and b'"completion_tokens":3' in answer.replace(b" ", b"")
    finally:
        held.close()
