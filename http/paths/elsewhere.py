"""Paths of other servers' APIs that are not here, and what does the same, or why nothing does."""

from __future__ import annotations

TEXTS = "This server's answers are texts."
RUNS = "No code is run here; tools of MCP servers are called by POST /v1/responses."
AGENTS = "Agents run beside the server, and ask it: POST /v1/responses."
CALLS = "There are no calls by WebRTC or SIP: /v1/realtime is a WebSocket."
KEPT = "Conversations are kept at /v1/conversations, and responses: previous_response_id goes on from one."
REASONS = {
    "/v1/uploads": "Files come whole: POST /v1/files.",
    "/v1/images": TEXTS,
    "/v1/videos": TEXTS,
    "/v1/audio/speech": TEXTS,
    "/v1/audio/voices": TEXTS,
    "/v1/audio/voice_consents": TEXTS,
    "/v1/assistants": KEPT,
    "/v1/threads": KEPT,
    "/v1/vector_stores": "Nothing is searched here: vectors of texts are had of a model that makes them.",
    "/v1/moderations": "A classifier, where one is served, labels texts at POST /classify.",
    "/v1/fine_tuning": "Models and adapters are served as they are, and trained elsewhere.",
    "/v1/evals": "Whoever evaluates a model asks it by the other paths.",
    "/v1/chat/completions/control": "thinking_token_budget says at first how long is thought; nothing ends it later.",
    "/v1/chat/completions/": "Chats are not kept; POST /v1/responses keeps what it answers.",
    "/tools": "No tool runs beside the server: POST /v1/responses calls those of --tool-server.",
    "/cors-proxy": "A browser's page asks other servers by itself: nothing is fetched for it here.",
    "/v1/containers": RUNS,
    "/v1/skills": RUNS,
    "/v1/agents": AGENTS,
    "/v1/chatkit": AGENTS,
    "/v1/vaults": AGENTS,
    "/v1/live": CALLS,
    "/v1/realtime/calls": CALLS,
}


def reason_of(path: str) -> str:
    """What to say of it, and nothing of a path that nobody has."""
    return next((f" {why}" for begin, why in REASONS.items() if f"{path}/".startswith(f"{begin.rstrip('/')}/")), "")
