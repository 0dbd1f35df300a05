"""What a worker of a pipeline does otherwise at its start."""

from __future__ import annotations

import socket

from ...model.memory.kv_memory import KVMemory
from ...model.pipeline.stages import plan_stages
from ...options.config import Config, ConfigError
from ...runtime.process import Context
from ..cpu.decoder import Decoder
from ..cpu.memory.kv_memory import kv_type, plan_memory
from ..tensor_parallel import MeetingPlace
from .link import Stage
from .model import StageModel


def join_stage(context: Context, meeting_fd: int, life: int) -> Stage | None:
    """This worker's stage, once all are there; None where the model is not divided into such."""
    config = context.config
    stages, size = config.pipeline_parallel_size, config.tensor_parallel_size
    if stages == 1:
        return None
    place = _meeting_place(context) if config.nnodes > 1 else None
    return Stage(stages, size, context.spec.index, meeting_fd, life, config.step_timeout, place)


def _meeting_place(context: Context) -> MeetingPlace:
    """The worker that answers to the scheduler keeps it, on node 0."""
    config = context.config
    assert config.master_addr is not None
    own = config.master_addr if context.channel is None else context.channel.getsockname()[0]
    host = context.system.is_reporter(context.spec)
    return MeetingPlace(config.master_addr, config.master_port, host, interface_of(own))


def interface_of(address: str) -> str:
    """The network interface that has this address; ConfigError if none has."""
    import psutil  # only stages on several machines ask for it

    wanted = {info[4][0] for info in socket.getaddrinfo(address, None)}
    for name, addresses in psutil.net_if_addrs().items():
        if wanted & {one.address.partition("%")[0] for one in addresses}:
            return str(name)
    raise ConfigError(f"--master-addr: {address} is no address of this machine")


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
