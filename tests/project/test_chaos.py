"""The short form of tools/chaos/faults: faults of all kinds under load, and nobody sees more than a pause."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.selection import SLOW_S

CHAOS = Path(__file__).resolve().parents[2] / "tools" / "chaos" / "faults"
REPLICAS, CLUSTER, NODES = (CHAOS.with_name(name) for name in ("replicas", "cluster", "ray_nodes"))


def run(*arguments: str, tool: Path = CHAOS, timeout: float = SLOW_S - 20) -> str:
    done = subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return done.stdout


def test_deaths_of_all_kinds_of_actors_fail_no_request() -> None:
    options = ("--signals", "kill -9", "--faults", "5", "--streams", "4", "--requests", "8", "--seed", "3")
    table = run(*options, timeout=280)
    assert "| kill -9 | 1 | 1 | 1 | 1 | 1 |" in table
    assert "| 0 | 0 |" in table and "| none |" in table


@pytest.mark.slow
def test_faults_of_all_kinds_fail_no_request() -> None:
    """Each kind of actor is hit with each kind of fault once; what hangs is in tests/server/lifecycle/, too."""
    table = run("--faults", "15", "--streams", "8", "--requests", "20", "--seed", "3")
    assert "| kill -9 | 1 | 1 | 1 | 1 | 1 |" in table
    assert "| 0 | 0 |" in table and "| none |" in table


@pytest.mark.slow  # tests/server/lifecycle/test_start.py has the same of a server that it starts
def test_kill_9_of_the_supervisor_leaves_nothing() -> None:
    assert "no segment left" in run("--kill-supervisor", "--streams", "16")


@pytest.mark.slow
def test_with_two_engines_nobody_waits_for_a_worker_to_load() -> None:
    """Any actor of any engine is killed; how long the gaps are, the tool says, and a busy machine decides."""
    table = run("--data-parallel-size", "2", "--signals", "kill -9", "--faults", "25", "--streams", "24")
    assert "| kill -9 | 5 | 5 | 5 | 5 | 5 |" in table and "| 0 | 0 |" in table and "| none |" in table
    assert "behind a fault of a worker" in table


@pytest.mark.slow
def test_models_that_change_places_answer_whoever_dies() -> None:
    """Beside an operator who unloads and loads them."""
    also = [f"--also={DEMO_FOLDER},served-model-name={name},threads=1" for name in ("b", "c")]
    options = ("--models-max", "1", "--operations", "models", "--signals", "kill -9", "--faults", "15")
    table = run(*also, *options, "--streams", "4", "--requests", "12", "--every", "1")
    assert "| kill -9 | 3 | 3 | 3 | 3 | 3 |" in table and re.search(r"\b[1-9]\d* models", table)
    assert "| 0 | 0 |" in table and "| none |" in table


@pytest.mark.slow
def test_turns_of_sessions_are_what_their_tokens_say_at_once() -> None:
    table = run("--sessions", "--faults", "15", "--streams", "4", "--requests", "8")
    assert "| 0 | 0 |" in table and "| none |" in table


@pytest.mark.slow
def test_lines_of_batches_are_answered_once_whoever_dies() -> None:
    table = run("--batches", "--faults", "18", "--streams", "6", "--requests", "10")
    assert "| kill -9 | 1 | 1 | 1 | 1 | 1 | 1 |" in table and "| 0 | 0 |" in table and "| none |" in table


@pytest.mark.slow
def test_the_relay_of_a_unix_socket_costs_its_connections_alone() -> None:
    """The others, and those behind other faults, come by it all the same."""
    table = run("--relay", "--actors", "relay", "frontend", "--faults", "8", "--streams", "6", "--requests", "10")
    assert "| 0 | 0 |" in table and "| none |" in table and "reset with the relay" in table


@pytest.mark.slow
def test_the_relay_of_http2_costs_its_connections_alone() -> None:
    """Streams of one connection go on behind a frontend's death, and all come again behind the relay's."""
    table = run("--http2", "--actors", "http2", "frontend", "--faults", "8", "--streams", "6", "--requests", "10")
    assert "| 0 | 0 |" in table and "| none |" in table and "reset with the relay" in table


@pytest.mark.slow
def test_engines_come_and_go_and_are_restarted_under_load() -> None:
    """Also beside deaths of those that hold the streams."""
    options = ("--max-data-parallel-size", "3", "--seconds", "30", "--streams", "12", "--faults", "10")
    table = run(*options, "--commands", "scale 3", "restart worker", "scale 1", "--actors", "frontend", "scheduler")
    assert "| 0 | 0 |" in table and "| none |" in table and "times scale 3" in table


@pytest.mark.slow
def test_whole_servers_are_lost_behind_a_router_and_no_request_is() -> None:
    said = run("--seconds", "30", "--streams", "6", "--seed", "2", tool=REPLICAS)
    assert "no request failed or was wrong" in said and "kill -9" in said and "SIGSTOP" in said


@pytest.mark.slow
def test_blocks_are_pulled_while_servers_come_and_go() -> None:
    said = run("--seconds", "30", "--clients", "4", "--seed", "2", tool=CHAOS.with_name("transfers"))
    assert "no request failed or was wrong" in said and "blocks pulled" in said


@pytest.mark.slow
def test_a_batch_goes_on_through_deaths_of_actors_and_of_the_server() -> None:
    said = run("--lines", "300", "--kills", "6", "--servers", "1", tool=CHAOS.with_name("batches"))
    assert "300 answered; 0 missing, 0 twice, 0 failed, 0 with another text" in said and "of the whole server" in said


@pytest.mark.slow
def test_engines_elsewhere_are_lost_and_no_request_is() -> None:
    """One fault of each kind: of actors here and there, of a whole engine by death and by silence, of its way."""
    said = run("--engines", "3", "--seconds", "200", "--most", "5", "--streams", "6", tool=CLUSTER)
    assert "no request failed or was wrong" in said and "cut link" in said and "SIGSTOP of an engine" in said


@pytest.mark.slow
def test_nodes_of_a_ray_cluster_are_lost_and_no_request_is() -> None:
    """A node is killed, one is stopped, an engine and the caretaker are killed."""
    pytest.importorskip("ray")
    said = run("--faults", "4", "--streams", "4", tool=NODES)
    assert "no request failed or was wrong" in said and "kill -9 of a node" in said and "SIGSTOP of a node" in said


@pytest.mark.slow
def test_answers_with_calls_of_tools_are_whole_whoever_dies() -> None:
    """Over WebSockets, as streams and whole, beside pauses of an operator."""
    table = run("--responses", "--operations", "pauses", "--faults", "18", "--streams", "4", "--requests", "9")
    assert "| 0 | 0 |" in table and "| none |" in table and re.search(r"\b[1-9]\d* pauses", table)
