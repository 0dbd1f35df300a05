"""Several models in one server: whose actors there are, which lanes join them, and what lies in memory for all."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import msgspec

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System

SMALL = {"max_num_seqs": 4, "max_num_queued_reqs": 4}


def system_of(also: list[str], infos: list[dict[str, Any]], **options: Any) -> System:
    config = make_config({**SMALL, **options, "also": also})
    first = resolve_model(config)
    return System(config, first, [msgspec.structs.replace(first, **changes) for changes in infos])


def test_each_model_has_engines_renderers_and_detokenizers_of_its_own() -> None:
    system = system_of(["org/some bge,data-parallel-size=2"], [{}], frontends=2)
    assert [one.engines for one in system.models] == [range(1), range(1, 3)]
    assert [actor.name for actor in system.of_kind("worker")] == ["worker@0", "worker@1", "worker@2"]
    assert [actor.name for actor in system.of_kind("renderer")] == ["renderer-0", "renderer-0+some-bge"]
    assert [actor.name for actor in system.of_kind("frontend")] == ["frontend-0", "frontend-1"]
    assert [system.model_of(engine).index for engine in system.engines] == [0, 1, 1]
    assert system.scheduler_of(None, 1) == "scheduler@1" and system.scheduler_of(2, 1) == "scheduler@2"
    assert system.detokenizer_of(3, 1) == "detokenizer-0+some-bge"


def test_names_tell_models_apart_that_are_called_alike() -> None:
    system = system_of(["a/name", "b/name", "日本,served-model-name=日本"], [{}, {}, {}])
    names = [actor.name for actor in system.of_kind("renderer")]
    assert len(set(names)) == 4 and names[1:3] == ["renderer-0+name", "renderer-0+name-2"]


def test_no_lane_leads_from_one_model_to_another() -> None:
    system = system_of(["other,data-parallel-size=2"], [{}], data_parallel_size=2)
    model = {actor.name: actor.model for actor in system.actors}
    own = [actor.name for actor in system.actors if actor.traits.by_engine or actor.traits.by_model]
    for lane in system.lanes:
        readers = [name for name in lane.readers if name in own]
        if lane.source in own:
            assert {model[name] for name in readers} <= {model[lane.source]}, lane
    reached = {lane.target for lane in system.lanes if lane.source == "frontend-0"}
    assert reached == {
        *system.schedulers,
        *(actor.name for kind in ("renderer", "detokenizer") for actor in system.of_kind(kind)),
    }
    assert {lane.target for lane in system.lanes if lane.source == "scheduler@2"} >= {"scheduler@3", "worker@2"}


def test_sounds_have_room_on_their_way_to_who_writes_them_down() -> None:
    """And nowhere else."""
    speech = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=1, frames=2)
    hears = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0, speech=speech)
    system = system_of(["ears"], [{"encoder": hears}], max_audio_bytes=32 << 20)
    room = {(lane.source, lane.target): lane.capacity for lane in system.lanes}
    assert room["frontend-0", "renderer-0+ears"] > 3 * (32 << 20) > room["frontend-0", "renderer-0"]
    assert room["renderer-0+ears", "frontend-0"] == room["renderer-0", "frontend-0"]
    assert system.files.journal[1] > 32 << 20 > system.files.body_bytes


def test_memory_is_for_the_largest() -> None:
    alone = system_of([], [])
    both = system_of(["other,max-num-seqs=8"], [{"max_model_len": 8192}])
    assert alone.max_tokens < 8192 == both.max_tokens == both.files.logprobs[1]
    assert both.slots == 4 + 8 + 4 + 32 and both.sequence_blocks * 8 == both.max_blocks
    assert len(both.kv_map_offsets) == 2


def test_one_model_is_laid_out_as_without_the_option() -> None:
    config = make_config({**SMALL})
    info: ModelInfo = resolve_model(config)
    system = System(config, info)
    names = [actor.name for actor in system.actors]
    assert names == ["worker", "scheduler", "detokenizer-0", "renderer-0", "frontend-0"]
    assert system.models[0].config is config and system.models[0].info is info


def test_models_on_a_cpu_take_no_gpu() -> None:
    system = system_of(["b,device=cpu", "c,tp=2", "d"], [{}, {}, {}])
    assert [system.first_device(engine) for engine in system.engines] == [0, 1, 1, 3]


def test_models_that_pool_take_gpus_behind_all_others() -> None:
    """Where they stand among the options changes nothing; one that a CPU alone computes takes none."""
    pooled = PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=8, width=8)
    also = ["a", "b,quantization=int8", "c,tp=2", "d"]
    system = system_of(also, [{"pooling": pooled}, {"pooling": pooled}, {}, {"pooling": pooled}])
    assert [system.models[index].is_on_cpu for index in range(5)] == [False, False, True, False, False]
    assert system.num_devices == 3
    assert [system.first_device(engine) for engine in (0, 1, 3, 4)] == [0, 3, 1, 4]


def test_the_workers_template_imports_what_some_of_the_models_need() -> None:
    """So that no successor of a worker imports transformers anew; by names of modules that are there."""
    encoder = EncoderSpec(longest=8, decoder_longest=8, start=[0], filler=0)
    pooled = PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=8, width=8)
    own = msgspec.structs.replace(pooled, base="Qwen3ForCausalLM")
    system = system_of(["a", "b", "c"], [{"encoder": encoder}, {"pooling": pooled}, {"pooling": own}])
    assert system.imports_of("worker") == ["encoder_decoder.load", "pooling.load"] and not system.imports_of("media")
    assert system_of([], []).imports_of("worker") == []
    assert system_of([], [], model_impl="transformers").imports_of("worker") == ["adapter.load"]
    for name in ("encoder_decoder.load", "pooling.load", "adapter.load", "vision.start"):
        assert find_spec(f"actorserve.actors.worker.{name}") is not None
