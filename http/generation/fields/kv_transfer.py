"""kv_transfer_params, as routers with prefill and decode apart (llm-d's sidecar) send it: the server that computes the
prompt says where its blocks can be had, and the other fetches them by name: out of a folder that both share
(--kv-offload folder:…), or from the first one (tcp:… there, peer:… here).
"""

from __future__ import annotations

from typing import Any

from ...errors import bad_request
from ...settings import KVSharing

FIELD = "kv_transfer_params"
FLAGS = ("do_remote_prefill", "do_remote_decode")
HOST, PORT = "remote_host", "remote_port"
LABELS = (  # by which another kind of server would find blocks: here their names say all
    *("remote_engine_id", "remote_block_ids", "remote_request_id", "tp_size", "remote_num_tokens", "remote_dp_rank"),
)
NAMES = (*FLAGS, HOST, PORT, *LABELS)
MOST_PORT = 65535


def check_transfer(params: dict[str, Any] | None, kv: KVSharing | None) -> None:
    """A 400 names what cannot be. Without --kv-offload all is passed over: what would be fetched is computed here."""
    if kv is None:
        return
    for name, value in (params or {}).items():
        if name not in NAMES:
            raise bad_request(f"{FIELD}.{name} is none of {', '.join(NAMES)}.", f"{FIELD}.{name}")
        if name in FLAGS and not isinstance(value, bool | None):
            raise bad_request(f"{FIELD}.{name} must be true or false.", f"{FIELD}.{name}")
    if params and all(params.get(flag) for flag in FLAGS):
        raise bad_request(f"{FIELD}: a prompt is computed elsewhere, or goes on elsewhere, not both.", FIELD)
    if hands_on(params) and not kv.gives:
        text = "this server gives nobody blocks: --kv-offload has no folder, tcp or plugin."
        raise bad_request(f"{FIELD}.do_remote_decode: {text}", f"{FIELD}.do_remote_decode")
    if _comes(params) and not kv.takes:
        text = "this server fetches no blocks of others: --kv-offload has no folder, peer or plugin."
        raise bad_request(f"{FIELD}.do_remote_prefill: {text}", f"{FIELD}.do_remote_prefill")
    peer_of(params, kv)


def hands_on(params: dict[str, Any] | None) -> bool:
    """Does the request want to be gone on with by another server?"""
    return bool(params and params.get("do_remote_decode"))


def _comes(params: dict[str, Any] | None) -> bool:
    """Has another server computed the prompt?"""
    return bool(params and params.get("do_remote_prefill"))


def peer_of(params: dict[str, Any] | None, kv: KVSharing | None) -> str:
    """host:port of the server that has computed the prompt, if it is to be asked; a 400 if that may not be."""
    if params is None or kv is None or kv.allows is None or not _comes(params) or not params.get(HOST):
        return ""
    host, port = params[HOST], params.get(PORT)
    if not isinstance(host, str):
        raise bad_request(f"{FIELD}.{HOST} must be an address.", f"{FIELD}.{HOST}")
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= MOST_PORT:
        raise bad_request(f"{FIELD}.{PORT} must be a number from 1 to {MOST_PORT}.", f"{FIELD}.{PORT}")
    if not kv.allows(host, port):
        raise bad_request(f"{FIELD}.{HOST}: {host}:{port} is no peer of --kv-offload.", f"{FIELD}.{HOST}")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def handed_on(fingerprint: str, kv: KVSharing) -> dict[str, Any]:
    """What the other server is to be sent."""
    host, port = kv.address
    names = {"remote_engine_id": fingerprint, "remote_block_ids": [], HOST: host, PORT: port}
    return {"do_remote_prefill": True, "do_remote_decode": False, **names}
