"""A group of workers: its sums, and what a member does when another one is killed or stands still in a sum."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actorserve.actors.worker import symmetric_memory, tensor_parallel
from actorserve.actors.worker.symmetric_memory import BUFFER, ONE_SHOT, SymmetricSum

from .group_member import own

ROOT = Path(__file__).parents[2]
LONG_S = 100.0  # no test waits so long
Member = subprocess.Popen[str]


@pytest.fixture
def start() -> Iterator[Callable[..., list[Member]]]:
    """Members that have met."""
    members: list[Member] = []
    fd = os.memfd_create("meeting")
    os.set_inheritable(fd, True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tools" / "package")])}

    def begin(size: int, do: str, step_s: float = LONG_S) -> list[Member]:
        for rank in range(size):
            command = [sys.executable, "-m", "tests.worker.group_member", *map(str, (rank, size, fd, step_s)), do]
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            members.append(subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[fd], text=True, **pipes))
        assert [said(member) for member in members] == [10] * size, "the smallest number"
        return members

    yield begin
    for member in members:
        member.kill()
        member.communicate()
    os.close(fd)


def said(member: Member) -> Any:
    assert member.stdout is not None
    line = member.stdout.readline()
    assert line, member.communicate()[1][-2000:]
    return json.loads(line)


def go_on(member: Member) -> None:
    assert member.stdin is not None
    member.stdin.write("\n")
    member.stdin.flush()


def test_what_they_add_up(start: Callable[..., list[Member]]) -> None:
    """The same bits for all; in order, if they are asked for that."""
    size = 3
    members = start(size, "sums")
    sums, ordered, gathered = zip(*([said(member) for _ in range(3)] for member in members), strict=True)
    assert [said(member) for member in members] == ["?"] * size
    for member in members:  # now that nobody needs another one
        go_on(member)
    assert all(part == parts[0] for parts in (sums, ordered, gathered) for part in parts)
    torch.testing.assert_close(torch.tensor(sums[0]), sum_of(own(rank, 3, 5) for rank in range(size)))
    assert torch.equal(torch.tensor(ordered[0]), sum_of(own(rank, 7) for rank in range(size)))
    assert torch.equal(torch.tensor(gathered[0]), torch.cat([own(rank, 3, 2) for rank in range(size)], 1))
    assert [member.wait(LONG_S) for member in members] == [0] * size


def sum_of(parts: Iterator[torch.Tensor]) -> torch.Tensor:
    total = next(parts).clone()
    for part in parts:
        total += part
    return total


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_sum_that_one_does_not_come_to(start: Callable[..., list[Member]], fate: str) -> None:
    """The other one waits in the middle of it, and ends: at once if it is dead, else when a step has taken too long."""
    waiting, other = members = start(2, "wait", LONG_S if fate == "killed" else 1.0)
    assert [said(member) for member in members] == ["?"] * 2
    other.send_signal(signal.SIGSTOP)  # so that it is there, and does not come
    go_on(waiting)
    if fate == "killed":
        other.kill()
    assert waiting.wait(LONG_S) == 1
    out, errors = waiting.communicate()
    assert "Traceback" in errors and "all_reduce" in errors and out == "", "there is no sum"


def test_the_end_of_a_member_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives its sums up; and if that takes too long, the kernel ends it."""
    monkeypatch.setattr(tensor_parallel, "LEAVE_S", 1)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_abort_process_group", lambda: threading.Event().wait())
    child = os.fork()
    if not child:
        tensor_parallel.leave_at_once()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM


class Operators:
    """Stands in for torch's operators over memory that all GPUs see: of two members that have the same numbers."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def one_shot_all_reduce_out(self, own: torch.Tensor, how: str, name: str, out: torch.Tensor) -> torch.Tensor:
        self.called.append(f"one shot, {how}, {name}")
        return out.copy_(own * 2)

    def multimem_all_reduce_(self, own: torch.Tensor, how: str, name: str) -> torch.Tensor:
        self.called.append(f"multimem, {how}, {name}")
        return own.mul_(2)


@pytest.mark.parametrize(
    ("x", "multicast", "way"),
    [
        (torch.ones(4, 8), False, "one shot"),
        (torch.ones(3, 8, dtype=torch.bfloat16), True, "one shot"),
        (torch.ones(ONE_SHOT // 4 + 4), True, "multimem"),
        (torch.ones(ONE_SHOT // 4 + 4), False, None),
        (torch.ones(BUFFER // 4 + 4), True, None),
        (torch.ones(3), True, None),
        (torch.ones(4, 8).T, True, None),
        (torch.ones(4, 8, dtype=torch.float16), True, None),
        (torch.ones(0, 8), True, None),
    ],
)
def test_which_way_numbers_are_added_up(
    monkeypatch: pytest.MonkeyPatch, x: torch.Tensor, multicast: bool, way: str | None
) -> None:
    """Over memory that all see where it can be, by the switch where that is quicker; else nothing has happened."""
    operators = Operators()
    monkeypatch.setattr(symmetric_memory, "torch", SimpleNamespace(ops=SimpleNamespace(symm_mem=operators)))
    buffer = torch.full((BUFFER,), 7, dtype=torch.uint8)
    done = SymmetricSum(buffer, "world", multicast).add_up(x)
    assert done == (way is not None) and operators.called == ([f"{way}, sum, world"] if way else [])
    assert torch.equal(x, torch.full_like(x, 2.0 if way else 1.0))
