"""Which adapter a request has: by its `model`, in place of a name of the model itself."""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from actorserve.actors.options.lora import trouble_with_name

from ..errors import ApiError, bad_request
from ..settings import Settings


class LoadAdapterRequest(msgspec.Struct):
    """The body of /v1/load_lora_adapter. The path is one on the server's machine."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapterRequest(msgspec.Struct):
    """The body of /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None


GONE = -1  # the id of no adapter: no sequence is admitted with it


def adapter_of(name: str | None, settings: Settings) -> int:
    """The id of the adapter that a request for this model has; 0: none. GONE where nothing has this name and not every
    name is the model: who comes new is refused by check_model, and who goes on with begun slots has the id in them.
    """
    if not name or name in settings.served or not settings.adapters.enabled:
        return 0
    found = settings.adapters.find(name)
    if found is None:
        return 0 if settings.any_model_name else GONE
    return found.id


def adapter_for(name: str | None, modalities: Set[str], settings: Settings) -> int:
    """The same for a conversation of texts and these: one that asks for the model itself may have that of
    --default-mm-loras, as vLLM has it; of several that there might be, none.
    """
    wanted = settings.default_adapters & modalities
    if (own := adapter_of(name, settings)) or len(wanted) != 1:
        return own
    found = settings.adapters.find(next(iter(wanted)))
    return 0 if found is None else found.id


def check_alike(adapters: Sequence[int]) -> None:
    """400 if the conversations of one request would have several: all have what is asked for the first."""
    other = next((index for index, own in enumerate(adapters) if own != adapters[0]), None)
    if other is None:
        return
    field = f"messages[{other}]"
    text = "would have another adapter than messages[0] (--default-mm-loras): name one as model, or send them apart"
    raise bad_request(f"{field} {text}.", field)


def check_name(name: str, served: list[str]) -> None:
    """400 if an adapter cannot have it."""
    if problem := trouble_with_name(name):
        raise bad_request(f"lora_name: {problem}.", "lora_name")
    if name in served:
        raise ApiError(400, f"lora_name: {name:.256} is the name of the model itself.", "lora_name")
