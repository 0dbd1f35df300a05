"""KV memory of a GPU worker that its next life finds (--keep-kv): when there is some, and when there can be."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...keeper.driver import DriverError
from ...model.memory.kv_memory import KVMemory
from ...protocol.sockets.keeper_wire import KEEPER, Weigh, ask
from ...runtime.process import Context
from ..start.shared import speaks_for_all
from ..tensor_parallel import TensorParallelGroup
from .device import DeviceMemory, drop
from .file import KeptMemory, digest_of


class KeptOnDevice:
    """That of one worker; without --keep-kv, or where it cannot be, all memory is torch's and goes with the process."""

    def __init__(self, context: Context, device: torch.device, plain: bool, *what: object) -> None:
        """`plain`: blocks are all that there is to a prefix. `what` gives the memory its meaning beside options."""
        self._context = context
        self._life = context.board.incarnation(context.system.workers_of(context.spec.engine)[0].position)
        self._memory: DeviceMemory | None = None
        if not context.config.keep_kv:
            return
        if not plain:
            if speaks_for_all(context):
                text = "--keep-kv: it has no effect with a model or drafts that keep more than blocks"
                context.log.warning(text)
            return
        digest = digest_of(context.config, context.model.folder, what, str(device))
        kept = KeptMemory(context.files[f"kv-{context.spec.name}"], digest, self._life)
        try:
            self._memory = DeviceMemory(kept, context.files[KEEPER], context.spec.name, digest, device)
        except (DriverError, OSError) as error:
            kept.forget()
            self._cannot(error)

    def _cannot(self, error: Exception) -> None:
        """What the keeper has made is free again, since torch's memory is to be where it was."""
        context, self._memory = self._context, None
        context.log.error("--keep-kv: KV memory is not kept: %s", error)
        drop(context.files[KEEPER], context.spec.name, context.log)

    def found(self, group: TensorParallelGroup | None) -> int:
        """How many blocks an earlier life has left, to all of the group; 0: none, and nothing is kept from here on."""
        memory = self._memory
        since = 0 if memory is None else memory.since
        if group is not None:
            since = -group.minimum(-since) if group.minimum(since) else 0
        if memory is None:
            return 0
        try:
            if since:
                blocks = memory.go_on()
                self._context.kept_since = since
                return blocks
            memory.forget()
        except (DriverError, OSError) as error:
            memory.kept.forget()
            if since and group is not None:  # the others go on in theirs: all begin anew, and find nothing here
                raise
            self._cannot(error)
        return 0

    def begin(self, blocks: int, size: int) -> Callable[[int], torch.Tensor] | None:
        """Memory for so many blocks, of so many bytes; None: let it be torch's."""
        memory = self._memory
        if memory is None:
            return None
        try:
            memory.begin(blocks, size, self._life)
        except (DriverError, OSError) as error:
            self._cannot(error)
            return None
        self._context.kept_since = self._life
        return memory.take

    @property
    def take(self) -> Callable[[int], torch.Tensor]:
        """Of what was found."""
        assert self._memory is not None, "it was found"
        return self._memory.take


def held_bytes(context: Context) -> int:
    """Of the device, which the keeper has for this worker."""
    if not context.config.keep_kv:
        return 0
    try:
        return ask(context.files[KEEPER], Weigh(context.spec.name))[0].size
    except OSError:  # it is gone, and the memory with it
        return 0


def is_plain(plan: KVMemory, drafts: bool) -> bool:
    """Are its blocks all that there is to a prefix?"""
    return plan.windows is None and not plan.row_bytes and not drafts
