"""Records between a server and its engines elsewhere: whole, in pieces, too long, of another kind; and which engines
there are to be.
"""

from __future__ import annotations

import pytest

from actorserve.actors.caretaker.actor import COMPUTING, engine_words
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.remote import ray_engines
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.protocol.sockets.engine_facts import ALIKE

SECRET = "ACTORSERVE_ENGINE_SECRET"
SAID = [wire.Progress([wire.Moved(7 << 32 | 3, 2, b"\1\0\0\0", 2)]), wire.Beat(5), wire.Turned([1, 2])]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_records_come_whole_however_they_are_cut(size: int) -> None:
    data = b"".join(map(wire.encode, SAID))
    records = wire.Records(wire.ToLink)
    found = [record for at in range(0, len(data), size) for record in records.feed(data[at : at + size])]
    assert found == SAID


def test_a_stranger_says_no_long_record() -> None:
    """Before it is known who speaks there is little room; then there is more."""
    long = wire.encode(wire.Logprobs(1, 1, 1, bytes(wire.MOST_GREETING)))
    with pytest.raises(wire.Unproven, match="a record of 65"):
        list(wire.Records(wire.ToLink).feed(long))
    known = wire.Records(wire.ToLink)
    known.most = wire.MOST_BYTES
    assert len(list(known.feed(long))) == 1


GREETING = wire.encode(wire.Greeting(b"", b"", "server", 0, {}))
NESTED = b"\x97\xcc\xc9" + GREETING[7:] + 60_000 * b"\x91" + b"\xc0"  # one more, which is passed over


@pytest.mark.parametrize(
    "data",
    [
        b"\3\0\0\0\xc1\xc1\xc1",
        wire.encode(wire.Welcome()),
        GREETING.replace(b"server", b"\xff\xfe\xfd\xfc\xfb\xfa"),
        wire.LENGTH.pack(len(NESTED)) + NESTED,
    ],
)
def test_what_is_no_record_of_this_side_is_refused(data: bytes) -> None:
    with pytest.raises(wire.Unproven, match="no record"):
        list(wire.Records(wire.ToSteward).feed(data))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"remote_engines": ["a:1"]}, "--engine-secret-file"),
        ({"steward": "0.0.0.0:0"}, "--engine-secret-file"),
        ({"remote_engines": ["a"]}, "--engines: a is no address"),
        ({"remote_engines": ["a:1,b:2", "a:1"]}, "a:1 is there twice"),
        ({"steward": "0.0.0.0:x"}, "--steward: 0.0.0.0:x is no address"),
        ({"data_parallel_size": 0}, "--data-parallel-size 0 goes with --engines"),
        ({"remote_engines": ["a:1"], "prefill_engines": 1}, "--prefill-engines"),
        ({"steward": "0.0.0.0:0", "enable_lora": True, "lora_modules": ["x=/a"]}, "--lora-modules: not with --steward"),
        ({"steward": "0.0.0.0:0", "data_parallel_size": 2}, "--data-parallel-size above 1: not with --steward"),
        ({"engine_certfile": "x"}, "go with --engines"),
        ({"remote_engines": ["a:1"], "engine_certfile": "x"}, "--engine-certfile and --engine-ca-certs go together"),
        ({"remote_engines": ["a:1"], "engine_secret_file": "/none"}, "--engine-secret-file: /none cannot be read"),
    ],
)
def test_options_that_cannot_be(values: dict[str, object], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(ConfigError, match=told):
        make_config(values)


def test_a_short_secret_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "short")
    with pytest.raises(ConfigError, match=f"{SECRET}: the secret has less than 16"):
        make_config({"remote_engines": ["a:1"]})
    monkeypatch.setenv(SECRET, "x" * 16)
    config = make_config({"remote_engines": ["a:1,b:2", "c:3"], "data_parallel_size": 0})
    assert (config.engines, config.local_engines) == (3, 0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ray://auto?engines=0", "engines of .* must be a number from 1 to 64"),
        ("ray://auto?engines=3-2", "engines of .* must be a number from 1 to 64"),
        ("ray://auto?engines=x", "engines of .* must be a number from 1 to 64"),
        ("ray://auto?cpus=x", "cpus of .* must be a number"),
        ("ray://auto?cpus=0", "cpus and gpus of .*: one of them must be more than 0"),
        ("ray://auto?gpus=-1", "gpus of .* must not be below 0"),
        ("ray://auto?gpu=1", "gpu of .*: there are engines, cpus, gpus, idle and name"),
        ("ray://a:1,ray://b:2", "one Ray cluster"),
    ],
)
def test_clusters_that_cannot_be(text: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "x" * 16)
    with pytest.raises(ConfigError, match=told):
        make_config({"remote_engines": [text]})


def test_engines_of_a_cluster_are_counted_and_what_they_compute_by_goes_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SECRET, "x" * 16)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name == "ray" else None)
    values = {"remote_engines": ["a:1", "ray://10.0.0.1:6379?engines=1-2&gpus=1"], "data_parallel_size": 0}
    config = make_config({**values, "block_size": 16, "port": 1234, "enable_prefix_caching": False, "threads": 2})
    wanted = ray_engines(config)
    assert wanted is not None
    assert config.engines == 3 and (wanted.least, wanted.most, wanted.idle_s) == (1, 2, 300)
    assert (wanted.address, wanted.resources) == ("10.0.0.1:6379", {"CPU": 1.0, "GPU": 1.0})
    assert engine_words(config) == ["--block-size=16", "--no-enable-prefix-caching", "--threads=2"]
    compared = {*ALIKE, "logits_processors", "hf_overrides", "generation_config", "override_generation_config"}
    assert compared <= COMPUTING, "a difference in what does not go with them is refused for ever"


def test_without_ray_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "x" * 16)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'actorserve\[ray\]'"):
        make_config({"remote_engines": ["ray://auto"]})
