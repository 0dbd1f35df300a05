"""What a worker of a pipeline does otherwise at its start."""

from __future__ import annotations

from ...model.memory.kv_memory import KVMemory
from ...model.pipeline.stages import plan_stages
from ...options.config import Config
from ...runtime.process import Context
from ..cpu.decoder import Decoder
from ..cpu.memory.kv_memory import kv_type, plan_memory
from .link import Stage
from .model import StageModel


def join_stage(context: Context, meeting_fd: int, life: int) -> Stage | None:
    """This worker's stage, once all are there; None where the model is not divided into such."""
    config = context.config
    stages, size = config.pipeline_parallel_size, config.tensor_parallel_size
    if stages == 1:
        return None
    return Stage(stages, size, context.spec.index, meeting_fd, life, config.step_timeout)


def describe_stage(model: Decoder) -> str:
    """What the log says behind the model's name; nothing of one that is whole."""
    if not isinstance(model, StageModel):
        return ""
    first, link = model.shape.first_layer, model.link
    end = first + model.shape.layers
    return f", stage {link.index + 1} of {link.count}: layers {first} to {end - 1}"


def plan_worker_memory(config: Config, model: Decoder, max_length: int, beside: int) -> tuple[KVMemory, KVMemory]:
    """(this worker's, the same of all stages together): by the second all have as many blocks."""
    if not isinstance(model, StageModel):
        plan = plan_memory(config, model, max_length, beside)
        return plan, plan
    plans = plan_stages(model.stage_kvs, config, max_length, model.dtype.itemsize, beside, True, kv_type(config, model))
    return plans.each[model.link.index], plans.whole
