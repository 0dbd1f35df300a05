"""What SageMaker says of sessions: by headers, and by bodies of /invocations that open or close one.

A session is there so that its requests come to one container, which has their prefixes cached. Nothing else follows:
they are answered as any other, also once it has expired.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SESSION = "X-Amzn-SageMaker-Session-Id"
SESSION_OPENED, SESSION_CLOSED = "X-Amzn-SageMaker-New-Session-Id", "X-Amzn-SageMaker-Closed-Session-Id"
ADAPTER = "X-Amzn-SageMaker-Adapter-Identifier"  # of /invocations: the model, whatever the body says
NEW_SESSION = "NEW_SESSION"
SESSION_S = 1200.0


class SagemakerSessionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /invocations that opens a session, or closes that of the header."""

    request_type: Literal["NEW_SESSION", "CLOSE"] = msgspec.field(name="requestType")
