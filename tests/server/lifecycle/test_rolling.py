"""`actorserve restart` under load: nobody notices, or is told before anything happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from actorserve.actors.protocol.kinds import KINDS
from tests.support.certificates import OPENSSL, Certificates
from tests.support.client import CAPITAL, connect, http_session
from tests.support.rolling import CodeCopy, Load, command, restart, stream
from tests.support.selection import slow
from tests.support.server import Server

STREAMS, TOKENS = 24, 24
TWO = ("--frontends", "2", "--renderers", "2", "--detokenizers", "2", "--max-restarts", "1")
SCRIPTED = ("--worker", "scripted", "--max-model-len", "2048")
SAYS = """
_main = main


def main(context):
    context.log.info("this is the second version")
    _main(context)
"""
CANNOT_START = """
def main(context):
    raise RuntimeError("the second version cannot start")
"""
HANGS_ONCE = """
_main = main


def main(context):
    import os, signal

    try:
        os.close(os.open({flag!r}, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return _main(context)
    context.log.info("this one waits to be killed")
    signal.pause()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", *TWO) as running:
        yield running


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> CodeCopy:
    return CodeCopy(tmp_path_factory.mktemp("code"))


@pytest.fixture(scope="module")
def copied(code: CodeCopy) -> Iterator[Server]:
    with Server(*SCRIPTED, env=code.env) as running:
        yield running


@pytest.fixture
def changed(code: CodeCopy) -> Iterator[CodeCopy]:
    yield code
    code.undo()


def ask(server: Server, path: str = "/v1/completions", given: dict[str, Any] | None = None) -> Any:
    connection = connect(server)
    connection.request("POST", path, json.dumps(given or CAPITAL)) if given != {} else connection.request("GET", path)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    assert response.status == 200, answer
    return json.loads(answer)


def check(load: Load, expected: str) -> None:
    """All streams of one client said the same, and all short answers are right."""
    assert len(load.texts) == load.streams and all(len(texts) == 1 for texts in load.texts.values())
    assert set(load.answers) == {expected} and len(load.answers) >= load.short


def test_all_are_replaced_under_load(server: Server) -> None:
    """Every actor has a new process, and no client has noticed. Wanted ends are no crashes: one crash a minute is all
    that this server allows. It takes seconds, since streams run on while a worker imports torch and warms up.
    """
    expected = ask(server)["choices"][0]["text"]
    before, actors = server.pids(), server.actors()
    load = Load(server, STREAMS, TOKENS)

    def action() -> None:
        said = restart(server, "all")
        assert all(f"{name} is replaced" in said for name in actors), said

    load.run(action)
    check(load, expected)
    after = server.pids()
    assert after.keys() == before.keys() and not set(after.values()) & set(before.values())


@pytest.mark.slow
def test_kind_by_kind_and_all_twice_under_load(server: Server) -> None:
    expected = ask(server)["choices"][0]["text"]
    load = Load(server, STREAMS, 3 * TOKENS)
    kinds = dict.fromkeys(name.partition("-")[0] for name in server.actors())
    assert kinds.keys() < KINDS.keys(), "others are named where they are asked for"
    load.run(lambda: [restart(server, kind) for kind in (*kinds, "all", *kinds, "all")])
    check(load, expected)


def test_the_second_restart_at_once_is_refused(server: Server) -> None:
    """The first one waits for an actor that is stopped."""
    stopped = server.pids()["detokenizer-0"]
    psutil.Process(stopped).suspend()
    first = asyncio.run(_first_and_second(server, stopped))
    assert first == 0 and server.pids()["detokenizer-0"] != stopped


async def _first_and_second(server: Server, stopped: int) -> int:
    first = asyncio.create_task(asyncio.to_thread(command, server, "restart", "detokenizer"))
    await asyncio.to_thread(server.wait_for, "restart of detokenizer: 2 actors")
    second = await asyncio.to_thread(command, server, "restart", "frontend")
    assert second.returncode == 1 and "a restart of detokenizer is under way" in second.stderr
    os.kill(stopped, signal.SIGCONT)
    return (await first).returncode


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["renderer", "--set", "max_num_seqs=3"], 1, "These may: --chat-template, "),
        (["frontend", "--set", "threads=3"], 1, "--threads cannot change in a restart of frontend"),
        (["scheduler", "--set", "max_num_batched_tokens=9999"], 1, "--max-num-batched-tokens: at most 1024"),
        (["renderer", "--set", "log_level=loud"], 2, "--set log_level: loud is none of debug, error, info, warning"),
        (["renderer", "--set", "log_levle=info"], 2, "no such option; did you mean log_level?"),
        (["renderer", "--set", "log_level"], 2, "not of the form OPTION=VALUE"),
        (["rendrer"], 1, "there is no actor 'rendrer'; there are worker, "),
    ],
)
def test_what_cannot_be_is_refused(server: Server, words: list[str], status: int, reason: str) -> None:
    before = server.pids()
    refused = command(server, "restart", *words)
    assert refused.returncode == status and reason in refused.stderr, refused.stderr
    assert server.pids() == before


@pytest.mark.slow
@pytest.mark.skipif(OPENSSL is None, reason="certificates are made by the openssl command")
def test_behind_tls_a_frontend_ends_its_streams_first(tmp_path: Path) -> None:
    """Its keys die with it, so that nobody else could go on with them."""

    async def restart_under_a_stream(server: Server) -> None:
        begun: list[int] = []
        async with http_session(server, False) as session:
            running = asyncio.create_task(stream(session, 1, 1500, lambda: begun.append(1)))
            while not begun:
                await asyncio.sleep(0.001)  # the stream runs; what is waited for is its beginning
            await asyncio.to_thread(restart, server, "frontend")
            assert running.done() and await running

    files = Certificates(tmp_path)
    with Server(*SCRIPTED, "--scripted-step-ms", "3", *files.options()) as server:
        before = server.pids()["frontend-0"]
        asyncio.run(restart_under_a_stream(server))
        assert server.pids()["frontend-0"] != before


async def _one(session: aiohttp.ClientSession, number: int, tokens: int, begun: set[int]) -> str:
    return await stream(session, number, tokens, lambda: begun.add(number))


def _is_told_to_end(pid: int) -> bool:
    """Does SIGTERM wait for this stopped process? (proc(5): ShdPnd)"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (pending,) = (int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd:"))
    return bool(pending >> (signal.SIGTERM - 1) & 1)


def test_a_server_that_ends_in_the_middle_drains_with_the_successors() -> None:
    """SIGTERM comes as the worker is to end: streams go on with its successor."""

    async def end_in_the_middle(server: Server) -> int:
        worker, begun = server.pids()["worker"], set[int]()
        async with http_session(server) as session:
            streams = [asyncio.create_task(_one(session, number, 100, begun)) for number in range(8)]
            while len(begun) < len(streams):
                await asyncio.sleep(0.001)  # the streams run; what is waited for is a number of events
            psutil.Process(worker).suspend()
            running = asyncio.create_task(asyncio.to_thread(command, server, "restart", "worker"))
            while not _is_told_to_end(worker):
                await asyncio.sleep(0.01)  # the signal is on its way: nothing can be waited on
            server.signal(signal.SIGTERM)
            await asyncio.to_thread(server.wait_for, "the restart of worker stops: the server ends")
            os.kill(worker, signal.SIGCONT)
            assert all(await asyncio.gather(*streams))
            return (await running).returncode

    with Server(*SCRIPTED, "--scripted-step-ms", "5") as server:
        assert asyncio.run(end_in_the_middle(server)) == 1
        assert server.wait() == 0


def test_options_may_change(copied: Server) -> None:
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1}
    before = ask(copied, "/v1/chat/completions", chat)["usage"]["prompt_tokens"]
    restart(copied, "renderer", "--set", "chat_template={{ messages[0].content }}", "--set", "log-level=debug")
    assert 0 < ask(copied, "/v1/chat/completions", chat)["usage"]["prompt_tokens"] < before
    restart(copied, "frontend", "--set", "served_model_name=one", "--set", "served_model_name=two")
    assert [one["id"] for one in ask(copied, "/v1/models", {})["data"]] == ["one", "two"]
    assert 0 < ask(copied, "/v1/chat/completions", chat)["usage"]["prompt_tokens"] < before, "options stay"
    restart(copied, "renderer", "--set", "chat_template=", "--set", "log_level=info")
    assert ask(copied, "/v1/chat/completions", chat)["usage"]["prompt_tokens"] == before


def test_a_file_may_say_what_is_so_already(copied: Server, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("worker: scripted\nmax-model-len: 2048\nlog-level: debug\n")
    restart(copied, "detokenizer", "--config", str(file))
    file.write_text("frontends: 3\n")
    refused = command(copied, "restart", "detokenizer", "--config", str(file))
    assert refused.returncode == 1 and "--frontends cannot change in a restart of detokenizer" in refused.stderr


# --- code on disk ----------------------------------------------------------------------------------------------------


def test_the_new_ones_run_the_code_on_disk(copied: Server, changed: CodeCopy) -> None:
    for kind in KINDS.values():
        changed.append(kind.module.removeprefix("actorserve.").replace(".", "/") + ".py", SAYS)
    restart(copied, "all")
    for name in copied.actors():
        copied.wait_for(rf"{name} +\| INFO this is the second version", since_start=True)
    os.kill(copied.pids()["renderer-0"], signal.SIGKILL)  # after a crash, too
    copied.wait_for("renderer-0 ended .* killed by SIGKILL")
    copied.wait_for(r"renderer-0 +\| INFO this is the second version")
    copied.wait_for("renderer-0 is up")


def test_code_that_cannot_be_imported_changes_nothing(copied: Server, changed: CodeCopy) -> None:
    before = copied.pids()
    changed.append("actors/renderer/actor.py", "raise RuntimeError('broken')")
    failed = command(copied, "restart", "all")
    assert failed.returncode == 1 and "nothing is changed: RuntimeError: broken" in failed.stderr
    assert copied.pids() == before and ask(copied)


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("actors/protocol/messages.py", "    LENGTH = 2\n", "    LENGTH = 7\n"),
        *slow(("actors/protocol/topology.py", "SPARE_SLOTS = 32", "SPARE_SLOTS = 31")),
    ],
)
def test_code_that_shares_memory_otherwise_changes_nothing(
    path: str, old: str, new: str, copied: Server, changed: CodeCopy
) -> None:
    before = copied.pids()
    changed.change(path, lambda text: text.replace(old, new))
    failed = command(copied, "restart", "detokenizer")
    assert failed.returncode == 1 and "this code shares memory otherwise" in failed.stderr
    assert copied.pids() == before and ask(copied)


def test_a_successor_that_cannot_start_is_replaced_by_the_code_from_before(copied: Server, changed: CodeCopy) -> None:
    before = copied.pids()
    changed.append("actors/renderer/actor.py", CANNOT_START)
    failed = command(copied, "restart", "renderer")
    assert failed.returncode == 1, failed.stdout
    assert "the second version cannot start; the one before it serves again" in failed.stderr
    after = copied.pids()
    assert after.pop("renderer-0") != before.pop("renderer-0") and after == before and ask(copied)


def test_a_successor_that_is_killed_gets_another_chance(copied: Server, changed: CodeCopy, tmp_path: Path) -> None:
    changed.append("actors/detokenizer/actor.py", HANGS_ONCE.format(flag=str(tmp_path / "flag")))

    async def kill() -> str:
        running = asyncio.create_task(asyncio.to_thread(restart, copied, "detokenizer"))
        await asyncio.to_thread(copied.wait_for, "this one waits to be killed")
        os.kill(copied.pids()["detokenizer-0"], signal.SIGKILL)
        return await running

    assert "detokenizer-0 is replaced" in asyncio.run(kill())
    assert ask(copied)
