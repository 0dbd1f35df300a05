"""Which kernels and how many threads a worker takes, and what is said of options that cannot be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.worker.cpu.layers import native
from actorserve.kernels.cpu.native.compiler import NativeError
from actorserve.kernels.cpu.native.weight_memory import PAGE, WeightMemory
from tests.support.compiler import need_compiler


@pytest.fixture(autouse=True)
def torch_afterwards() -> Iterator[None]:
    yield
    native.stop()


def test_what_is_asked_for_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    assert native.start("torch", 1).startswith("torch (--cpu-kernels torch)") and native.current() is None
    assert native.start("native", 2).startswith("native (") and native.current() is not None

    def none(*arguments: object) -> None:
        raise NativeError("there is no C compiler (cc)")

    monkeypatch.setattr(native, "load", none)
    assert native.start("auto", 1) == "torch: there is no C compiler (cc)" and native.current() is None
    with pytest.raises(ConfigError, match="--cpu-kernels native: there is no C compiler"):
        native.start("native", 1)


def test_the_fewest_threads_are_taken_that_are_nearly_as_quick() -> None:
    assert native.fewest_useful({1: 10.0, 2: 6.0, 3: 5.9, 4: 6.5}) == 2
    assert native.fewest_useful({1: 10.0, 2: 9.9}) == 1
    assert native.fewest_useful({1: 10.0, 8: 2.0}) == 8


@pytest.mark.parametrize(("busy", "rounds", "found"), [(0, 4, 2), (9, 10, 2), (1000, 61, 1)])
def test_one_thread_is_not_believed_at_once(busy: int, rounds: int, found: int) -> None:
    """While others have the cores several threads are no quicker; that is over after some rounds, or never."""
    now = [0]

    def seconds(count: int) -> float:
        now[0] += count == 1  # a hundredth of a second for each round
        return 5.0 if count == 1 or now[0] <= busy else 3.0

    assert native.try_threads(seconds, [1, 2], lambda: now[0] / 100) == found and now[0] == rounds


def test_a_small_model_pays_for_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    native.start("native", 1)
    monkeypatch.setattr(native, "int8_linear", None)
    assert native.useful_threads(4, native.LARGE - 1) == 3
    assert native.useful_threads(1, native.LARGE) == 1
    native.start("torch", 1)
    assert native.useful_threads(4, native.LARGE) == 3


def test_a_large_one_has_as_many_as_are_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler()
    native.start("native", 1)
    monkeypatch.setattr(native, "TRIAL", (64, 64))
    assert native.useful_threads(3, native.LARGE) in (1, 2, 3)
    library = native.current()
    assert library is not None and library.threads in (1, 2, 3)


def test_nothing_of_the_trial_lies_among_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """These would keep all of its block."""
    need_compiler()
    native.start("native", 1)
    library = native.current()
    assert library is not None
    monkeypatch.setattr(native, "TRIAL", (2048, PAGE // 2048))
    monkeypatch.setattr(library, "weights", WeightMemory())
    native.useful_threads(2, native.LARGE)
    assert not len(library.weights._left), "no block is begun"


def test_values_of_the_options() -> None:
    assert make_config({"threads": "auto"}).threads is None and make_config({"threads": "AUTO"}).threads is None
    assert make_config({"threads": "2"}).threads == 2
    assert make_config({"threads": "-1"}).threads is None, "as llama.cpp has it"
    numbers: list[object] = ["0", "-2", "many", "1.5", "", "none", "2 3", True, [1], 1.5]
    for value in numbers:
        with pytest.raises(ConfigError, match=r"--threads: "):
            make_config({"threads": value})
    with pytest.raises(ConfigError, match=r"--threads: many is .* nor auto"):
        make_config({"threads": "many"})
    kinds: list[object] = ["", "c", "NATIVES", "cuda", 1, None, True, ["native"]]
    for value in kinds:
        with pytest.raises(ConfigError, match="--cpu-kernels: "):
            make_config({"cpu_kernels": value})
    assert make_config({"cpu_kernels": "Torch"}).cpu_kernels == "torch"
