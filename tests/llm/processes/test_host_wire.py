"""The wire between an LLM object and the process that supervises its actors."""

from __future__ import annotations

import os
import socket

from actorserve.actors.llm.host_wire import HostEnded, decode_config, decode_message, receive, send
from actorserve.actors.options.config import Config


def test_options_may_be_longer_than_packets_are() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    given = Config(chat_template="{# " + "x" * (1 << 20) + " #}")
    beside, told = os.pipe()
    with ours, theirs:
        send(ours, given)
        assert decode_config(receive(theirs)[0]) == given
        send(theirs, HostEnded(1, "why"), [told])
        data, (descriptor,) = receive(ours)
        assert decode_message(data) == HostEnded(1, "why")
        assert os.path.sameopenfile(descriptor, told)
        theirs.close()
        assert receive(ours) == (b"", [])
    for fd in (beside, told, descriptor):
        os.close(fd)
