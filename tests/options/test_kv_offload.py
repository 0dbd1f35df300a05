"""--kv-offload: what it takes, and what it says of what it does not take."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.kv_offload import STAGING_BYTES, KVTiers, read_tiers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host:4Gi", KVTiers(4 << 30)),
        ("folder:/var/kv:2M", KVTiers(0, "/var/kv", 2 << 20)),
        ("folder:/with:colon:1Gi", KVTiers(0, "/with:colon", 1 << 30)),
        ("host:1Mi, folder:/kv:1Mi", KVTiers(1 << 20, "/kv", 1 << 20)),
        (
            "tcp:0.0.0.0:8200,peer:a:1,peer:[::1]:2,peer:10.0.0.0/8,host:1Mi",
            KVTiers(1 << 20, listen="0.0.0.0:8200", peers=("a:1", "[::1]:2"), networks=("10.0.0.0/8",)),
        ),
        ("plugin:os.path:Redis:redis://host:1", KVTiers(plugin="os.path:Redis:redis://host:1")),
    ],
)
def test_tiers(text: str, expected: KVTiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTORSERVE_ENGINE_SECRET", "a secret of some length")
    tiers = read_tiers(make_config({"kv_offload": text}))
    assert tiers == expected and tiers.memory_bytes == (expected.host_bytes or STAGING_BYTES)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"kv_offload": ""}, "--kv-offload: '' is not what it takes: host:SIZE"),
        ({"kv_offload": "disk:/a:1Gi"}, "'disk:/a:1Gi' is not what it takes"),
        ({"kv_offload": "host:1Gi,host:1Gi"}, "'host:1Gi' is not"),
        ({"kv_offload": "folder:/a"}, "'folder:/a' is not what it takes"),
        ({"kv_offload": "folder::1Gi"}, "folder needs a path"),
        ({"kv_offload": "host:many"}, "'many' is no size, such as 512Mi"),
        ({"kv_offload": "host:1000"}, "at least 1Mi"),
        ({"kv_offload": f"folder:{__file__}:1Gi"}, "is no folder"),
        ({"kv_offload": "host:1Gi", "enable_prefix_caching": False}, "it goes with --enable-prefix-caching"),
        ({"kv_offload": "host:1Gi", "device": "cuda"}, "it goes with --device cpu"),
        ({"kv_offload": "host:1Gi", "record": "/tmp/file"}, "leave --kv-offload out"),
        ({"kv_offload": "tcp:8200"}, "--kv-offload: tcp: 8200 is no address"),
        ({"kv_offload": "peer:a:0"}, "--kv-offload: peer: a:0 is no address"),
        ({"kv_offload": "peer:10.0.0.1/8"}, "has host bits set"),
        ({"kv_offload": "tcp:a:1,tcp:a:2"}, "'tcp:a:2' is not"),
        ({"kv_offload": "plugin:"}, "'plugin:' is not"),
        ({"kv_offload": "tcp:0.0.0.0:8200"}, "--engine-secret-file"),
        ({"kv_offload": "host:1Gi,nixl"}, "it goes with tcp:HOST:PORT, or with peer"),
    ],
)
def test_what_it_does_not_take(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"prefill_engines": 1}, "of 1 engines one at least has to go on"),
        ({"prefill_engines": 2, "data_parallel_size": 2, "kv_offload": "host:1Gi"}, "--data-parallel-size has to be"),
        ({"prefill_engines": 1, "data_parallel_size": 2}, "--prefill-engines goes with --kv-offload"),
    ],
)
def test_prefill_engines_need_others(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    assert words in str(caught.value)


def test_a_path_begins_somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    tiers = read_tiers(make_config({"kv_offload": "folder:here:1Gi"}))
    assert tiers is not None and tiers.folder == str(tmp_path / "here")
