"""How many adapters there may be, in memory and at once."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.options.lora import check_lora, read_modules


@pytest.mark.parametrize(
    ("given", "at_once", "in_memory"),
    [
        ({}, 8, 16),
        ({"max_loras": 3}, 3, 6),
        ({"max_cpu_loras": 2}, 2, 2),  # as vLLM is asked, where one runs at a time if nothing says how many
        ({"max_cpu_loras": 20}, 8, 20),
        ({"max_loras": 2, "max_cpu_loras": 2}, 2, 2),
    ],
)
def test_how_many_there_may_be(given: dict[str, int], at_once: int, in_memory: int) -> None:
    config = Config(enable_lora=True, **given)  # type: ignore[arg-type]
    check_lora(config)
    assert (config.adapters_at_once(), config.adapters_in_memory()) == (at_once, in_memory)


def test_adapters_of_pictures_are_there_from_the_start() -> None:
    config = Config(enable_lora=True, lora_modules=["a=/a"], default_mm_loras='{"image": "/b", "audio": "/c"}')
    assert [(one.name, one.path) for one in read_modules(config)] == [("a", "/a"), ("image", "/b"), ("audio", "/c")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"smell": "/a"}', "--default-mm-loras: smell is none of image, video, audio"),
        ('{"image": 5}', "--default-mm-loras: image: the path of an adapter is wanted, not 5"),
        ('{"image"', "--default-mm-loras: .* is no JSON object"),
    ],
)
def test_adapters_of_pictures_that_cannot_be(given: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_lora(Config(enable_lora=True, default_mm_loras=given))
    with pytest.raises(ConfigError, match="--default-mm-loras goes with --enable-lora"):
        check_lora(Config(default_mm_loras=given))


def test_memory_for_fewer_than_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-cpu-loras must not be less than --max-loras, which is 3"):
        check_lora(Config(enable_lora=True, max_loras=3, max_cpu_loras=2))
