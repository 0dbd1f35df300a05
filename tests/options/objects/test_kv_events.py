"""--kv-events-config: vLLM's names, and what is said of others."""

from __future__ import annotations

import importlib.machinery
import importlib.util

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.kv_events import address_of, binds, read_events


def test_what_is_said() -> None:
    config = make_config({"kv_events_config": {"enable_kv_cache_events": True, "topic": "kv", "hwm": 5}})
    events = read_events(config)
    assert config.tells_kv and events.topic == "kv" and events.hwm == 5 and events.endpoint == "tcp://*:5557"
    assert not make_config({}).tells_kv and not make_config({"kv_events_config": "{}"}).tells_kv
    said = {"enable_kv_cache_events": True, "publisher": "null"}
    assert not make_config({"kv_events_config": said}).tells_kv


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("{", "is no JSON"),
        ('{"enabled": true}', "enabled is none of enable_kv_cache_events, publisher, endpoint"),
        ('{"publisher": "kafka"}', "publisher: Invalid enum value 'kafka'"),
        ('{"endpoint": "5557"}', "endpoint: 5557 is no address such as tcp://*:5557"),
        ('{"replay_endpoint": "tcp://*"}', "replay_endpoint: tcp://* is no address"),
        ('{"endpoint": "tcp://*:99999"}', "endpoint: port 99999 cannot be: there are 1 to 65535"),
        ('{"replay_endpoint": "tcp://*:0"}', "replay_endpoint: port 0 cannot be"),
        ('{"replay_endpoint": "tcp://*:5557"}', "it needs one of its own"),
        ('{"buffer_steps": 0}', "buffer_steps: Expected `int` >= 1"),
    ],
)
def test_what_it_does_not_take(said: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--kv-events-config") as caught:
        make_config({"kv_events_config": said})
    assert words in str(caught.value)


def test_each_engine_needs_a_port() -> None:
    said: dict[str, object] = {"kv_events_config": {"endpoint": "tcp://*:65534"}}
    assert make_config({**said, "data_parallel_size": 2})
    with pytest.raises(ConfigError, match="ports 65534 to 65536, one for each engine, cannot be"):
        make_config({**said, "data_parallel_size": 3})


def test_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    said: dict[str, object] = {"kv_events_config": {"enable_kv_cache_events": True}}
    with pytest.raises(ConfigError, match="goes with --enable-prefix-caching"):
        make_config({**said, "enable_prefix_caching": False})
    real = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
        return None if name == "zmq" else real(name, package)

    monkeypatch.setattr("actorserve.actors.options.objects.kv_events.find_spec", without)
    with pytest.raises(ConfigError, match=r"pip install 'actorserve\[events\]'"):
        make_config(said)


def test_each_engine_has_its_address() -> None:
    assert [address_of("tcp://*:5557", rank) for rank in (0, 2)] == ["tcp://*:5557", "tcp://*:5559"]
    assert address_of("ipc:///tmp/x", 1) == "ipc:///tmp/x_dp1"
    assert binds("tcp://*:1") and binds("ipc://x") and binds("tcp://[::]:1") and not binds("tcp://router:5557")
