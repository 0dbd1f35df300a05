"""On which device a model is that pools, or reads by an encoder, and what it may have of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actorserve.actors.model.memory.kv_memory import KVMemory
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.worker.encoder_decoder import start as reading_start
from actorserve.actors.worker.gpu import memory as gpu_memory
from actorserve.actors.worker.pooling import start as pooling_start
from actorserve.actors.worker.start import beside
from actorserve.actors.worker.start import model as start_model
from actorserve.actors.worker.start.beside import computing_on, device_of

GIB = 1 << 30


def context_of(config: Config, first: int = 0, engine: int = 0, index: int = 0) -> Any:
    """Of a worker whose model has the GPUs from `first` on, if there are so many."""
    said: list[str] = []
    return SimpleNamespace(
        config=config,
        system=SimpleNamespace(first_device=lambda own: first + own),
        spec=SimpleNamespace(engine=engine, index=index),
        served=SimpleNamespace(engines=range(4)),
        model=SimpleNamespace(pooling=SimpleNamespace(base="")),  # an encoder
        log=SimpleNamespace(warning=lambda text, *given: said.append(text % given)),
        said=said,
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A machine with so many, and models that may be on them."""

    def there(count: int, reason: str = "", old: str = "") -> None:
        monkeypatch.setattr(beside, "uses_gpu", lambda config, first: count > 0 and config.device != "cpu" and not old)
        monkeypatch.setattr(beside, "check_gpu", lambda config: count > 0 and config.device != "cpu")
        monkeypatch.setattr(beside, "why_no_gpu", lambda config, first: old)
        monkeypatch.setattr(beside, "only_on_cpu", lambda config, model: reason)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return there


@pytest.mark.parametrize(
    ("count", "first", "options", "wanted", "said"),
    [
        (0, 0, {}, "cpu", ""),
        (1, 0, {"device": "cpu"}, "cpu", ""),
        (1, 0, {}, "cuda:0", ""),
        (1, 0, {"device": "cuda"}, "cuda:0", ""),
        (2, 1, {}, "cuda:1", ""),
        (1, 1, {}, "cpu", "2 GPUs would be needed, one for each worker, and there are 1 here; --device cuda shares"),
        (1, 1, {"device": "cuda"}, "cuda:0", ""),
        (2, 0, {"data_parallel_size": 3}, "cpu", "3 GPUs would be needed"),
    ],
)
def test_the_device(count: int, first: int, options: dict[str, Any], wanted: str, said: str, gpus: Any) -> None:
    """Its own where there is one; what others have is shared where it is asked for."""
    gpus(count)
    context = context_of(make_config({"model": "m", **options}), first)
    assert device_of(context) == torch.device(wanted)
    assert said in "".join(context.said) and bool(said) == bool(context.said)


def test_each_engine_has_its_own(gpus: Any) -> None:
    gpus(3)
    config = make_config({"model": "m", "data_parallel_size": 2})
    found = [device_of(context_of(config, 1, engine)) for engine in (0, 1)]
    assert found == [torch.device("cuda", 1), torch.device("cuda", 2)]


def test_why_it_is_the_cpu_is_said_once(gpus: Any) -> None:
    config = make_config({"model": "m"})
    for reason, old in (("it is a decoder", ""), ("", "it is too old")):
        gpus(1, reason, old)
        first, second = context_of(config), context_of(config, index=1)
        assert device_of(first) == device_of(second) == torch.device("cpu")
        assert first.said == [f"computing on the CPU: {reason or old}"] and not second.said


def test_what_no_gpu_may_compute_asks_for_none(gpus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver of whose GPUs torch finds none ends the start of others."""

    def missing(config: Config, first: int) -> bool:
        raise ConfigError("--device auto: there is a driver here, and torch finds no GPU")

    gpus(1, "int8 is made on a CPU")
    monkeypatch.setattr(beside, "uses_gpu", missing)
    assert device_of(context_of(make_config({"model": "m"}))) == torch.device("cpu")
    gpus(1)
    monkeypatch.setattr(beside, "uses_gpu", missing)
    with pytest.raises(ConfigError, match="torch finds no GPU"):
        device_of(context_of(make_config({"model": "m"})))


def write_decoder(folder: Path, **fields: Any) -> Path:
    """The config of one that pools."""
    values = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16, "hidden_size": 32}
    values |= {"intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1, "num_key_value_heads": 2}
    values |= {"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "vocab_size": 90, "dtype": "float32", **fields}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


POOLS = PoolingSpec(tasks=["embed"], base="Qwen3ForCausalLM", methods=["last"], normalize=True, hidden=32, width=32)


@pytest.mark.parametrize(
    ("options", "shape", "said"),
    [
        ({"kv_cache_dtype": "int8"}, {}, "--kv-cache-dtype int8: on a CPU only"),
        ({"kv_cache_dtype": "fp8"}, {}, "--kv-cache-dtype fp8: Qwen3ForCausalLM has auto on a GPU"),
        ({"kv_cache_dtype": "float32"}, {}, "--kv-cache-dtype float32: Qwen3ForCausalLM has auto on a GPU"),
        ({"kv_cache_dtype": "bfloat16"}, {}, ""),
        ({"block_size": 8}, {}, "--block-size 8: on a GPU it is one of"),
        ({}, {"head_dim": 24}, "heads of 24 numbers"),
        ({}, {}, ""),
    ],
)
def test_what_only_a_cpu_can_do(
    options: dict[str, Any], shape: dict[str, Any], said: str, gpus: Any, tmp_path: Path
) -> None:
    """--device auto is the CPU then, and --device cuda refuses it; where there is no GPU nothing is said."""
    folder = write_decoder(tmp_path, **shape)
    found = {}
    for count, device in ((1, "auto"), (0, "auto")):
        gpus(count)
        context = context_of(make_config({"model": "m", "device": device, **options}))
        context.model = SimpleNamespace(pooling=POOLS, architecture="Qwen3ForCausalLM", folder=folder)
        found[count] = device_of(context), "".join(context.said)
    assert found[0] == (torch.device("cpu"), "")
    assert found[1][0].type == ("cpu" if said else "cuda") and said in found[1][1] and bool(said) == bool(found[1][1])
    if said:
        gpus(1)
        context.config = make_config({"model": "m", "device": "cuda", **options})
        with pytest.raises(ConfigError, match=said):
            device_of(context)


def test_of_an_encoder_with_a_decoder(gpus: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"torch_dtype": "float16"}')
    gpus(1)
    for given, wanted in (("auto", "cuda"), ("float16", "cuda"), ("bfloat16", "cpu"), ("fp8", "cpu")):
        context = context_of(make_config({"model": "m", "kv_cache_dtype": given}))
        context.model = SimpleNamespace(pooling=None, architecture="Bart", folder=tmp_path)
        assert device_of(context).type == wanted


def pretend(monkeypatch: pytest.MonkeyPatch, free: list[int]) -> None:
    """A GPU of a GiB, of which so much is free at each look; the last of these stays."""
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *fraction: None)
    monkeypatch.setattr(gpu_memory, "LOOK_S", 0)
    monkeypatch.setattr(gpu_memory, "device_memory", lambda device: (free[0] if len(free) == 1 else free.pop(0), GIB))


def test_memory_of_a_killed_predecessor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the driver frees after its death: what is measured too soon would be missing ever after."""
    free = [GIB // 8, GIB // 2, GIB]
    pretend(monkeypatch, free)
    with computing_on(make_config({"model": "m"}), torch.device("cuda", 0)):
        assert free == [GIB]


def test_libraries_are_told_how_to_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions are rounded by cuDNN unless it is told not to, and its attention is planned for each shape."""
    pretend(monkeypatch, [GIB])
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    torch.backends.cuda.enable_cudnn_sdp(True)
    with computing_on(make_config({"model": "m"}), torch.device("cuda", 0)):
        assert not torch.backends.cudnn.allow_tf32 and torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.cuda.flash_sdp_enabled()


def test_what_it_may_have_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is said where that is too little; other errors stay what they are."""
    given: list[tuple[float, torch.device]] = []
    pretend(monkeypatch, [GIB])
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *fraction: given.append(fraction))
    config, device = make_config({"model": "m", "gpu_memory_utilization": 0.25}), torch.device("cuda", 1)
    said = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 1.00 GiB. If reserved is large, see more"
    with pytest.raises(gpu_memory.NoRoom) as error, computing_on(config, device):
        raise torch.OutOfMemoryError(said)
    words = str(error.value)
    assert words.startswith("out of GPU memory at the start: CUDA out of memory. Tried") and "If reserved" not in words
    assert "--max-num-batched-tokens" in words and "--gpu-memory-utilization" in words and "\n" not in words
    assert given == [(0.25, device)]
    with pytest.raises(RuntimeError, match="an illegal memory access"), computing_on(config, device):
        raise RuntimeError("an illegal memory access")
    with pytest.raises(torch.OutOfMemoryError), computing_on(config, torch.device("cpu")):
        raise torch.OutOfMemoryError(said)


@pytest.mark.parametrize("kind", [pooling_start, reading_start])
def test_a_gpu_that_is_full(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By others' memory: the model is the CPU's, unless --device cuda was asked for."""
    asked: list[str] = []

    def start(context: Any, device: torch.device) -> str:
        asked.append(device.type)
        if device.type == "cuda":
            raise gpu_memory.NoRoom("--gpu-memory-utilization: 0 bytes are left for KV memory")
        return "served"

    monkeypatch.setattr(kind, "start", start)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("let go"))
    context = context_of(make_config({"model": "m"}))
    context.model = SimpleNamespace(pooling=object() if kind is pooling_start else None)
    assert start_model._load_beside(context, torch.device("cuda", 0)) == "served"  # type: ignore[comparison-overlap]
    assert asked == ["cuda", "let go", "cpu"]
    assert context.said == ["computing on the CPU: --gpu-memory-utilization: 0 bytes are left for KV memory"]
    context.config = make_config({"model": "m", "device": "cuda"})
    with pytest.raises(gpu_memory.NoRoom):
        start_model._load_beside(context, torch.device("cuda", 0))


def test_what_says_that_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, a step, KV memory."""
    pretend(monkeypatch, [100])
    with pytest.raises(gpu_memory.NoRoom, match="its weights take 400 bytes"):
        beside.moved(torch.nn.Linear(10, 10, bias=False), torch.device("cuda", 0), torch.float32)
    config, plan = make_config({"model": "m"}), KVMemory(100, 4, None, 0)
    with pytest.raises(gpu_memory.NoRoom, match="3 bytes are left for KV memory"):
        gpu_memory.blocks_in(config, plan, 64, 3)
    config = make_config({"model": "m", "kv_cache_memory_bytes": 1000})
    with pytest.raises(gpu_memory.NoRoom, match="1,000 bytes are more than the 7 "):
        gpu_memory.check_given_bytes(config, plan, 10, 7, 7)


class Turning(torch.nn.Module):
    """As a model of transformers keeps some tensors in float32."""

    _keep_in_fp32_modules = ("wo",)
    _keep_in_fp32_modules_strict = ("scores",)

    def __init__(self) -> None:
        super().__init__()
        self.wi, self.wo, self.scores = (torch.nn.Linear(2, 2, bias=False) for _ in range(3))
        self.rotary, self.again = (torch.nn.Module(),) * 2  # one that comes twice
        self.tied = self.wi
        self.rotary.register_buffer("full_inv_freq", torch.tensor([1.0, 1e-4]), persistent=False)
        self.rotary.register_buffer("scale", torch.tensor(3.0))
        self.rotary.register_buffer("position_ids", torch.arange(2), persistent=False)


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(torch.float16, {"wo.weight", "scores.weight"}), (torch.bfloat16, {"scores.weight"}), (None, None)],
)
def test_what_loses_its_meaning_in_few_bits_stays_in_float32(
    dtype: torch.dtype | None, kept: set[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frequencies of rotations, and what transformers says; without a type all stays as it is."""
    pretend(monkeypatch, [GIB])
    model = Turning()
    before = beside.tensors_of(model)
    beside.moved(model, torch.device("cpu"), dtype)
    found = beside.tensors_of(model)
    floats = {name for name, one in found.items() if one.dtype is torch.float32}
    everything = {name for name, one in before.items() if one.is_floating_point()}
    assert floats == (everything if kept is None else {*kept, "rotary.full_inv_freq"})
    assert torch.equal(found["rotary.full_inv_freq"], before["rotary.full_inv_freq"])
    assert found["rotary.position_ids"].dtype is torch.int64 and model.tied is model.wi


def test_another_try_begins_with_what_was_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, [GIB])
    model = Turning()
    model.wi.weight.data.fill_(1e6)
    exact = beside.tensors_of(model)
    beside.moved(model, torch.device("cpu"), torch.float16)
    assert model.wi.weight.isinf().all()
    beside.exchange(model, exact.__getitem__)
    assert torch.equal(model.wi.weight, exact["wi.weight"]) and (exact["wi.weight"] == 1e6).all()
