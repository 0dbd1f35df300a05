"""Paths of other servers' APIs that are not here, and what does the same, or why nothing does."""

from __future__ import annotations

TEXTS = "This server's answers are texts."
KEPT = "Conversations are kept at /v1/conversations, and responses: previous_response_id goes on from one."
REASONS = {
    "/v1/uploads": "Files come whole: POST /v1/files.",
    "/v1/images": TEXTS,
    "/v1/videos": TEXTS,
    "/v1/audio/speech": TEXTS,
    "/v1/assistants": KEPT,
    "/v1/threads": KEPT,
    "/v1/vector_stores": "Nothing is searched here: vectors of texts are had of a model that makes them.",
    "/v1/moderations": "A classifier, where one is served, labels texts at POST /classify.",
    "/v1/fine_tuning": "Models and adapters are served as they are, and trained elsewhere.",
    "/v1/evals": "Whoever evaluates a model asks it by the other paths.",
    "/v1/chat/completions/control": "thinking_token_budget says at first how long is thought; nothing ends it later.",
    "/tools": "No tool runs beside the server: POST /v1/responses calls those of --tool-server.",
    "/cors-proxy": "A browser's page asks other servers by itself: nothing is fetched for it here.",
    "/v1/containers": "No code is run here; tools of MCP servers are called by POST /v1/responses.",
}


def reason_of(path: str) -> str:
    """What to say of it, and nothing of a path that nobody has."""
    return next((f" {why}" for begin, why in REASONS.items() if f"{path}/".startswith(f"{begin.rstrip('/')}/")), "")
