"""Encoders on a pretended GPU: nothing of them is left on the host, and their vectors are a CPU's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from actorserve.actors.model.checks import device as checks_of_device
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.pooling.spec import METHODS, DenseSpec, PoolingSpec
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.request import CLASSIFY, EMBED, NORMALIZE, SOFTMAX, TOKEN_CLASSIFY, Pooling
from actorserve.actors.worker import inspection
from actorserve.actors.worker.gpu import memory
from actorserve.actors.worker.pooling import load
from actorserve.actors.worker.pooling.encoder import Encoder, Way
from actorserve.actors.worker.pooling.grouped import GroupedAttention
from actorserve.actors.worker.pooling.poolers import Dense, Pooler
from actorserve.actors.worker.pooling.runner import PooledRow, PoolingWriter
from actorserve.actors.worker.pooling.whole_prompts import in_parts
from actorserve.actors.worker.start import beside
from tests.support.gpu.pretended_device import DEVICE, OnDevice, PretendedDevice, on_the_host
from tests.support.models.embedders import FAMILIES, SENTENCES, hidden_states, logits, write_model
from tests.support.selection import slow

from .test_encoders import DIVIDED, PAIRS, options, text

QUICK = ("bert", "roberta", "modernbert", "deberta-v2", "t5", "gemma3_text", "qwen2")
Folders = Callable[..., Path]
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")


def on_device(folder: Path, **fields: object) -> Encoder:
    """As it is loaded for a GPU."""
    config, info = options(folder, **fields)
    assert info.pooling is not None
    with on_the_host(), torch.no_grad():
        model, dtype, _ = load._load(config, info, info.pooling, DEVICE)
        encoder = Encoder(model, bool(info.pooling.head))
        encoder.choose(info.max_model_len)
    load._move(encoder, info, DEVICE, dtype)
    return encoder


@pytest.mark.parametrize("family", [*QUICK, *slow(*(name for name in FAMILIES if name not in QUICK))])
def test_hidden_states_are_a_cpus(family: str, tmp_path: Path, device: PretendedDevice) -> None:
    with on_the_host():
        write_model(family, tmp_path)
        expected = hidden_states(tmp_path, SENTENCES)
        texts = [text(tmp_path, sentence) for sentence in SENTENCES]
    model = on_device(tmp_path)
    assert model.way is (Way.DIVIDED if family in DIVIDED else Way.FLAT)
    found = model.hidden(texts)
    for mine, theirs in zip(found, expected, strict=True):
        assert isinstance(mine, OnDevice) and np.abs(mine.cpu().numpy() - theirs).max() < 1e-4


@pytest.mark.parametrize("way", [Way.PADDED, Way.ALONE])
def test_the_other_ways(way: Way, tmp_path: Path, device: PretendedDevice) -> None:
    with on_the_host():
        write_model("bert", tmp_path)
        expected = hidden_states(tmp_path, SENTENCES)
        texts = [text(tmp_path, sentence) for sentence in SENTENCES]
    model = on_device(tmp_path)
    model.use(way)
    for mine, theirs in zip(model.hidden(texts), expected, strict=True):
        assert isinstance(mine, OnDevice) and np.abs(mine.cpu().numpy() - theirs).max() < 1e-4


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
def test_scores_of_labels(head: str, tmp_path: Path, device: PretendedDevice) -> None:
    with on_the_host():
        write_model("bert", tmp_path, head)
        expected = logits(tmp_path, head, PAIRS)
        texts = [text(tmp_path, *pair) for pair in PAIRS]
    model = on_device(tmp_path)
    for found, theirs in zip(model.scores(model.hidden(texts), [own.ids for own in texts]), expected, strict=True):
        assert isinstance(found, OnDevice) and np.abs(found.cpu().numpy() - theirs).max() < 1e-4


def test_a_step_waits_for_nothing_until_its_numbers_are_wanted(
    tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mask is looked at for is seen before: that costs a look at the first layer alone."""
    with on_the_host():
        write_model("bert", tmp_path)
        texts = [text(tmp_path, sentence) for sentence in SENTENCES]
    model = on_device(tmp_path)
    spec = spec_of(methods=["mean"])
    with device.hurrying():
        states = [torch.zeros(len(one.ids), 32, device=DEVICE) for one in texts]
        wanted = [Pooling(EMBED, activation=NORMALIZE)] * len(texts)
        for made in Pooler(spec, None, DEVICE)(states, [own.ids for own in texts], wanted):
            assert isinstance(made, OnDevice)
        GroupedAttention([len(one.ids) for one in texts], DEVICE)
    looks: list[str] = []
    monkeypatch.setattr(device, "_looked_at", looks.append)
    model.hidden(texts)
    assert len(looks) <= len({len(one.ids) for one in texts})


def spec_of(**fields: Any) -> PoolingSpec:
    plain: dict[str, Any] = {"tasks": [EMBED], "base": "", "methods": ["mean"], "normalize": True, "hidden": 4}
    return PoolingSpec(**{**plain, "width": 4, **fields})


def test_what_pools_is_where_hidden_states_are(device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method, a layer behind it, and the tokens that end a step; all of a step come by one copy."""
    with on_the_host():
        states, ids, weight = torch.randn(5, 4), torch.tensor([3, 9, 4, 9, 5]), torch.randn(2, 4)
    dense = DenseSpec(folder="x", inputs=4, outputs=2, bias=False, activation="Tanh")
    monkeypatch.setattr(
        "actorserve.actors.worker.pooling.poolers.load_dense", lambda one, at: Dense(one, weight.to(at), None)
    )
    asked: list[tuple[PoolingSpec, Pooling, Any]] = [
        (spec_of(methods=[method], dense=[dense]), Pooling(EMBED, activation=NORMALIZE), None) for method in METHODS
    ]
    judge = lambda hidden, ids: [one[:, :3] for one in hidden]  # noqa: E731
    stepped = spec_of(step_tag=9, labels=["a", "b", "c"])
    asked.append((stepped, Pooling(TOKEN_CLASSIFY, activation=SOFTMAX), judge))
    asked.append(
        (spec_of(base="X", labels=["a"]), Pooling(CLASSIFY), lambda hidden, ids: [one[:, :1] for one in hidden])
    )
    for spec, wanted, head in asked:
        with on_the_host():
            (expected,) = Pooler(spec, head)([states], [ids], [wanted])
        (found,) = Pooler(spec, head, DEVICE)([states.to(DEVICE)], [ids], [wanted])
        assert isinstance(found, OnDevice) and torch.allclose(found.cpu(), expected)


def test_numbers_of_a_step_come_by_one_copy(device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[int, tuple[int, int, bytes]] = {}
    vectors: Any = SimpleNamespace(write=lambda ref, rows, columns, data: written.update({ref: (rows, columns, data)}))
    writer = PoolingWriter(Pooler(spec_of(), None, DEVICE), vectors, np.zeros((1, 1), np.int32))
    with on_the_host():
        states = [torch.randn(size, 4) for size in (3, 1, 6)]
        rows = [PooledRow(ref, Pooling(EMBED), torch.arange(len(one))) for ref, one in enumerate(states)]
    there = [one.to(DEVICE) for one in states]
    looks: list[str] = []
    monkeypatch.setattr(device, "_looked_at", looks.append)
    writer.write(rows, there)
    assert len(looks) == 1
    for ref, one in enumerate(states):
        assert written[ref] == (1, 4, one.mean(0).numpy().tobytes())


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_step_that_is_too_large_is_computed_in_parts() -> None:
    """A text for which there is no room takes none along."""
    computed: list[list[int]] = []

    def compute(rows: Any) -> None:
        if sum(rows) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        computed.append(list(rows))

    sizes: Any = [3, 8, 2, 2, 1]
    in_parts(compute, sizes)
    assert computed == [[3], [8], [2, 2, 1]]
    sizes = [1, 9]
    with pytest.raises(torch.OutOfMemoryError):
        in_parts(compute, sizes)
    assert computed[-1] == [1]


def test_a_type_without_the_range_is_named(tmp_path: Path, device: PretendedDevice) -> None:
    with on_the_host():
        write_model("bert", tmp_path)
    config, info = options(tmp_path, dtype="float16")
    assert info.pooling is not None
    with on_the_host(), torch.no_grad():
        model, dtype, _ = load._load(config, info, info.pooling, DEVICE)
        encoder = Encoder(model, classifies=False)
        encoder.choose(info.max_model_len)
        embeddings: Any = encoder.base
        embeddings.encoder.layer[-1].output.LayerNorm.weight.mul_(1e6)
    with pytest.raises(ConfigError, match=r"in float16 its hidden states are not those of float32.*--dtype bfloat16"):
        load._move(encoder, info, DEVICE, dtype)


@pytest.mark.parametrize(
    ("family", "dtype", "kept"),
    [
        ("modernbert", torch.bfloat16, "inv_freq"),
        ("gemma3_text", torch.bfloat16, "inv_freq"),
        ("t5", torch.float16, ".wo."),
    ],
)
def test_what_stays_in_float32(
    family: str, dtype: torch.dtype, kept: str, tmp_path: Path, device: PretendedDevice
) -> None:
    """As transformers has it where it loads a model in this type; it is computed so."""
    with on_the_host():
        write_model(family, tmp_path)
    model = on_device(tmp_path, dtype=str(dtype).removeprefix("torch."))
    named = dict(model.model.named_parameters()) | dict(model.model.named_buffers())
    assert {one.dtype for name, one in named.items() if kept in name} == {torch.float32}
    assert {one.dtype for one in model.model.parameters()} >= {dtype}


def test_a_type_without_the_range_is_not_taken_by_itself(tmp_path: Path, device: PretendedDevice) -> None:
    """--dtype auto goes on to one that has it."""
    with on_the_host():
        write_model("bert", tmp_path)
    config, info = options(tmp_path, dtype="auto")
    assert info.pooling is not None
    own = load._load

    def large(*given: Any) -> Any:
        with on_the_host(), torch.no_grad():
            model, dtype, method = own(*given)
            found: Any = model
            found.encoder.layer[-1].output.LayerNorm.weight.mul_(1e6)
        assert dtype is torch.float16
        return model, dtype, method

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load, "_load", large)
        choose = Encoder.choose

        def chosen(encoder: Encoder, longest: int) -> Any:
            with on_the_host():
                return choose(encoder, longest)

        patch.setattr(Encoder, "choose", chosen)
        model = load.load_encoder(config, info, info.pooling, DEVICE)
    assert model.model.dtype is torch.bfloat16


def test_weights_for_which_there_is_no_room(tmp_path: Path, device: PretendedDevice, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1 << 30))
    with on_the_host():
        write_model("bert", tmp_path)
    with pytest.raises(ConfigError, match=r"its weights take [\d,]+ bytes .* 1,000 are free; --device cpu computes"):
        on_device(tmp_path)


@pytest.mark.parametrize(
    ("family", "options_", "wanted"),
    [
        ("bert", {"dtype": "auto"}, torch.float16),
        ("t5", {"dtype": "auto"}, torch.bfloat16),
        ("gemma3_text", {"dtype": "auto"}, torch.bfloat16),
        ("bert", {"dtype": "float32"}, torch.float32),
        ("bert", {"dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_the_type(family: str, options_: dict[str, str], wanted: torch.dtype) -> None:
    config = make_config({"model": "m", **options_})
    whole = SimpleNamespace(dtype=torch.float32, model_type=family)
    assert load._types(config, whole, DEVICE)[0] is wanted
    stored = SimpleNamespace(dtype=torch.bfloat16, model_type=family)
    if options_["dtype"] == "auto":
        assert load._types(config, stored, DEVICE)[0] is torch.bfloat16


def test_the_largest_step_is_one_that_a_scheduler_may_plan(
    tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    with on_the_host():
        write_model("bert", tmp_path)
    model, seen = on_device(tmp_path), list[list[int]]()
    monkeypatch.setattr(model, "hidden", lambda texts: seen.append([len(one.ids) for one in texts]))
    model.try_out(100, 32)
    model.try_out(10, 32)
    assert seen == [[32, 32, 32], [32]]


def test_what_check_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "uses_gpu", lambda config, first: config.device != "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(memory, "device_memory", lambda device: (1 << 30, 1 << 30))
    write_model("bert", tmp_path)
    numbers = sum(one.numel() for one in load_file(tmp_path / "model.safetensors").values())
    for device, dtype, size in (("auto", "float16", 2), ("cpu", "float32", 4)):
        config, info = options(tmp_path, device=device, dtype="auto")
        facts = {key: one for part in inspection.inspect(config, info) for key, one in part.items()}
        assert facts["device"] == ("cpu" if device == "cpu" else "a GPU")
        assert (facts["dtype"], facts["weights_bytes"]) == (dtype, size * numbers)


def test_check_goes_on_with_the_cpu_where_a_start_does(
    checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As others have the GPU's memory; --device cuda is refused."""
    monkeypatch.setattr(beside, "uses_gpu", lambda config, first: config.device != "cpu")
    monkeypatch.setattr(checks_of_device, "may_have_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(memory, "device_memory", lambda device: (1000, 1 << 30))
    write_model("bert", tmp_path)
    for folder, words in ((tmp_path, "its weights take"), (checkpoints("qwen3"), "are left for KV memory")):
        about = {"model": str(folder), "runner": "pooling", "max_model_len": 96}
        config = make_config({**about, "device": "auto"})
        info = resolve_model(config)
        caplog.clear()
        facts = {key: one for part in inspection.inspect(config, info) for key, one in part.items()}
        assert facts["device"] == "cpu" and facts["blocks"] and words in caplog.text
        assert "computing on the CPU" in caplog.text
        with pytest.raises(memory.NoRoom, match=words):
            list(inspection.inspect(make_config({**about, "device": "cuda"}), info))
