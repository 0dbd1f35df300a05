"""kv_transfer_params, as routers with prefill and decode apart (llm-d's sidecar) send it: where servers share a folder
of --kv-offload the one that computes the prompt says that its blocks are there, and the other finds them by name.
"""

from __future__ import annotations

from typing import Any

from ...errors import bad_request

FIELD = "kv_transfer_params"
FLAGS = ("do_remote_prefill", "do_remote_decode")
LABELS = (  # where another kind of server would fetch blocks from: here they are found without
    *("remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "remote_request_id", "tp_size"),
    *("remote_num_tokens", "remote_dp_rank"),
)


def hands_on(params: dict[str, Any] | None) -> bool:
    """Does the request want to be gone on with by another server? A 400 names what cannot be."""
    if params is None:
        return False
    for name, value in params.items():
        if name not in FLAGS and name not in LABELS:
            raise bad_request(f"{FIELD}.{name} is none of {', '.join((*FLAGS, *LABELS))}.", f"{FIELD}.{name}")
        if name in FLAGS and not isinstance(value, bool | None):
            raise bad_request(f"{FIELD}.{name} must be true or false.", f"{FIELD}.{name}")
    if all(params.get(flag) for flag in FLAGS):
        raise bad_request(f"{FIELD}: a prompt is computed elsewhere, or goes on elsewhere, not both.", FIELD)
    return bool(params.get("do_remote_decode"))


def handed_on(fingerprint: str) -> dict[str, Any]:
    """What the other server is to be sent."""
    names = {"remote_engine_id": fingerprint, "remote_block_ids": [], "remote_host": "", "remote_port": 0}
    return {"do_remote_prefill": True, "do_remote_decode": False, **names}
