"""A group of workers: its sums, and what a member does when another one is killed or stands still in a sum."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.worker import symmetric_memory
from actorserve.actors.worker.symmetric_memory import BUFFER, ONE_SHOT, SymmetricSum
from tests.support.models.vision import families
from tests.support.selection import slow
from tests.support.warm import server_environment, start_warm

from .group_member import LATE, RUNNER, SAID, SEES, own

PROGRAM = str(Path(__file__).with_name("group_member.py"))
LONG_S = 100.0  # no test waits so long
ODD = 383  # words


class Member:
    """One process, a copy of one that has imported torch where that can be."""

    def __init__(self, folder: Path, rank: int, *rest: str) -> None:
        self.rest = ""  # of its output, beside what is said
        self._go = folder / f"go {rank}"
        os.mkfifo(self._go)
        arguments, environment = [str(rank), *rest, str(self._go)], server_environment()
        self.process = start_warm(PROGRAM, arguments, str(folder), environment) or subprocess.Popen(
            [sys.executable, PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )

    def said(self) -> Any:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline().decode():
            if line.startswith(SAID):
                return json.loads(line.removeprefix(SAID))
            self.rest += line
        raise AssertionError(self.rest)

    def is_silent(self, seconds: float) -> bool:
        """For so long."""
        assert self.process.stdout is not None
        return not select.select([self.process.stdout], [], [], seconds)[0]

    def go_on(self) -> None:
        self._go.write_text("!")

    def wait(self) -> int:
        assert self.process.stdout is not None
        self.rest += self.process.stdout.read().decode()
        return self.process.wait(LONG_S)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


Start = Callable[..., list[Member]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Members that have met."""
    members: list[Member] = []
    fd = os.memfd_create("meeting")

    def begin(size: int, do: str, step_s: float = LONG_S) -> list[Member]:
        meeting = f"/proc/{os.getpid()}/fd/{fd}"
        for rank in range(size):
            members.append(Member(tmp_path, rank, str(size), meeting, str(step_s), do))
        if do == LATE:
            punctual, late = members
            assert punctual.said() == late.said() == "loads", "they have met"
            punctual.go_on()
            assert punctual.is_silent(10 * step_s), "it waits for the other one, and does not give it up"
            late.go_on()
        assert [member.said() for member in members] == ["loaded"] * size
        assert [member.said() for member in members] == [10] * size, "the smallest number"
        return members

    yield begin
    for member in members:
        member.end()
    os.close(fd)


def test_what_they_add_up(start: Start) -> None:
    """The same bits for all; in order, if they are asked for that."""
    size = 3
    members = start(size, "sums")
    sums, ordered, gathered, most = zip(*([member.said() for _ in range(4)] for member in members), strict=True)
    assert [member.said() for member in members] == ["?"] * size
    for member in members:  # now that nobody needs another one
        member.go_on()
    assert all(part == parts[0] for parts in (sums, ordered, gathered, most) for part in parts)
    torch.testing.assert_close(torch.tensor(sums[0]), sum_of(own(rank, 3, 5) for rank in range(size)))
    assert torch.equal(torch.tensor(ordered[0]), sum_of(own(rank, 7) for rank in range(size)))
    assert torch.equal(torch.tensor(gathered[0]), torch.cat([own(rank, 3, 2) for rank in range(size)], 1))
    assert torch.equal(torch.tensor(most[0]), torch.stack([own(rank, 9) for rank in range(size)]).amax(0))
    assert [member.wait() for member in members] == [0] * size


@pytest.mark.parametrize("drafts", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_members_on_gpus_draw_greedily_without_gathering_logits(
    start: Start, checkpoints: Callable[..., Path], drafts: int
) -> None:
    """The same tokens as from gathered logits, in Triton's interpreter. Each word of one member is as likely as one of
    the other's, and the lowest is drawn; a vocabulary of odd size leaves the last member a word that is none."""
    folder = checkpoints("qwen3", num_hidden_layers=1, vocab_size=ODD, initializer_range=0.1)
    half = -(-ODD // 2)
    weights = load_file(folder / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name][half:] = weights[name][: ODD - half]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    members = start(2, f"{RUNNER}{drafts} {folder}")
    (own, gathered), others = ([member.said() for _ in range(2)] for member in members)
    assert others == [own, gathered] and own["tokens"] == gathered["tokens"]
    greedy = [row for rows, last in zip(own["tokens"], (2, 2, 1, 1), strict=True) for row in rows[:last]]
    assert max(max(row) for row in greedy) < half and len({word for row in greedy for word in row}) > 3
    alone, told, asks, drawn = map(set, own["steps"])
    assert alone == {"greedy"} and "plain" in told and "changing" in asks and "plain" in drawn
    assert not any("greedy" in steps for steps in gathered["steps"])
    for member in members:
        member.go_on()
    assert [member.wait() for member in members] == [0, 0]


@pytest.mark.parametrize("family", slow("qwen3_vl", "llava"))
def test_members_on_gpus_that_see(start: Start, tmp_path: Path, family: str) -> None:
    """Each has the whole tower, and a part of all layers behind it."""
    folder = families.checkpoint(family, tmp_path / "models", num_hidden_layers=2)
    members = start(2, f"{SEES}{family} {folder}")
    one, other = (member.said() for member in members)
    assert one["tokens"] == other["tokens"] == one["transformers"]
    for member in members:
        member.go_on()
    assert [member.wait() for member in members] == [0, 0]


def sum_of(parts: Iterator[torch.Tensor]) -> torch.Tensor:
    total = next(parts).clone()
    for part in parts:
        total += part
    return total


def test_they_wait_for_the_one_that_loads_longest(start: Start) -> None:
    """Longer than one is waited for in a step."""
    members = start(2, LATE, 0.05)
    assert [member.said() for member in members] == ["?"] * 2
    for member in members:
        member.go_on()
    assert [member.wait() for member in members] == [0, 0]


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_sum_that_one_does_not_come_to(start: Start, fate: str) -> None:
    """The other one waits in the middle of it, and ends: at once if it is dead, else when a step has taken too long."""
    waiting, other = members = start(2, "wait", LONG_S if fate == "killed" else 1.0)
    assert [member.said() for member in members] == ["?"] * 2
    other.process.send_signal(signal.SIGSTOP)  # so that it is there, and does not come
    waiting.go_on()
    if fate == "killed":
        other.process.kill()
    assert waiting.wait() == 1
    assert "Traceback" in waiting.rest and "all_reduce" in waiting.rest and "summed" not in waiting.rest


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


@pytest.mark.parametrize(
    ("memory", "others", "met", "made"),
    [
        (True, [True, True], True, True),
        (True, [False], False, False),  # nobody waits for memory that another has not
        (False, [True], False, False),
        (True, [True, False], True, False),
    ],
)
def test_members_hear_of_each_others_memory_before_they_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, memory: bool, others: list[bool], met: bool, made: bool
) -> None:
    import torch.distributed._symmetric_memory as symmetric

    left, waited = [*others], list[str]()

    def all_reduce(said: torch.Tensor, op: object) -> None:
        said &= left.pop(0)

    def empty(*sizes: int, **options: object) -> torch.Tensor:
        if not memory:
            raise RuntimeError("no multicast here\nand more")
        return torch.zeros(8, dtype=torch.uint8)

    def rendezvous(buffer: torch.Tensor, name: str) -> SimpleNamespace:
        waited.append(name)
        return SimpleNamespace(multicast_ptr=0)

    world = SimpleNamespace(WORLD=SimpleNamespace(group_name="world"))
    stand_in = SimpleNamespace(all_reduce=all_reduce, group=world, ReduceOp=SimpleNamespace(MIN=0))
    monkeypatch.setattr(symmetric_memory, "dist", stand_in)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *devices: True)
    monkeypatch.setattr(symmetric, "empty", empty)
    monkeypatch.setattr(symmetric, "rendezvous", rendezvous)
    found = SymmetricSum.make(0, 2, torch.device("cuda", 0))
    assert (found is not None, waited, left) == (made, ["world"] if met else [], [])
