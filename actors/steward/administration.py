"""What operators of servers elsewhere ask of this engine: its scheduler is asked, under numbers of the steward's own.

A steward that dies has asked nothing, as far as anybody knows: links connect anew, and ask once more what is not
answered. Each may come twice.
"""

from __future__ import annotations

import asyncio
import socket
from itertools import count

import msgspec

from ..engines.channel import Channel
from ..model.weights.replacement import find_weights
from ..options.config import ConfigError
from ..protocol.sockets import engine_wire as wire
from ..protocol.topics.administration import AskedOfEngine, CheckWeights, SleepChanged, Unanswered
from ..runtime.process import Context

MOST_CALLS = 256  # that the scheduler has not answered
CALLS_OF_LIFE = 1 << 16  # numbers between the first of one life and that of the next
LIVES = 1 << 15  # so that no number has an upper half, which names a frontend


class StewardAdministration:
    """Of one steward."""

    def __init__(self, context: Context) -> None:
        self._context, self._scheduler = context, context.system.schedulers[0]
        self._calls: dict[int, tuple[Channel, int]] = {}  # for whom, under which number there
        # never those of the life before it, whose answers may still be on their way
        self._numbers = count(context.incarnation % LIVES * CALLS_OF_LIFE + 1)
        self._weighing: set[asyncio.Task[None]] = set()

    def ask(self, channel: Channel, call: AskedOfEngine) -> None:
        """Of the scheduler; what is asked again has the number that it had."""
        asked = channel, call.call
        number = next((one for one, same in self._calls.items() if call.call and same == asked), 0)
        if not number:
            if len(self._calls) >= MOST_CALLS:
                del self._calls[next(iter(self._calls))]
            number = next(self._numbers)
            self._calls[number] = asked
        self._context.post(self._scheduler, msgspec.structs.replace(call, call=number))
        self._context.flush()

    def answered(self, message: wire.Answers) -> None:
        """By the scheduler."""
        channel, call = self._calls.pop(message.call, (None, 0))
        if channel is not None:
            channel.send(msgspec.structs.replace(message, call=call))

    def weigh(self, channel: Channel, record: CheckWeights | wire.LoadWeights) -> None:
        """Other weights must be here, too, the same, and where this machine's options allow."""
        task = asyncio.get_running_loop().create_task(self._weigh(channel, record))
        self._weighing.add(task)
        task.add_done_callback(self._weighing.discard)

    async def _weigh(self, channel: Channel, record: CheckWeights | wire.LoadWeights) -> None:
        if isinstance(record, wire.LoadWeights):
            call, folder = record.sleep.call, record.sleep.weights or ""
        else:
            call, folder = record.call, record.folder
        if trouble := await asyncio.to_thread(self._trouble_with, folder, record.digest):
            channel.send(Unanswered(call, f"path: {trouble}.", 400))
        elif isinstance(record, wire.LoadWeights):
            self.ask(channel, record.sleep)
        else:
            channel.send(SleepChanged(call))

    def _trouble_with(self, folder: str, digest: str) -> str:
        config, model = self._context.config, self._context.model
        where = f"on the engine's machine {socket.gethostname()}"
        try:
            found = find_weights(config, model, folder)
            if wire.weights_digest(found or model.folder) != digest:
                return f"{where} there are other weights in {found or model.folder}"
        except (ConfigError, OSError) as error:
            return f"{where}: {error}"
        return ""
