"""POST /pooling with `data`, which --io-processor-plugin makes prompts of."""

from __future__ import annotations

from actorserve.actors.model.pooling.spec import PoolingSpec

from ..errors import bad_request
from ..settings import Settings
from .schemas import PoolingRequest

PLUGIN = "plugin"


def check_data(body: PoolingRequest, settings: Settings) -> None:
    """400 where there is nobody to make prompts of it, or where there are some already."""
    if not settings.io_processor:
        raise bad_request("data: they are taken where the server has --io-processor-plugin.", "data")
    if not bytes(body.data):
        raise bad_request("data are missing: the task plugin makes its prompts of them.", "data")
    for name, given in (("input", body.input is not None), ("messages", bytes(body.messages))):
        if given:
            raise bad_request(f"{name} does not go with data, which prompts are made of.", name)


def task_beside(body: PoolingRequest, spec: PoolingSpec) -> str:
    """What is made of the prompts: as the request says, or what the model is for."""
    return spec.tasks[0] if body.task in (None, PLUGIN) else str(body.task)
