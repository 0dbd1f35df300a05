"""What supervisor and frontend say to each other on a frontend's channel. Who does what with it stands in the two
modules connections.py.

A channel is a sequenced-packet socket, one for each life of a frontend; each message is one packet.
    to the frontend      number and flags (HANDED), the connection as a descriptor; or how many of the connections
                         whose numbers follow are to be closed, if they are idle, and CLOSE_IDLE
    from the frontend    pairs of a number and what became of it (GIVEN)
The kernel drops a descriptor for which the receiver has no room, and delivers the rest of the message: the frontend
then gives the number back as not taken. The supervisor has the connection still.
"""

from __future__ import annotations

import struct

HANDED = struct.Struct("<II")
GIVEN = struct.Struct("<II")

NEW, RESUMED = 0, 1  # flags: nobody has read anything of it; a predecessor or another frontend had it
RESERVED = 2  # it is for one question about the server itself: there is no room for more
CLOSE_IDLE = 4
NUMBER_BYTES = 4
MOST_ASKED = 2048  # numbers of one such message
MOST_TOLD = HANDED.size + NUMBER_BYTES * MOST_ASKED  # bytes of a message to a frontend

CLOSED = 0  # it is closed here; k + 1: it is frontend k's from now on
NOT_TAKEN = 1 << 31  # with its flags: no descriptor was left here for it
